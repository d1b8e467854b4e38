"""Bytes of training by arithmetic, and what `kind: auto` makes of them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from drumline.hardware.records import Gpu, Hardware, Host
from drumline.launcher.world import World
from drumline.plan.memory import GIB, ModelFacts, gib, replicated, room, sharded
from drumline.plan.record import Plan
from drumline.plan.resolve import resolve
from tests.unit.plan.machines import h100s, machine, run, world

MILLION = 1_000_000
SMALL = ModelFacts(124_439_808, 124_439_808, 4 * 124_439_808, 0, 4 * 39_000_000, 512 * 2**20, 256 * 2**20, GIB // 4)
"""About GPT-2's, 12 GiB of activations for 15 samples."""
LARGE = ModelFacts(
    8_000 * MILLION, 8_000 * MILLION, 32_000 * MILLION, 0, 2_000 * MILLION, 2 * GIB, GIB, 16_000 * MILLION
)


def cards(*sizes: int | None) -> Hardware:
    """A machine whose GPUs have so many GiB."""
    gpus = [
        Gpu(f"GPU-{i}", f"Card {i}", i, None if size is None else size * GIB, (9, 0)) for i, size in enumerate(sizes)
    ]
    return Hardware(tuple(gpus), Host(16, 64 * GIB, "here"), "nvml 1.0")


def plan(facts: ModelFacts | None, there: Hardware, started: World | None = None, **sections: Any) -> Plan:
    return resolve(run(**sections), there, started, None, facts)


def test_facts_go_through_json() -> None:
    assert ModelFacts.from_json(json.loads(json.dumps(LARGE.to_json()))) == LARGE


@pytest.mark.parametrize(
    ("train", "per_parameter"),
    [
        ({}, 16),
        ({"optimizer": {"state_precision": "bf16"}}, 12),
        ({"optimizer": {"state_precision": "int8"}}, 10.125),
        ({"optimizer": {"name": "sgd"}}, 8),
        ({"optimizer": {"name": "sgd", "momentum": 0.9}}, 12),
        ({"averaging": {}}, 20),
        ({"optimizer": {"state_precision": "fp16"}, "averaging": {}}, 16),
    ],
)
def test_bytes_of_a_trained_parameter(train: dict[str, Any], per_parameter: float) -> None:
    need = replicated(SMALL, run(train=train), "bf16", 1)
    assert need.per_trained == per_parameter
    assert need.state == per_parameter * SMALL.num_parameters


def test_what_is_frozen_takes_its_weights_only_and_half_precision_half() -> None:
    frozen = replace(SMALL, num_trainable=MILLION)
    assert replicated(frozen, run(), "fp32", 1).state == 16 * MILLION + 4 * (SMALL.num_parameters - MILLION)
    narrow = replace(SMALL, parameter_bytes=2 * SMALL.num_parameters)
    assert replicated(narrow, run(), "fp32", 1).per_trained == 8
    assert replicated(narrow, run(train={"averaging": {}}), "fp32", 1).per_trained == 12, "an average is float32"


def test_buckets_apart_from_the_gradients_are_a_copy_of_them() -> None:
    config = run(parallel={"kind": "ddp", "gradient_as_bucket_view": False})
    assert replicated(SMALL, config, "fp32", 1).per_trained == 20


def test_copies_in_half_precision_count_once() -> None:
    unknown = replace(SMALL, activation_bytes=None)
    assert replicated(unknown, run(), "bf16", 1).per_trained == 18
    assert replicated(unknown, run(), "fp32", 1).per_trained == 16
    assert replicated(SMALL, run(), "bf16", 1).per_trained == 16, "the dry pass has counted them"


def test_activations_are_those_of_one_micro_batch() -> None:
    assert replicated(SMALL, run(), "bf16", 15).activations == 15 * (512 + 256) * 2**20 + GIB // 4
    assert replicated(replace(SMALL, activation_bytes=None), run(), "bf16", 15).activations is None


def test_shards_and_what_is_gathered() -> None:
    need = sharded(LARGE, run(), "bf16", 2, 8)
    assert need.state == 16 * LARGE.num_parameters // 8
    assert need.gathered == 2 * LARGE.block_bytes, "two blocks in bf16 and one's gradients in float32"
    assert sharded(LARGE, run(), "fp32", 2, 8).gathered == 3 * LARGE.block_bytes
    assert need.activations == 2 * 3 * GIB, "no copy of all weights"
    hybrid = run(parallel={"kind": "fsdp", "shard_size": 2})
    assert sharded(LARGE, hybrid, "bf16", 2, 8).state == 16 * LARGE.num_parameters // 2
    away = run(parallel={"kind": "fsdp", "offload": True})
    assert sharded(LARGE, away, "bf16", 2, 8).state == 0


def test_room_is_that_of_the_smallest_device() -> None:
    there = room(cards(80, 40, 80).gpus, 1.0)
    assert there is not None
    assert there.whole == 40 * GIB
    assert there.usable == int(38 * GIB * 0.9)
    half = room(cards(80).gpus, 0.5)
    assert half is not None
    assert half.usable == int(40 * GIB * 0.9)
    assert room(cards(80, None).gpus, 1.0) is None
    assert room((), 1.0) is None


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0.0 MiB"), (300_000, "0.3 MiB"), (GIB // 5, "0.2 GiB"), (1.94 * GIB, "1.9 GiB"), (80 * GIB, "80 GiB")],
)
def test_bytes_for_people(number: float, text: str) -> None:
    assert gib(number) == text


