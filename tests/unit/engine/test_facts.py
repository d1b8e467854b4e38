"""What is counted of a user's model before its run is planned, and what auto makes of it; no GPU is touched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from drumline.data.source import as_source
from drumline.engine.facts import agreed, known, planned
from drumline.engine.start import Parts
from drumline.hardware.records import Gpu, Hardware, Host
from drumline.launcher.world import World
from drumline.models.decoder import Decoder, DecoderShape
from drumline.parallel.groups import Groups
from drumline.parallel.side_channel import Alone
from drumline.plan.memory import GIB
from drumline.plan.record import Plan
from drumline.tasks import LanguageModelling, choose_task
from tests.unit.plan.machines import h100s, machine, run, world


class Tokens(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        return {"input_ids": torch.arange(32), "labels": torch.arange(32)}


def plan(
    hardware: Hardware, started: World, *, model: nn.Module | None = None, loss: Any = None, **sections: Any
) -> Plan:
    if model is None:
        model = Decoder(DecoderShape("gpt2", 4, 4, 4, 64, 256, 0.0, True, 512, 32))
    config = run(**sections)
    tasks = {"main": LanguageModelling(512) if loss is None else choose_task(model, loss)}
    parts = Parts(config, model, tasks, as_source(Tokens()), None, {"main": None}, {"main": None})
    return planned(parts, config, hardware, started)


def small(mib: int) -> Hardware:
    """Two GPUs with little memory over the reserve."""
    gpus = tuple(Gpu(f"GPU-{i}", "Card", i, 2 * GIB + (mib << 20), (9, 0)) for i in range(2))
    return Hardware(gpus, Host(16, 64 * GIB, "here"), "nvml 1.0")


def test_auto_counts_parameters_and_activations() -> None:
    found = plan(h100s(2), world(2), train={"global_batch": 64})
    assert found.kind == "ddp"
    assert found.reasons["kind"].startswith("auto: 234,880 parameters x 16 bytes = 3.6 MiB and ")
    assert found.memory_bytes is not None
    assert 10 << 20 < found.memory_bytes < 40 << 20


def test_auto_shards_where_a_device_is_too_small() -> None:
    assert plan(small(40), world(2), train={"global_batch": 64}).kind == "ddp"
    found = plan(small(15), world(2), train={"global_batch": 64})
    assert found.kind == "fsdp"
    assert "of activations do not fit 2.0 GiB" in found.reasons["kind"]
    less = {"global_batch": 64, "checkpointing": {"kind": "full"}}
    assert plan(small(15), world(2), train=less).kind == "ddp", "checkpointed blocks keep less"


@pytest.mark.parametrize(
    "train",
    [
        {"checkpointing": {"kind": "full"}},
        {"checkpointing": {"kind": "selective", "every": 2}},
        {"checkpointing": {"kind": "budget", "budget": 0.3}, "compile": "whole"},
    ],
    ids=lambda value: str(value["checkpointing"]["kind"]),
)
def test_checkpointing_is_planned_with(train: dict[str, Any]) -> None:
    whole = plan(h100s(2), world(2), train={"global_batch": 64}).memory_bytes
    less = plan(h100s(2), world(2), train={"global_batch": 64, **train}).memory_bytes
    assert whole is not None and less is not None
    assert less < whole


def test_what_selective_checkpointing_saves_is_not_counted_and_it_is_said() -> None:
    found = plan(h100s(2), world(2), train={"checkpointing": {"kind": "selective"}})
    assert "of activations (at most: " in found.reasons["kind"]


@pytest.mark.parametrize(
    ("hardware", "started", "sections"),
    [
        (machine(), world(2), {}),
        (h100s(1), World(), {}),
        (h100s(2), world(2), {"parallel": {"kind": "ddp"}}),
        (h100s(2), World(), {"parallel": {"kind": "data_parallel"}}),
    ],
)
def test_nothing_is_run_where_it_decides_nothing(hardware: Hardware, started: World, sections: dict[str, Any]) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        raise AssertionError("the loss was called")

    found = plan(hardware, started, loss=loss, **sections)
    assert (found.memory_bytes is None) == (found.device == "cpu"), "parameters are counted all the same"


def test_a_loss_that_needs_values_leaves_the_choice_to_the_state() -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        mean = F.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["labels"].flatten())
        return mean if float(mean) < 100 else mean / 2

    why = plan(h100s(2), world(2), loss=loss).reasons["kind"]
    assert "leave half or more of 80 GiB" in why
    assert "activations, which are not known (DataDependentOutputException: " in why


def test_rows_that_cannot_be_read_are_named() -> None:
    class Broken(Dataset[Tensor]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, row: int) -> Tensor:
            raise OSError("disk on fire")

    model, config = nn.Linear(3, 1), run()
    task = choose_task(model, lambda model, batch: model(batch).mean())
    parts = Parts(config, model, {"main": task}, as_source(Broken()), None, {"main": None}, {"main": None})
    why = planned(parts, config, h100s(2), world(2)).reasons["kind"]
    assert "no row could be read: OSError: " in why


def test_of_several_learners_the_one_that_keeps_most_counts() -> None:
    model = nn.ModuleDict({"small": nn.Linear(8, 8), "large": nn.Sequential(nn.Linear(8, 512), nn.Tanh())})
    rows, config = TensorDataset(torch.zeros(20, 8)), run(train={"global_batch": 2000})

    def loss_of(name: str) -> Callable[[Any, Any], Tensor]:
        def loss(model: Any, batch: Any) -> Tensor:
            error: Tensor = model[name](batch[0]).square().mean()
            return error

        return loss

    tasks = {name: choose_task(model, loss_of(name)) for name in ("large", "small")}
    none = dict.fromkeys(tasks)

    def memory(names: list[str]) -> int:
        parts = Parts(config, model, {name: tasks[name] for name in names}, as_source(rows), None, none, none)
        found = planned(parts, config, h100s(2), world(2)).memory_bytes
        assert found is not None
        return found

    assert memory(["small", "large"]) == memory(["large", "small"]) == memory(["large"]) > memory(["small"])


def test_rules_that_freeze_are_looked_at_before_they_are_applied() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    rules = [{"pattern": "*", "freeze": True}, {"pattern": "1.*", "lr_factor": 2.0}]
    facts = known(model, run(train={"optimizer": {"rules": rules}}))
    assert facts is not None
    assert (facts.num_parameters, facts.num_trainable) == (32, 12)
    assert all(p.requires_grad for p in model.parameters())


def test_a_model_without_shapes_is_not_known() -> None:
    assert known(nn.LazyLinear(3), run()) is None


class Answers(Alone):
    """A side channel on which the other rank has come to fsdp."""

    def exchange(self, tag: str, payload: Any = None, limit_s: float | None = None) -> list[Any]:
        return [payload, {"kind": "fsdp", "why": "auto: a smaller GPU: fsdp"}]


def test_one_rank_that_must_shard_makes_all_shard() -> None:
    groups = Groups(world(2), torch.device("cpu"), Answers(), None, owns_default=False)
    found = plan(h100s(2), world(2))
    assert found.kind == "ddp"
    both = agreed(found, run(), groups)
    assert (both.kind, both.reasons["kind"]) == ("fsdp", "auto: a smaller GPU: fsdp")
    asked = run(parallel={"kind": "ddp"})
    assert agreed(found, asked, groups) is found, "what was asked for is the same everywhere"
