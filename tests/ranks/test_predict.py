"""Case 6: predictions come once a row, in the order of the data set, for any size of data, batch and world."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from drumline import Trainer
from drumline.data.source import as_source
from drumline.engine.predict import predict
from drumline.tasks.classification import Classification
from tests.rank_pool import RankError, RankPool
from tests.ranks.test_each_sample_once import PlainStream
from tests.ranks.test_metrics import GRID, Shift
from tests.ranks.training import Case, MaskedRows, config_of, fresh, make_model

ROWS = torch.arange(63, dtype=torch.float64).reshape(21, 3)


def trainer_of(directory: str, **sections: Any) -> Trainer:
    case = Case(directory, {"train": {"global_batch": 4, "epochs": 1}, **sections})
    rows = TensorDataset(ROWS, torch.zeros(21).long())
    return Trainer(Shift(3), config_of(case), rows, loss=Classification(3))


def predict_all(directory: str) -> list[list[list[float]]]:
    """Probabilities of the rows, by size and batch."""
    found = []
    with trainer_of(directory) as trainer:
        trainer.fit()
        for size, batch in GRID:
            run = dataclasses.replace(trainer._run)
            run.config = run.config.model_copy(
                update={"evaluate": run.config.evaluate.model_copy(update={"batch": batch})}
            )
            entries = predict(run, TensorDataset(ROWS[:size]))
            found.append([[*entry["probabilities"].tolist(), int(entry["label"])] for entry in entries])
    return found


def test_each_row_comes_once_and_in_order(ranks: RankPool, tmp_path: Path) -> None:
    (alone,) = ranks.run(1, predict_all, fresh(tmp_path))
    assert [len(entries) for entries in alone] == [size for size, _ in GRID]
    shown = [entries for entries, (size, _) in zip(alone, GRID, strict=True) if size == 21]
    assert shown[0] == shown[1] == shown[2]
    for world in (2, 3):
        for answers in ranks.run(world, predict_all, fresh(tmp_path), timeout=60):
            for entries, expected, where in zip(answers, alone, GRID, strict=True):
                assert len(entries) == len(expected), where
                assert torch.allclose(torch.tensor(entries), torch.tensor(expected), atol=1e-12), where


def identities(directory: str) -> list[Any]:
    """The rows themselves, out of a loader that shuffles and has processes, in forms that a function may give."""
    data = DataLoader(TensorDataset(ROWS), batch_size=4, shuffle=True, num_workers=2)
    with trainer_of(directory) as trainer:
        modes: list[bool] = []

        def forward(model: nn.Module, batch: Any) -> Any:
            modes.append(model.training or torch.is_grad_enabled())
            (x,) = batch
            return {"x": x, "both": (x[:, 0], x[:, 1:])}

        entries = predict(trainer._run, data, forward=forward)
        assert not any(modes) and trainer.model.training
    tensors = [entry["x"] for entry in entries] + [entry["both"][1] for entry in entries]
    assert not any(tensor.is_shared() for tensor in tensors)
    assert [entry["both"][0].item() for entry in entries] == ROWS[:, 0].tolist()
    return [entry["x"].tolist() for entry in entries]


def test_a_function_of_ones_own_and_a_loader_of_ones_own(ranks: RankPool, tmp_path: Path) -> None:
    for world in (1, 2, 3):
        for entries in ranks.run(world, identities, fresh(tmp_path)):
            assert entries == ROWS.tolist()


def test_batches_may_be_as_wide_as_they_like(ranks: RankPool, tmp_path: Path) -> None:
    for world in (1, 2):
        for widths in ranks.run(world, padded, fresh(tmp_path)):
            assert widths == [0, 1, 2, 3, 4, 5, 6]


def pad(rows: list[Tensor]) -> Tensor:
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1.0)


def padded(directory: str) -> list[int]:
    rows: Any = [torch.ones(length) for length in range(7)]
    with trainer_of(directory, evaluate={"batch": 2}) as trainer:
        entries = predict(trainer._run, rows, collate=pad, forward=lambda model, batch: batch)
    return [int((entry > 0).sum()) for entry in entries]


def test_a_stream_is_predicted_by_one_process_only(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.run(1, predict_stream, fresh(tmp_path)) == [[0, 1, 2, 3]]
    with pytest.raises(RankError, match="a stream has no order that 2 processes could share"):
        ranks.run(2, predict_stream, fresh(tmp_path))


def predict_stream(directory: str) -> list[int]:
    case = Case(directory, {"train": {"global_batch": 2, "epochs": 1}})
    config = config_of(case)
    with Trainer(make_model(), config, MaskedRows(4), loss=lambda model, batch: model(batch["x"]).mean()) as trainer:
        assert as_source(PlainStream()).is_stream
        return [int(row) for row in predict(trainer._run, PlainStream(), forward=lambda model, batch: batch["id"])]


def test_averaging_is_taken_into_account(ranks: RankPool, tmp_path: Path) -> None:
    """What is predicted is what is evaluated: with averaged weights, where the run has them."""
    (found,) = ranks.run(1, predict_averaged, fresh(tmp_path))
    assert found["inside"] != pytest.approx(found["outside"], abs=1e-6)
    assert found["predicted"] == pytest.approx(found["inside"], abs=1e-12)


def predict_averaged(directory: str) -> dict[str, list[float]]:
    with trainer_of(directory, train={"global_batch": 4, "epochs": 1, "averaging": {"kind": "ema"}}) as trainer:
        trainer.fit()

        def weights() -> list[float]:
            return [value for p in trainer.model.parameters() for value in p.tolist()]

        with trainer._run.strategy.averaged():
            inside = weights()
        entries = predict(trainer._run, TensorDataset(ROWS[:1]), forward=lambda model, batch: model(batch[0]))
        predicted = (entries[0] - ROWS[0]).tolist()
        return {"inside": inside, "outside": weights(), "predicted": predicted}