def test_a_small_model_is_replicated() -> None:
    found = plan(SMALL, h100s(8), train={"global_batch": 120})
    said = "124,439,808 parameters x 16 bytes = 1.9 GiB and 12 GiB of activations fit 80 GiB"
    assert found.kind == "ddp"
    assert found.reasons["kind"] == f"auto: {said}: ddp"
    assert found.reasons["memory_bytes"] == said
    assert found.memory_bytes == 16 * 124_439_808 + 15 * 768 * 2**20 + GIB // 4


def test_a_model_too_large_for_a_device_is_sharded() -> None:
    found = plan(LARGE, h100s(8))
    assert found.kind == "fsdp"
    assert found.backend == "nccl"
    assert found.reasons["kind"] == (
        "auto: 8,000,000,000 parameters x 16 bytes = 119 GiB and 18 GiB of activations do not fit 80 GiB (70 GiB of "
        "them to be planned with); over 8 shards 15 GiB each, 3.7 GiB of gathered blocks and 3.0 GiB of activations "
        "fit 80 GiB: fsdp"
    )
    assert plan(LARGE, h100s(8), world(64, 8)).kind == "fsdp"
    assert "over 64 shards 1.9 GiB each" in plan(LARGE, h100s(8), world(64, 8)).reasons["kind"]


def test_the_micro_batch_decides_too() -> None:
    assert plan(SMALL, h100s(2), train={"global_batch": 120}).kind == "ddp", "60 samples of 768 MiB"
    found = plan(SMALL, h100s(2), train={"global_batch": 240})
    assert found.kind == "fsdp"
    assert found.reasons["kind"].endswith(
        "which may run out of memory; train.checkpointing.kind full or a train.micro_batch below 120 would help"
    )
    assert plan(SMALL, h100s(2), train={"global_batch": 240, "micro_batch": 8}).kind == "ddp"


def test_what_fits_nowhere_is_sharded_with_advice() -> None:
    number = 80_000 * MILLION
    huge = replace(LARGE, num_parameters=number, num_trainable=number, parameter_bytes=4 * number)
    why = plan(huge, h100s(8)).reasons["kind"]
    assert ": fsdp, which may run out of memory; " in why
    for help_ in ("more GPUs", "parallel.offload", "state_precision bf16", "checkpointing.kind full"):
        assert help_ in why
    done = {"optimizer": {"state_precision": "bf16"}, "checkpointing": {"kind": "full"}}
    why = plan(huge, h100s(8), train=done).reasons["kind"]
    assert why.endswith("; more GPUs or parallel.offload with parallel.kind fsdp would help")


def test_one_process_is_single_whatever_fits() -> None:
    assert plan(SMALL, h100s(1)).reasons["kind"] == "auto: one process has nobody to share with"
    found = plan(LARGE, h100s(1))
    assert found.kind == "single"
    assert "it may run out of memory, as 8,000,000,000 parameters x 16 bytes = 119 GiB" in found.reasons["kind"]
    assert "parallel.kind fsdp over several GPUs" in found.reasons["kind"]


def test_a_kind_that_was_asked_for_is_kept() -> None:
    found = plan(LARGE, h100s(4), parallel={"kind": "ddp"})
    assert found.kind == "ddp"
    assert found.reasons["kind"].startswith("parallel.kind asks for ddp; it may run out of memory, as 8,000")
    assert plan(SMALL, h100s(4), parallel={"kind": "fsdp"}).reasons["kind"] == "parallel.kind asks for fsdp"
    assert plan(SMALL, h100s(4), parallel={"kind": "data_parallel"}).kind == "data_parallel"
    alone = plan(LARGE, h100s(1), parallel={"kind": "fsdp"})
    assert "it computes what single would; it may run out of memory" in alone.reasons["kind"]


def test_without_facts_ddp_and_it_is_said() -> None:
    found = plan(None, h100s(4))
    assert (found.kind, found.memory_bytes) == ("ddp", None)
    assert found.reasons["kind"].endswith("was not looked at: the size of the model is not known here")
    assert found.reasons["memory_bytes"] == "not known: the size of the model is not known here"
    silent = plan(LARGE, cards(80, None, None))
    assert silent.kind == "ddp"
    assert silent.reasons["kind"].endswith("the memory of GPU 1 and 2 is not known")
    cpu = plan(LARGE, machine(), world(2))
    assert (cpu.kind, cpu.memory_bytes) == ("ddp", None)
    assert cpu.reasons["memory_bytes"] == "not known: memory is not planned on the CPU"


def test_without_activations_the_state_may_take_half() -> None:
    unknown = replace(SMALL, activation_bytes=None, note="RuntimeError: no kernel")
    found = plan(unknown, h100s(2))
    assert found.kind == "ddp"
    assert found.reasons["kind"] == (
        "auto: 124,439,808 parameters x 18 bytes = 2.1 GiB leave half or more of 80 GiB (70 GiB of them to be planned "
        "with) to activations, which are not known (RuntimeError: no kernel): ddp"
    )
    assert plan(unknown, cards(6, 6)).kind == "fsdp"
    assert "leave less than half of 6.0 GiB" in plan(unknown, cards(6, 6)).reasons["kind"]


def test_the_least_memory_of_unlike_devices_decides() -> None:
    assert plan(SMALL, cards(80, 80), train={"global_batch": 60}).kind == "ddp"
    assert plan(SMALL, cards(80, 24), train={"global_batch": 60}).kind == "fsdp"
    assert plan(SMALL, cards(80, 80), train={"global_batch": 60}, hardware={"memory_fraction": 0.3}).kind == "fsdp"
