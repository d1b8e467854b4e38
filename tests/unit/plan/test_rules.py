"""Every combination of settings that is refused, with what it says; and its neighbours, which are not."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.errors import ConfigError, DataError
from drumline.hardware.records import Hardware
from drumline.launcher.world import World
from drumline.plan.resolve import resolve
from tests.unit.plan.machines import h100s, machine, run, world

CPU = machine()
TEXT = {"kind": "text", "train": ["a"]}
Sections = dict[str, dict[str, Any]]


def refusal(sections: Sections, hardware: Hardware = CPU, started: World | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        resolve(run(**sections), hardware, started)
    assert caught.value.exit_status == 2
    assert caught.value.fix
    return str(caught.value)


@pytest.mark.parametrize(
    ("sections", "parts"),
    [
        (
            {"train": {"batch_size_per_gpu": 4}},
            ["train.global_batch: 8", "batch_size_per_gpu is 4", "keep train.global"],
        ),
        (
            {"train": {"gradient_accumulation_steps": 2}},
            ["gradient_accumulation_steps: goes only with train.batch_size"],
        ),
        ({"train": {"global_batch": None}}, ["train.global_batch: is not given", "such as train.global_batch=32"]),
        (
            {"train": {"global_batch": None, "batch_size_per_gpu": 4, "micro_batch": 2}},
            ["train.micro_batch: 2", "batch_size_per_gpu is 4", "leave train.micro_batch out"],
        ),
        ({"train": {"max_steps": None}}, ["train.epochs: is not given", "train.max_steps", "no end"]),
        (
            {"data": TEXT, "evaluate": {"early_stopping": {}}},
            ["evaluate.early_stopping", "data.eval has nothing to evaluate"],
        ),
        (
            {"data": {"kind": "random_tokens"}, "evaluate": {"early_stopping": {}}},
            ["evaluate.early_stopping", "data.num_eval_rows has nothing"],
        ),
        (
            {"train": {"schedule": {"warmup_steps": 11}}},
            ["train.schedule.warmup_steps: 11 updates of warm-up", "ends after 10", "set it to 10 or less"],
        ),
        (
            {"data": TEXT, "train": {"schedule": {"name": "torch", "scheduler": "StepLR", "interval": "evaluation"}}},
            ["train.schedule.interval: evaluation, and data.eval has nothing", "update or epoch"],
        ),
        (
            {"train": {"schedule": {"name": "torch"}}},
            ["train.schedule.scheduler: is not given", "such as StepLR", "train.schedule.options"],
        ),
        (
            {"train": {"schedule": {"scheduler": "StepLR"}}},
            ["train.schedule.scheduler: is for a scheduler of torch's", "name is cosine", "set train.schedule.name to"],
        ),
        (
            {"train": {"schedule": {"options": {"gamma": 0.5}}}},
            ["train.schedule.options: is for a scheduler of torch's", "name is cosine"],
        ),
        (
            {"train": {"schedule": {"name": "torch", "scheduler": "StepLR", "warmup_steps": 2}}},
            ["train.schedule.warmup_steps: 2, and train.schedule.name is torch", "such as OneCycleLR"],
        ),
        (
            {"train": {"schedule": {"name": "torch", "scheduler": "ReduceLROnPlateau", "interval": "epoch"}}},
            ["train.schedule.interval: epoch", "looks at a metric", "set it to evaluation"],
        ),
        (
            {"train": {"averaging": {"start": 0.9, "every": 2}}},
            ["train.averaging.every: every 2 updates", "of the run's 10 at most 1 are left", "set it to 1 or less"],
        ),
        (
            {"train": {"optimizer": {"rules": [{"pattern": "a"}, {"pattern": "b.*", "freeze": True, "lr_factor": 2}]}}},
            ["train.optimizer.rules.1: freezes 'b.*' and gives it lr_factor as well", "keep one of them"],
        ),
        (
            {"track": {"gradient_noise": True}},
            ["track.gradient_noise: compares two batch sizes", "at most half of train.global_batch"],
        ),
        ({"track": {"gradient_noise": True}, "train": {"micro_batch": 8}}, ["track.gradient_noise"]),
        (
            {"track": {"gradient_noise": True}, "train": {"global_batch": None, "batch_size_per_gpu": 8}},
            ["track.gradient_noise"],
        ),
        ({"model": {"width": 130, "num_heads": 4}}, ["model.num_heads: 4 heads", "width of 130", "such as 2"]),
        ({"model": {"width": 12, "num_heads": 4, "style": "llama"}}, ["model.num_heads", "size 3", "even"]),
        ({"model": {"num_heads": 4, "num_kv_heads": 3}}, ["num_kv_heads: 4 heads", "3 key and value", "such as 2"]),
        ({"model": {"num_heads": 4, "num_kv_heads": 8}}, ["num_kv_heads: 4 heads", "8 key and value", "such as 4"]),
        ({"parallel": {"kind": "single"}, "hardware": {"num_processes": 2}}, ["parallel.kind: single", "there are 2"]),
        ({"parallel": {"kind": "ddp", "sync_batch_norm": True}}, ["sync_batch_norm", "GPUs only", "no NVIDIA driver"]),
        (
            {"parallel": {"kind": "data_parallel"}, "hardware": {"num_processes": 2}},
            ["hardware.num_processes: asks for 2, and data_parallel is one process", "parallel.replicas to 2"],
        ),
        (
            {"parallel": {"kind": "ddp", "power_sgd_rank": 2}},
            ["power_sgd_rank: 2, and parallel.compression is none", "set parallel.compression to power_sgd"],
        ),
        (
            {"parallel": {"kind": "ddp", "power_sgd_start": 10, "compression": "bf16"}},
            ["power_sgd_start: 10, and parallel.compression is bf16"],
        ),
        (
            {
                "parallel": {"kind": "ddp", "balance": "measured"},
                "train": {"global_batch": None, "batch_size_per_gpu": 2},
            },
            ["parallel.balance: measured, and train.batch_size_per_gpu gives each GPU the same", "train.global_batch"],
        ),
        (
            {
                "parallel": {"kind": "ddp", "balance": "measured"},
                "data": {"kind": "datasets", "path": "rows", "streaming": True},
            },
            ["parallel.balance: measured, and data.streaming reads rows as they come", "data.streaming to false"],
        ),
        (
            {"parallel": {"kind": "fsdp", "offload": True}},
            ["parallel.offload: keeps shards in the host's memory, and the run is on the CPU", "leave it out"],
        ),
        ({"parallel": {"backend": "nccl"}}, ["parallel.backend: nccl", "no NVIDIA driver", "auto or gloo"]),
        ({"train": {"precision": "tf32"}}, ["train.precision: tf32", "on the CPU", "auto or fp32"]),
        ({"hardware": {"device": "cuda"}}, ["hardware.device: asks for a GPU", "no NVIDIA driver", "auto or cpu"]),
        ({"hardware": {"gpus": [0]}}, ["'0' in hardware.gpus is not a visible GPU", "no NVIDIA driver"]),
        ({"hardware": {"gpus": [0], "device": "cpu"}}, ["hardware.gpus: names GPUs", "asks for cpu"]),
    ],
)
def test_refused_on_a_machine_without_gpu(sections: Sections, parts: list[str]) -> None:
    message = refusal(sections)
    assert all(part in message for part in parts), message


@pytest.mark.parametrize(
    ("sections", "parts"),
    [
        ({"hardware": {"gpus": [0, 7]}}, ["'7' in hardware.gpus is not a visible GPU", "GPU-0001"]),
        ({"hardware": {"gpus": ["GPU-9"]}}, ["'GPU-9' in hardware.gpus is not a visible GPU"]),
        ({"hardware": {"gpus": [0, 0]}}, ["names GPU 0 (GPU-0000) twice"]),
        ({"hardware": {"gpus": []}}, ["names no GPU"]),
        ({"hardware": {"device": "cpu"}, "parallel": {"backend": "nccl"}}, ["nccl", "hardware.device asks for cpu"]),
        ({"hardware": {"device": "cpu"}, "train": {"precision": "tf32"}}, ["tf32", "hardware.device asks for cpu"]),
    ],
)
def test_refused_on_a_machine_with_two_gpus(sections: Sections, parts: list[str]) -> None:
    message = refusal(sections, h100s(2))
    assert all(part in message for part in parts), message


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_what_came_with_ampere_is_refused_before_it(precision: str) -> None:
    message = refusal({"train": {"precision": precision}}, machine((8, 0), (7, 5)))
    assert f"train.precision: {precision} needs compute capability 8.0 (Ampere), and GPU 1, Card 1, has 7.5" in message
    assert ("auto or fp16" if precision == "bf16" else "auto or fp32") in message
    only_new = run(train={"precision": precision}, hardware={"gpus": [0]})
    assert resolve(only_new, machine((8, 0), (7, 5))).precision == precision, "a GPU that is not used does not count"
    assert resolve(run(train={"precision": precision}), machine(None)).precision == precision, (
        "nothing speaks against it"
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_what_a_cpu_computes_is_allowed_there(precision: str) -> None:
    plan = resolve(run(train={"precision": precision}), CPU)
    assert plan.precision == precision
    assert precision in plan.reasons["precision"]


def test_a_started_world_must_be_the_one_that_was_asked_for() -> None:
    message = refusal({"hardware": {"num_processes": 2}}, CPU, World())
    assert "hardware.num_processes: asks for 2, but python started 1" in message
    assert "drumline launch script.py" in message
    assert "set hardware.num_processes to 1" in message
    assert "asks for 2, but torch elastic started 4" in refusal({"hardware": {"num_processes": 2}}, CPU, world(8, 4))
    assert resolve(run(hardware={"num_processes": 4}), CPU, world(8, 4)).world_size == 8


def test_single_is_one_process_however_it_was_started() -> None:
    message = refusal({"parallel": {"kind": "single"}}, CPU, world(4, 2))
    assert (
        "parallel.kind: single is one process, and there are 4 (torch elastic started 4, 2 on this machine)" in message
    )


def test_data_parallel_is_one_process_however_it_was_started() -> None:
    message = refusal({"parallel": {"kind": "data_parallel"}}, h100s(4), world(4))
    assert "data_parallel is one process with a replica a GPU, and there are 4 processes (torch elastic" in message
    assert "python script.py" in message
    assert resolve(run(parallel={"kind": "data_parallel"}), h100s(4), world(1)).num_shards == 4


def test_on_gpus_there_is_a_replica_a_gpu() -> None:
    message = refusal({"parallel": {"kind": "data_parallel", "replicas": 2}}, h100s(3), World())
    assert "parallel.replicas: 2, and on GPUs there is one a GPU: 0 (Card 0), 1 (Card 1), 2 (Card 2)" in message
    assert "hardware.gpus" in message


def test_shards_must_divide_the_processes() -> None:
    def sharded(size: int) -> Sections:
        return {"parallel": {"kind": "fsdp", "shard_size": size}}

    message = refusal(sharded(3), h100s(8))
    assert "parallel.shard_size: 3 does not divide 8 processes" in message
    assert "such as 2" in message
    assert "such as 8" in refusal(sharded(16), h100s(8), world(8)), "more than there are"
    assert "such as 5" in refusal(sharded(2), CPU, world(5)), "a prime number"
    for size in (1, 2, 4, 8):
        assert resolve(run(**sharded(size)), h100s(8)).kind == "fsdp"
    assert resolve(run(**sharded(4)), CPU).world_size == 1, "which computes what single would"


def test_a_started_world_needs_a_gpu_a_process() -> None:
    message = refusal({}, h100s(2), world(6, 3))
    assert "torch elastic started 3 processes on this machine, each needs a GPU, and there are 2" in message
    assert resolve(run(hardware={"device": "cpu"}), h100s(2), world(6, 3)).device == "cpu"


def test_slurm_may_show_each_process_only_its_own_gpu() -> None:
    plan = resolve(run(), h100s(1), world(8, 4, "slurm"))
    assert (plan.world_size, plan.gpus) == (8, ("GPU-0000",))
    assert "started 3 processes" in refusal({}, h100s(2), world(3, 3, "slurm"))


def test_a_warm_up_as_long_as_the_run_is_allowed() -> None:
    assert resolve(run(train={"schedule": {"warmup_steps": 10}}), CPU).steps == 10


def test_a_warm_up_longer_than_the_epochs_is_refused_once_they_have_a_length() -> None:
    config = run(train={"max_steps": None, "epochs": 2, "schedule": {"warmup_steps": 5}})
    assert resolve(config, CPU).steps is None
    assert resolve(config, CPU, num_rows=24).steps == 6
    with pytest.raises(ConfigError, match="5 updates of warm-up, but the run ends after 4"):
        resolve(config, CPU, num_rows=16)


def test_early_stopping_with_held_out_data_or_with_a_library_users_own_is_allowed() -> None:
    early: Sections = {"evaluate": {"early_stopping": {}}}
    assert resolve(run(**early, data={**TEXT, "eval": ["b"]}), CPU)
    assert resolve(run(**early, data={"kind": "random_tokens", "num_eval_rows": 4}), CPU)
    assert resolve(run(**early), CPU)


@pytest.mark.parametrize(
    "sections",
    [
        {"track": {"gradient_noise": True}, "train": {"micro_batch": 4}},
        {"track": {"gradient_noise": True}, "hardware": {"num_processes": 2}},
        {
            "track": {"gradient_noise": True},
            "train": {"global_batch": None, "batch_size_per_gpu": 4, "gradient_accumulation_steps": 2},
        },
        {"train": {"averaging": {"start": 0.9}}},
        {"train": {"averaging": {"start": 0.5, "every": 5}}},
        {"train": {"schedule": {"name": "torch", "scheduler": "ReduceLROnPlateau", "interval": "evaluation"}}},
        {
            "data": {**TEXT, "eval": ["b"]},
            "train": {"schedule": {"name": "torch", "scheduler": "StepLR", "interval": "evaluation"}},
        },
        {"parallel": {"kind": "ddp", "compression": "power_sgd", "power_sgd_rank": 2, "power_sgd_start": 3}},
        {"parallel": {"kind": "ddp", "balance": "measured"}},
        {"parallel": {"kind": "data_parallel", "replicas": 2}, "track": {"gradient_noise": True}},
        {"train": {"schedule": {"interval": "epoch"}}},  # for a scheduler that is handed in
        {"train": {"optimizer": {"rules": [{"pattern": "*", "freeze": True}, {"pattern": "b.*", "lr_factor": 2}]}}},
    ],
)
def test_allowed(sections: Sections) -> None:
    assert resolve(run(**sections), CPU).world_size >= 1


def test_a_training_set_without_rows_is_refused() -> None:
    with pytest.raises(DataError, match="training set is empty"):
        resolve(run(), CPU, num_rows=0)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    sections: Sections = {
        "train": {"batch_size_per_gpu": 4, "max_steps": None, "precision": "tf32"},
        "hardware": {"gpus": [3]},
        "parallel": {"backend": "nccl"},
    }
    lines = refusal(sections).splitlines()
    keys = [
        "hardware.gpus",
        "train.global_batch",
        "train.epochs",
        "parallel.backend",
        "train.precision",
        "fix: correct all 5",
    ]
    assert len(lines) == len(keys)
    assert all(key in line for line, key in zip(lines, keys, strict=True)), lines
