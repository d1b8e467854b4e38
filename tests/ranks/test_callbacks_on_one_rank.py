"""What a callback may do on one rank only, and how it ends where it may not."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from drumline import Callback, DrumlineError, Result, StepInfo, Trainer
from tests.rank_pool import RankError, RankPool
from tests.ranks.failing import failures_of
from tests.ranks.test_batch_norm import Normalised, squared_error
from tests.ranks.training import Case, MaskedRegression, MaskedRows, config_of, fresh, largest_difference, make_model

CONFIG = {"train": {"global_batch": 8, "max_steps": 6, "shuffle": False}}
Seen = tuple[list[dict[str, Tensor]], list[float]]


def probe_on_rank_0(directory: str, probes: bool) -> Seen:
    """State after each update; on rank 0 a callback then runs the model in training mode and logs what it gives."""
    states: list[dict[str, Tensor]] = []
    logged: list[float] = []
    x = torch.stack([MaskedRows(40)[i]["x"] for i in range(30, 35)])

    def look(trainer: Trainer, info: StepInfo) -> None:
        states.append({name: value.clone() for name, value in trainer.model.state_dict().items()})
        if info.logged is not None and "probe" in info.logged:
            logged.append(info.logged["probe"])

    def probe(trainer: Trainer, info: StepInfo) -> None:
        if dist.get_rank() == 0 and probes:
            assert trainer.model.training
            trainer.log("probe", trainer.model(x).mean())

    case = Case(directory, CONFIG)
    with Trainer(Normalised(), config_of(case), MaskedRows(48), loss=squared_error, callbacks=[look, probe]) as trainer:
        trainer.fit()
    return states, logged


def test_the_model_and_the_log_are_free_to_use(ranks: RankPool, tmp_path: Path) -> None:
    (states, logged), (other, seen) = ranks.run(2, probe_on_rank_0, fresh(tmp_path), True)
    assert len(states) == 6
    for mine, theirs in zip(states, other, strict=True):
        assert largest_difference(mine, theirs) == 0
    # A callback's value is in the line of the update after it.
    assert logged == seen and len(logged) == 5
    (undisturbed, _), _ = ranks.run(2, probe_on_rank_0, fresh(tmp_path), False)
    trained = [name for name in undisturbed[-1] if name.endswith(("weight", "bias"))]
    for name in trained:
        assert torch.equal(states[-1][name], undisturbed[-1][name])


def evaluate_here(trainer: Trainer, info: StepInfo) -> None:
    trainer.evaluate()  # in the callback


def save_here(trainer: Trainer, info: StepInfo) -> None:
    trainer.save()  # in the callback


CALLBACKS = {"evaluation": evaluate_here, "checkpoint": save_here}


def line_of(fn: Callable[..., None]) -> str:
    """file:line of the function's one statement."""
    return f"{__file__}:{inspect.getsourcelines(fn)[1] + 1}"


def call_on_one_rank(directory: str, place: str, rank: int, step: int) -> None:
    def callback(trainer: Trainer, info: StepInfo) -> None:
        if dist.get_rank() == rank and info.step == step:
            CALLBACKS[place](trainer, info)

    rows, held_out = MaskedRows(48), MaskedRows(8)
    with Trainer(
        make_model(),
        config_of(Case(directory, CONFIG)),
        rows,
        loss=MaskedRegression([]),
        eval_data=held_out,
        callbacks=[callback],
    ) as trainer:
        trainer.fit()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("place", CALLBACKS)
@pytest.mark.parametrize(("step", "elsewhere"), [(3, "update 4"), (5, "update 6")])
def test_what_all_ranks_must_call_is_found_on_one(
    ranks: RankPool, tmp_path: Path, place: str, rank: int, step: int, elsewhere: str
) -> None:
    endings = failures_of(ranks, 2, call_on_one_rank, fresh(tmp_path), place, rank, step)
    wrong, other = endings[rank], endings[1 - rank]
    assert wrong.name == "GroupError"
    assert f"rank {rank} at '{place}' ({line_of(CALLBACKS[place])})" in wrong.message
    assert f"rank {1 - rank} at '{elsewhere}'" in wrong.message
    assert other.name == "PeerFailed"
    assert line_of(CALLBACKS[place]) in other.message


def call_after_the_end(directory: str, rank: int) -> str:
    """How this rank ends."""
    try:
        call_on_one_rank(directory, "checkpoint", rank, 6)
    except DrumlineError as error:
        return f"{type(error).__name__}: {error}"
    return "done"


@pytest.mark.parametrize("rank", [0, 1])
def test_and_after_the_last_update_too(ranks: RankPool, tmp_path: Path, rank: int) -> None:
    endings = ranks.run(2, call_after_the_end, fresh(tmp_path), rank, timeout=15)
    place = f"rank {rank} at 'checkpoint' ({line_of(save_here)}"
    assert any(ending.startswith("GroupError") for ending in endings)
    assert all(place in ending and f"rank {1 - rank} at 'end'" in ending for ending in endings)


def call_apart(directory: str) -> None:
    """One rank evaluates where the other saves."""
    sections = Case(directory, CONFIG)
    with Trainer(
        make_model(), config_of(sections), MaskedRows(16), loss=MaskedRegression([]), eval_data=MaskedRows(8)
    ) as trainer:
        CALLBACKS["evaluation" if dist.get_rank() == 0 else "checkpoint"](trainer, StepInfo(0, 0, 0, 0))


