"""A run that is saved and gone on with is the run that was not: the same bits."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from drumline import Trainer
from drumline.engine.records import StepInfo
from drumline.parallel.strategy import Batch
from tests.unit.engine.training import assert_same, losses, make_model, rows, squared_error, state_of, trainer_of

EPOCHS = {"epochs": 3}


def noisy_collate(samples: list[Any]) -> Any:
    """Noise of all three streams on the inputs, as augmentation and masking have it."""
    x, y = default_collate(samples)
    return x + torch.randn_like(x) * 0.1 + random.random() + np.random.rand(), y


def noisy_error(model: nn.Module, batch: Batch) -> Tensor:
    """A loss that draws from Python's and NumPy's streams."""
    return squared_error(model, batch) * (1 + random.random() + float(np.random.rand()))


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dropout": {"loss": noisy_error},
    "noise": {"collate": noisy_collate},
    "noise from loader processes": {"collate": noisy_collate, "loader": {"num_workers": 2}},
    "adamw": {"train": {**EPOCHS, "optimizer": {"name": "adamw"}, "schedule": {"name": "cosine"}, "max_norm": 0.5}},
    "skipping": {"train": {**EPOCHS, "non_finite": "skip", "schedule": {"name": "linear"}}},
    "bf16": {"train": {**EPOCHS, "precision": "bf16"}},
}


def build(directory: Path, name: str, **more: Any) -> Trainer:
    model = make_model(dropout=0.4 if name == "dropout" else 0.0)
    return trainer_of(directory, model=model, **{"train": EPOCHS, **VARIANTS[name], **more})


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("at", [2, 3, 5])
def test_a_resumed_run_has_the_same_bits(tmp_path: Path, name: str, at: int) -> None:
    """Three updates an epoch: saved in the middle of one, at its end, and in the middle of the next."""

    def save(trainer: Trainer, info: StepInfo) -> None:
        if info.step == at:
            trainer.save()

    with build(tmp_path / "whole", name, callbacks=[save]) as whole:
        expected = list(whole.steps())
    torch.manual_seed(at)  # whatever the new process comes with
    with build(tmp_path / "resumed", name) as resumed:
        with torch.no_grad():
            for p in resumed.model.parameters():
                p.zero_()
        resumed.load(tmp_path / "whole" / "checkpoints" / f"step_{at}")
        found = list(resumed.steps())
    assert [(info.step, info.epoch) for info in found] == [(info.step, info.epoch) for info in expected[at:]]
    assert losses(found) == losses(expected)[at:]
    assert [info.logged["lr"] for info in found if info.logged] == [i.logged["lr"] for i in expected if i.logged][at:]
    assert_same(resumed.model.state_dict(), whole.model.state_dict())
    assert len(set(losses(expected))) == 9


def test_twice_in_one_epoch(tmp_path: Path) -> None:
    big = {"train": {**EPOCHS, "global_batch": 2}}
    with build(tmp_path / "whole", "dropout", **big) as whole:
        expected = losses(list(whole.steps()))
    found: list[float] = []
    checkpoint = None
    for number, stop_at in enumerate((1, 3, 99)):
        with build(tmp_path / str(number), "dropout", **big) as part:
            if checkpoint is not None:
                part.load(checkpoint)
            for info in part.steps():
                found += losses([info])
                if info.step == stop_at:
                    checkpoint = part.save()
                    break
    assert found == expected


@pytest.mark.parametrize("every", [2, 3])
def test_periodic_checkpoints_can_be_gone_on_from(tmp_path: Path, every: int) -> None:
    checkpoint = {"every": every, "at_end": True, "keep": None}
    with build(tmp_path / "whole", "dropout", checkpoint=checkpoint) as whole:
        whole.fit()
    saved = sorted(int(path.name.removeprefix("step_")) for path in (tmp_path / "whole" / "checkpoints").iterdir())
    assert saved == sorted({*range(every, 10, every), 9})
    for step in saved:
        with build(tmp_path / f"from_{step}", "dropout") as resumed:
            resumed.load(tmp_path / "whole" / "checkpoints" / f"step_{step}")
            assert resumed.fit().steps == 9
        assert_same(resumed.model.state_dict(), whole.model.state_dict())


def test_a_finished_run_goes_on_where_more_epochs_are_asked_for(tmp_path: Path) -> None:
    with build(tmp_path / "whole", "plain") as whole:
        whole.fit()
    with build(tmp_path / "short", "plain", train={"epochs": 2}) as short:
        short.fit()
        path = short.save()
    with build(tmp_path / "longer", "plain") as longer:
        longer.load(str(path))
        assert [info.epoch for info in longer.steps()] == [2, 2, 2]
    assert_same(longer.model.state_dict(), whole.model.state_dict())


def test_what_is_saved_at_an_epochs_end_goes_on_with_the_next(tmp_path: Path) -> None:
    with build(tmp_path / "whole", "plain") as whole:
        list(whole.steps(epochs=1))
        path = whole.save()
        expected = losses(list(whole.steps(epochs=1)))
    with build(tmp_path / "resumed", "plain") as resumed:
        resumed.load(path)
        assert losses(list(resumed.steps(epochs=1))) == expected
    assert len(expected) == 3


def test_what_a_callback_saves_at_an_epochs_end_does_too(tmp_path: Path) -> None:
    def save(trainer: Trainer, info: StepInfo) -> None:
        if info.step == 3:
            trainer.save()

    with build(tmp_path / "whole", "plain", callbacks=[save]) as whole:
        whole.fit()
    with build(tmp_path / "resumed", "plain") as resumed:
        resumed.load(tmp_path / "whole" / "checkpoints" / "step_3")
        assert [(info.step, info.epoch) for info in resumed.steps(epochs=1)] == [(4, 1), (5, 1), (6, 1)]


def test_early_stopping_and_history_are_gone_on_with(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "eval_data": rows(4, seed=1),
        "evaluate": {"every": 1, "early_stopping": {"patience": 3}},
        "train": {"lr": 1e-300, "epochs": 9},
    }
    with trainer_of(tmp_path / "first", **options) as first:
        for info in first.steps():
            if info.step == 2:
                path = first.save()
                break
    with trainer_of(tmp_path / "second", **options) as second:
        second.load(path)
        result = second.fit()
    assert (result.reason, result.steps) == ("early_stop", 4)
    assert [entry["step"] for entry in result.history] == [1, 2, 3, 4]


def test_a_stopped_run_with_batch_norm_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    """A stop is seen with the next window's forward pass done already, which must leave no trace."""

    def stop(trainer: Trainer, info: StepInfo) -> None:
        trainer.stop()

    options: dict[str, Any] = {"train": {**EPOCHS, "global_batch": 5}}
    with trainer_of(tmp_path / "whole", model=make_model(norm=True), **options) as whole:
        whole.fit()
    with trainer_of(tmp_path / "stopped", model=make_model(norm=True), callbacks=[stop], **options) as stopped:
        assert stopped.fit().steps == 1
        path = stopped.save()
    with trainer_of(tmp_path / "resumed", model=make_model(norm=True), **options) as resumed:
        resumed.load(path)
        assert resumed.fit().steps == 6
    assert_same(state_of(resumed.model), state_of(whole.model))
