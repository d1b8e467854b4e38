"""What a plan holds, and that each number comes with its reason."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from drumline.config.train import ScheduleConfig
from drumline.hardware.records import Hardware
from drumline.launcher.world import World
from drumline.plan.record import Plan
from drumline.plan.resolve import resolve
from drumline.plan.schedule import lr_factor
from tests.unit.plan.machines import h100s, machine, run, world

CPU = machine()
DATA_PARALLEL = {"parallel": {"kind": "data_parallel"}}


def test_every_number_has_its_reason() -> None:
    names = [field.name for field in fields(Plan) if field.name != "reasons"]
    for hardware, started, rows in ((CPU, None, None), (h100s(4), world(8, 4), 100), (machine((7, 5)), World(), 8)):
        plan = resolve(run(), hardware, started, rows)
        assert sorted(plan.reasons) == sorted(names)
        assert all(plan.reasons.values())
        assert list(plan.to_json()) == [*names, "reasons"]


def test_the_same_question_has_the_same_answer() -> None:
    assert resolve(run(), h100s(2), world(2), 9) == resolve(run(), h100s(2), world(2), 9)


@pytest.mark.parametrize(
    ("hardware", "sections", "started", "expected", "why"),
    [
        (CPU, {}, None, ("single", "cpu", 1, "none"), "does not ask for more on the CPU"),
        (CPU, {"hardware": {"num_processes": 2}}, None, ("ddp", "cpu", 2, "gloo"), "num_processes asks for 2"),
        (CPU, {}, world(3), ("ddp", "cpu", 3, "gloo"), "torch elastic started 3, 3 on this machine"),
        (CPU, {}, World(), ("single", "cpu", 1, "none"), "one process, started by python"),
        (CPU, {"parallel": {"kind": "ddp"}}, None, ("ddp", "cpu", 1, "gloo"), "one process"),
        (h100s(4), {}, None, ("ddp", "cuda", 4, "nccl"), "one process a GPU, 4 GPUs"),
        (h100s(1), {}, None, ("single", "cuda", 1, "none"), "one process a GPU, 1 GPU"),
        (h100s(4), {"hardware": {"num_processes": 2}}, None, ("ddp", "cuda", 4, "nccl"), "one process a GPU"),
        (h100s(4), {"parallel": {"kind": "single"}}, None, ("single", "cuda", 1, "none"), "parallel.kind is single"),
        (h100s(4), {"parallel": {"backend": "gloo"}}, None, ("ddp", "cuda", 4, "gloo"), "4 GPUs"),
        (h100s(4), {"hardware": {"device": "cpu"}}, None, ("single", "cpu", 1, "none"), "on the CPU"),
        (h100s(4), {}, world(16, 4), ("ddp", "cuda", 16, "nccl"), "torch elastic started 16, 4 on this machine"),
        (h100s(4), DATA_PARALLEL, None, ("data_parallel", "cuda", 1, "none"), "is data_parallel: one process"),
        (h100s(4), DATA_PARALLEL, World(), ("data_parallel", "cuda", 1, "none"), "one process, started by python"),
        (CPU, DATA_PARALLEL, None, ("data_parallel", "cpu", 1, "none"), "is data_parallel: one process"),
        (CPU, {"parallel": {"kind": "fsdp"}}, world(2), ("fsdp", "cpu", 2, "gloo"), "torch elastic started 2"),
    ],
)
def test_devices_and_processes(
    hardware: Hardware, sections: dict[str, Any], started: World | None, expected: tuple[str, str, int, str], why: str
) -> None:
    plan = resolve(run(**sections), hardware, started)
    assert (plan.kind, plan.device, plan.world_size, plan.backend) == expected
    assert why in plan.reasons["world_size"]


def test_gpus_are_named_by_uuid_one_a_local_process() -> None:
    assert resolve(run(), h100s(2)).gpus == ("GPU-0000", "GPU-0001")
    assert resolve(run(hardware={"gpus": [1, "GPU-0000"]}), h100s(3)).gpus == ("GPU-0001", "GPU-0000")
    assert resolve(run(hardware={"gpus": [2]}), h100s(3)).gpus == ("GPU-0002",)
    assert resolve(run(), h100s(4), world(6, 2)).gpus == ("GPU-0000", "GPU-0001")
    assert resolve(run(), CPU).gpus == ()


def test_data_parallel_has_a_shard_a_gpu_in_one_process() -> None:
    plan = resolve(run(**DATA_PARALLEL), h100s(4), World())
    assert (plan.num_shards, plan.world_size, plan.micro_batch) == (4, 1, 2)
    assert plan.gpus == ("GPU-0000", "GPU-0001", "GPU-0002", "GPU-0003")
    assert plan.reasons["num_shards"] == "a replica a GPU, 4 GPUs, all in one process"
    assert "8 samples an update over 4 shards: 2 each" in plan.reasons["accumulation"]
    assert "drumline launch" not in plan.reasons["world_size"]
    named = resolve(run(**DATA_PARALLEL, hardware={"gpus": [3, 1]}), h100s(4))
    assert (named.num_shards, named.gpus) == (2, ("GPU-0003", "GPU-0001"))
    same = {"kind": "data_parallel", "replicas": 4}
    assert resolve(run(parallel=same), h100s(4)).num_shards == 4, "as many as there are"


def test_data_parallel_on_the_cpu_has_the_replicas_that_were_asked_for() -> None:
    plan = resolve(run(parallel={"kind": "data_parallel", "replicas": 3}), CPU, World())
    assert (plan.num_shards, plan.world_size, plan.gpus) == (3, 1, ())
    assert "8 samples an update over 3 shards: 2 or 3 each" in plan.reasons["accumulation"]
    assert resolve(run(**DATA_PARALLEL), CPU).num_shards == 1
    per_gpu = {"global_batch": None, "batch_size_per_gpu": 4}
    assert resolve(run(parallel={"kind": "data_parallel", "replicas": 3}, train=per_gpu), CPU).global_batch == 12


def test_every_other_kind_has_a_shard_a_process() -> None:
    assert resolve(run(), h100s(4), world(8, 4)).num_shards == 8
    assert resolve(run(parallel={"kind": "fsdp"}), CPU, world(2)).num_shards == 2


@pytest.mark.parametrize(("cores", "workers"), [(64, 16), (12, 8), (8, 4), (7, 0)])
def test_loader_workers_of_one_process_with_four_gpus(cores: int, workers: int) -> None:
    plan = resolve(run(**DATA_PARALLEL), h100s(4, cores), World())
    assert plan.num_workers == workers
    assert f"{cores} cores for 4 replicas" in plan.reasons["num_workers"]
    on_cpu = {"kind": "data_parallel", "replicas": 4}
    assert resolve(run(parallel=on_cpu), machine(cores=8)).num_workers == 4, "these take turns"


def test_plain_python_says_how_to_use_the_other_gpus() -> None:
    why = resolve(run(), h100s(8), World()).reasons["world_size"]
    assert "1 of 8 GPUs" in why
    assert "drumline launch script.py" in why
    for hardware, started in ((h100s(1), World()), (CPU, World()), (h100s(8), world(1)), (h100s(8), None)):
        assert "drumline launch" not in resolve(run(), hardware, started).reasons["world_size"]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_one_process_under_a_kind_for_several_is_allowed_and_said(kind: str) -> None:
    assert "one process" in resolve(run(parallel={"kind": kind}), CPU).reasons["kind"]
    assert "one process" not in resolve(run(parallel={"kind": kind}), CPU, world(2)).reasons["kind"]


@pytest.mark.parametrize("micro", [1, 2, 3, 4, 5, "auto"])
def test_shares_passes_and_micro_batches_cover_the_global_batch(micro: int | str) -> None:
    for total in range(1, 18):
        for shards in range(1, 5):
            plan = resolve(run(train={"global_batch": total, "micro_batch": micro}), CPU, world(shards))
            shares = [total * (rank + 1) // shards - total * rank // shards for rank in range(shards)]
            assert sum(shares) == plan.global_batch == total
            assert max(shares) <= plan.micro_batch * plan.accumulation, "every share fits in"
            assert max(shares) > plan.micro_batch * (plan.accumulation - 1), "no pass is without use"
            assert plan.micro_batch <= max(shares)
            assert micro == "auto" or plan.micro_batch <= int(micro)


@pytest.mark.parametrize(
    ("train", "shards", "expected", "why"),
    [
        (
            {"global_batch": 64, "micro_batch": 16},
            2,
            (64, 16, 2),
            "64 samples an update over 2 shards: 32 each, in 2 passes of 16",
        ),
        (
            {"global_batch": 10, "micro_batch": 2},
            3,
            (10, 2, 2),
            "10 samples an update over 3 shards: 3 or 4 each, in 2 passes of at most 2",
        ),
        ({"global_batch": 8}, 2, (8, 4, 1), "8 samples an update over 2 shards: 4 each, in one pass"),
        ({"global_batch": 1}, 1, (1, 1, 1), "1 sample an update over 1 shard: 1 each, in one pass"),
        ({"global_batch": 3}, 4, (3, 1, 1), "1 each in 3 of them, the others take part with weight zero, in one pass"),
        ({"global_batch": 8, "micro_batch": 100}, 2, (8, 4, 1), "4 each, in one pass"),
    ],
)
def test_the_global_batch_over_the_shards(
    train: dict[str, Any], shards: int, expected: tuple[int, int, int], why: str
) -> None:
    plan = resolve(run(train=train), CPU, world(shards))
    assert (plan.global_batch, plan.micro_batch, plan.accumulation) == expected
    assert why in plan.reasons["accumulation"]


def test_a_micro_batch_larger_than_the_share_is_cut_and_said() -> None:
    why = resolve(run(train={"micro_batch": 100}), CPU, world(2)).reasons["micro_batch"]
    assert why == "train.micro_batch asks for 100, and a shard's whole share is 4"
    assert resolve(run(), CPU, world(2)).reasons["micro_batch"] == "auto: the whole share of a shard, 4"


def test_a_batch_per_gpu_is_multiplied_up() -> None:
    train = {"global_batch": None, "batch_size_per_gpu": 4, "gradient_accumulation_steps": 3}
    plan = resolve(run(train=train), CPU, world(2))
    assert (plan.global_batch, plan.micro_batch, plan.accumulation) == (24, 4, 3)
    assert plan.reasons["global_batch"] == "batch_size_per_gpu 4 x 3 passes x 2 shards = 24 an update"
    assert "12 each, in 3 passes of 4" in plan.reasons["accumulation"]
    plan = resolve(run(train={"global_batch": None, "batch_size_per_gpu": 4}), CPU)
    assert (plan.global_batch, plan.micro_batch, plan.accumulation) == (4, 4, 1)


@pytest.mark.parametrize(
    ("hardware", "precision", "why"),
    [
        (CPU, "fp32", "CPU"),
        (machine((8, 0), (9, 0)), "bf16", "8.0 or above"),
        (machine((8, 6)), "bf16", "8.0 or above"),
        (machine((9, 0), (7, 5)), "fp16", "GPU 1 has compute capability 7.5"),
        (machine((7, 0)), "fp16", "7.0"),
        (machine((9, 0), None), "fp16", "GPU 1 is not known"),
    ],
)
def test_precision_follows_the_oldest_gpu(hardware: Hardware, precision: str, why: str) -> None:
    plan = resolve(run(), hardware)
    assert plan.precision == precision
    assert why in plan.reasons["precision"]


@pytest.mark.parametrize(
    ("cores", "local_size", "workers"),
    [(1, 1, 0), (2, 1, 1), (2, 2, 0), (3, 2, 0), (4, 2, 1), (6, 2, 2), (8, 1, 4), (64, 8, 4), (15, 8, 0), (16, 8, 1)],
)
def test_loader_workers_leave_a_core_for_training(cores: int, local_size: int, workers: int) -> None:
    plan = resolve(run(), machine(cores=cores), world(2 * local_size, local_size))
    assert plan.num_workers == workers
    assert str(cores) in plan.reasons["num_workers"]


def test_loader_workers_that_were_asked_for_are_taken() -> None:
    plan = resolve(run(loader={"num_workers": 7}), machine(cores=1))
    assert plan.num_workers == 7
    assert plan.reasons["num_workers"] == "loader.num_workers asks for 7"


@pytest.mark.parametrize(
    ("train", "rows", "steps", "per_epoch", "why"),
    [
        ({"max_steps": 10}, None, 10, None, "train.max_steps asks for 10"),
        ({"max_steps": 10}, 20, 10, 3, "train.max_steps asks for 10"),
        ({"max_steps": None, "epochs": 2}, 20, 6, 3, "2 epochs of 3 updates = 6"),
        ({"max_steps": None, "epochs": 1}, 1, 1, 1, "1 epoch of 1 update = 1"),
        ({"max_steps": 10, "epochs": 2}, 20, 6, 3, "2 epochs of 3 updates = 6, which ends before train.max_steps 10"),
        ({"max_steps": 5, "epochs": 2}, 20, 5, 3, "train.max_steps 5 ends before 2 epochs of 3 updates = 6"),
        ({"max_steps": 6, "epochs": 2}, 20, 6, 3, "2 epochs of 3 updates = 6"),
        ({"max_steps": None, "epochs": 2}, None, None, None, "not known before the data is read"),
        ({"max_steps": 5, "epochs": 2}, None, None, None, "but at most train.max_steps 5"),
    ],
)
def test_steps(train: dict[str, Any], rows: int | None, steps: int | None, per_epoch: int | None, why: str) -> None:
    plan = resolve(run(train=train), CPU, num_rows=rows)
    assert (plan.steps, plan.steps_per_epoch) == (steps, per_epoch)
    assert why in plan.reasons["steps"]


def test_the_shorter_last_update_is_said() -> None:
    assert resolve(run(), CPU, num_rows=20).reasons["steps_per_epoch"] == "20 rows in updates of 8, the last of 4"
    assert resolve(run(), CPU, num_rows=16).reasons["steps_per_epoch"] == "16 rows in updates of 8"


def test_random_rows_are_counted_before_there_is_data() -> None:
    config = run(train={"max_steps": None, "epochs": 1}, data={"kind": "random_tokens", "num_rows": 17})
    assert resolve(config, CPU).steps == 3
    assert resolve(config, CPU, num_rows=8).steps == 1


def test_the_learning_rates_are_the_same_for_any_world_and_accumulation() -> None:
    sequences = set()
    for shards in (1, 2, 3, 4):
        for micro in (1, 3, "auto"):
            config = run(train={"max_steps": None, "epochs": 3, "micro_batch": micro})
            plan = resolve(config, CPU, world(shards), num_rows=21)
            assert plan.steps is not None
            schedule = ScheduleConfig(warmup_steps=2)
            sequences.add(tuple(lr_factor(schedule, step, plan.steps) for step in range(plan.steps)))
    (sequence,) = sequences
    assert len(sequence) == 9


def test_on_a_gpu_the_size_is_found_by_trials() -> None:
    found = "auto: the whole share of a shard, 4, or as many as trials at the start find to fit"
    assert resolve(run(), h100s(2), world(2)).reasons["micro_batch"] == found


def test_excluded_gpus_and_a_count_are_heeded_where_nobody_has_chosen() -> None:
    assert resolve(run(hardware={"exclude": ["0"]}), h100s(3), world(2)).gpus == ("GPU-0001", "GPU-0002")
    assert resolve(run(hardware={"count": 2}), h100s(3)).gpus == ("GPU-0000", "GPU-0001")
    # In a worker, which sees what was chosen, both change nothing.
    assert resolve(run(hardware={"count": 2, "exclude": ["7"]}), h100s(2), world(2)).gpus == ("GPU-0000", "GPU-0001")