def test_both_places_are_named_where_each_rank_calls_something_else(ranks: RankPool, tmp_path: Path) -> None:
    with pytest.raises(RankError) as caught:
        ranks.run_grouped(2, call_apart, fresh(tmp_path), timeout=15)
    assert sorted(caught.value.errors) == [0, 1]
    places = f"rank 0 at 'evaluation' ({line_of(evaluate_here)}); rank 1 at 'checkpoint' ({line_of(save_here)})"
    assert all(places in error.message for error in caught.value.errors.values())


def train_with_evaluations(directory: str, evaluates: bool) -> tuple[dict[str, Tensor], list[float]]:
    losses = []

    def evaluate(trainer: Trainer, info: StepInfo) -> None:
        if evaluates:
            losses.append(trainer.evaluate()["loss"])
            assert trainer.model.training

    with Trainer(
        Normalised(),
        config_of(Case(directory, CONFIG)),
        MaskedRows(48),
        loss=squared_error,
        eval_data=MaskedRows(7),
        callbacks=[evaluate],
    ) as trainer:
        trainer.fit()
        return {name: value.clone() for name, value in trainer.model.state_dict().items()}, losses


def test_all_ranks_may_evaluate_in_a_callback(ranks: RankPool, tmp_path: Path) -> None:
    (weights, losses), (other, seen) = ranks.run(2, train_with_evaluations, fresh(tmp_path), True)
    (undisturbed, _), _ = ranks.run(2, train_with_evaluations, fresh(tmp_path), False)
    assert losses == seen and len(losses) == 6
    assert largest_difference(weights, undisturbed) == largest_difference(weights, other) == 0


class Breaks(Callback):
    """Raises in one of its methods, on one rank."""

    def __init__(self, method: str, rank: int) -> None:
        self._method = method
        self._rank = rank

    def _break(self, method: str) -> None:
        if method == self._method and dist.get_rank() == self._rank:
            raise ArithmeticError(f"broken in {method}")

    def on_start(self, trainer: Trainer) -> None:
        self._break("on_start")

    def on_update(self, trainer: Trainer, info: StepInfo) -> None:
        self._break("on_update")

    def on_epoch_end(self, trainer: Trainer, info: StepInfo) -> None:
        self._break("on_epoch_end")

    def on_evaluation(self, trainer: Trainer, info: StepInfo) -> None:
        self._break("on_evaluation")

    def on_save(self, trainer: Trainer, path: Path) -> None:
        self._break("on_save")


METHODS = ("on_start", "on_update", "on_epoch_end", "on_evaluation", "on_save")


def train_with(directory: str, method: str, rank: int) -> None:
    sections = {
        "train": {"global_batch": 8, "epochs": 2, "shuffle": False},
        "evaluate": {"every": 1},
        "checkpoint": {"every": 1},
    }
    with Trainer(
        make_model(),
        config_of(Case(directory, sections)),
        MaskedRows(16),
        loss=MaskedRegression([]),
        eval_data=MaskedRows(8),
        callbacks=[Breaks(method, rank)],
    ) as trainer:
        trainer.fit()


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("method", METHODS)
def test_what_a_callback_raises_ends_all_ranks_by_name(ranks: RankPool, tmp_path: Path, method: str, rank: int) -> None:
    endings = failures_of(ranks, 2, train_with, fresh(tmp_path), method, rank)
    assert endings[rank].name == "ArithmeticError"
    assert endings[1 - rank].name == "PeerFailed"
    assert f"rank {rank} failed: ArithmeticError: broken in {method}" in endings[1 - rank].message


class Notes(Callback):
    """The steps of every call, and how it ended."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int]] = []

    def on_epoch_end(self, trainer: Trainer, info: StepInfo) -> None:
        self.calls.append(("epoch", info.step))

    def on_evaluation(self, trainer: Trainer, info: StepInfo) -> None:
        self.calls.append(("evaluation", info.step))
        if dist.get_rank() == 1 and info.step == 4:
            trainer.stop("seen enough")

    def on_save(self, trainer: Trainer, path: Path) -> None:
        self.calls.append(("save", int(path.name.removeprefix("step_"))))

    def on_end(self, trainer: Trainer, result: Result | None) -> None:
        assert result is not None
        self.calls.append((f"end: {result.reason}", result.steps))


def train_noting(directory: str) -> list[tuple[str, int]]:
    notes = Notes()
    sections = {"train": {"global_batch": 8, "epochs": 4}, "checkpoint": {"every": 2, "asynchronous": False}}
    with Trainer(
        make_model(),
        config_of(Case(directory, sections)),
        MaskedRows(16),
        loss=MaskedRegression([]),
        eval_data=MaskedRows(8),
        callbacks=[notes],
    ) as trainer:
        trainer.fit()
    return notes.calls


def test_every_rank_is_told_and_any_may_stop_the_run(ranks: RankPool, tmp_path: Path) -> None:
    zero, one = ranks.run(2, train_noting, fresh(tmp_path))
    assert zero == one
    assert zero == [
        *(("evaluation", 2), ("save", 2), ("epoch", 2)),
        *(("evaluation", 4), ("save", 4), ("epoch", 4)),
        ("end: seen enough", 4),
    ]
