"""Every task on real data: it learns, and any number of ranks gives the losses and metrics of one."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

from drumline import Trainer
from drumline.config.recipes import expand_path
from drumline.parallel.strategy import Task
from drumline.tasks import (
    Classification,
    Contrastive,
    LanguageModelling,
    MultiLabel,
    Regression,
    SequenceToSequence,
    TokenClassification,
)
from tests.rank_pool import RankPool
from tests.ranks.training import Case, config_of, fresh

TOLERANCE = 1e-10
"""In float64, without dropout."""


class Problem(NamedTuple):
    model: nn.Module
    task: Task
    rows: Any
    num_train: int
    train: dict[str, Any]


def shuffled(*columns: Tensor) -> list[Tensor]:
    """The rows in an order drawn once."""
    order = torch.randperm(len(columns[0]), generator=torch.Generator().manual_seed(0))
    return [column[order] for column in columns]


def digits() -> tuple[Tensor, Tensor]:
    """1,797 images of 8 x 8 pixels, [rows, 64] from 0 to 1, and their digits."""
    found = load_digits()
    pixels, digit = shuffled(torch.tensor(found.data) / 16, torch.tensor(found.target))
    return pixels, digit


def mlp(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, outputs)).double()


def classification() -> Problem:
    return Problem(mlp(64, 10), Classification(10, 0.1), TensorDataset(*digits()), 1500, {"epochs": 4, "lr": 0.01})


def multi_label() -> Problem:
    pixels, digit = digits()
    properties = torch.tensor([[d % 2 == 0, d in (2, 3, 5, 7), d > 4, d in (0, 6, 8, 9)] for d in digit.tolist()])
    return Problem(
        mlp(64, 4), MultiLabel(4), TensorDataset(pixels, properties.double()), 1500, {"epochs": 4, "lr": 0.01}
    )


def regression() -> Problem:
    """Progress of the disease after a year, from ten values of 442 patients."""
    x, y = load_diabetes(return_X_y=True)
    values, progress = shuffled(torch.tensor(x) * 20, torch.tensor(y))
    rows = TensorDataset(values, (progress - 152) / 77)
    return Problem(nn.Linear(10, 1).double(), Regression("huber"), rows, 342, {"epochs": 12, "lr": 0.02})


def chapter(number: int) -> bytes:
    return Path(expand_path(f"recipes:moby_dick/chapter_{number}.txt")).read_bytes()


class Letters(Dataset[dict[str, Tensor]]):
    """Rows of up to 48 letters of a text without its spaces; labels: whether a word begins here."""

    def __init__(self) -> None:
        text = b"".join(chapter(number) for number in (1, 2, 3)).lower()
        words = bytes(byte if bytes([byte]).isalpha() else 32 for byte in text).split()
        letters = b"".join(words)
        begins = [int(place == 0) for word in words for place in range(len(word))]
        self._rows = [(letters[i : i + 48], begins[i : i + 48]) for i in range(0, len(letters), 48)]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        letters, begins = self._rows[index]
        labels = begins + [-100] * (48 - len(begins))
        return {"letters": torch.tensor(list(letters.ljust(48, b"\0"))), "labels": torch.tensor(labels)}


class Neighbours(nn.Module):
    """Looks at three letters before and after each one."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(128, 16)
        self.neighbours = nn.Conv1d(16, 64, 7, padding=3)
        self.head = nn.Linear(64, 2)

    def forward(self, letters: Tensor) -> Tensor:
        seen = self.neighbours(self.embedding(letters).mT).relu().mT
        return self.head(seen)  # type: ignore[no-any-return]


def token_classification() -> Problem:
    return Problem(Neighbours().double(), TokenClassification(2), Letters(), 600, {"epochs": 3, "lr": 0.01})


class Definitions(Dataset[dict[str, Any]]):
    """Definitions of WordNet and the topic that each is filed under, both as bytes, padded; 1 ends a topic."""

    def __init__(self) -> None:
        with Path(expand_path("recipes:wordnet/train.csv")).open(encoding="utf8", newline="") as file:
            self._rows = list(csv.DictReader(file))

    def __len__(self) -> int:
        return 240

    def __getitem__(self, index: int) -> dict[str, Any]:
        definition = self._rows[index]["definition"].encode()[:32]
        ids = torch.tensor(list(definition.ljust(32, b"\0")))
        topic = [*self._rows[index]["topic"].encode(), 1]
        labels = torch.tensor(topic + [-100] * (14 - len(topic)))
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


def sequence_to_sequence() -> Problem:
    shape = transformers.T5Config(
        vocab_size=256,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=1,
        num_heads=4,
        dropout_rate=0.0,
        pad_token_id=0,
        decoder_start_token_id=0,
        use_cache=False,
    )
    model = transformers.T5ForConditionalGeneration(shape).double()
    return Problem(model, SequenceToSequence(256), Definitions(), 192, {"epochs": 3, "lr": 0.01})


class Halves(Dataset[dict[str, Any]]):
    """Upper and lower half of a digit's image."""

    def __init__(self) -> None:
        self._pixels, _ = digits()

    def __len__(self) -> int:
        return 1788  # of which 288 are held out, 18 batches of 16

    def __getitem__(self, index: int) -> dict[str, Any]:
        upper, lower = self._pixels[index].chunk(2)
        return {"anchor": [upper], "positive": [lower]}


def contrastive() -> Problem:
    """With micro-batches of 16 on any number of ranks, so that a row meets the same others."""
    train = {"global_batch": 32, "micro_batch": 16, "epochs": 3, "lr": 0.01}
    return Problem(mlp(32, 16), Contrastive(0.1), Halves(), 1500, train)


class NextByte(Dataset[dict[str, Tensor]]):
    """Rows of 32 bytes of text."""

    def __init__(self) -> None:
        self._text = torch.tensor(list(chapter(1) + chapter(2) + chapter(3)))

    def __len__(self) -> int:
        return 900

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        row = self._text[33 * index : 33 * index + 33]
        return {"input_ids": row[:-1], "labels": row[1:]}


def language_modelling() -> Problem:
    """A table of what follows each byte; the reference decoder has tests of its own."""
    train = {"epochs": 3, "lr": 0.05}
    return Problem(nn.Embedding(256, 256).double(), LanguageModelling(256), NextByte(), 800, train)


def run(make: Callable[[], Problem], directory: str) -> tuple[list[float], dict[str, float], dict[str, float]]:
    """Losses, and the evaluations before and after."""
    torch.manual_seed(1)
    problem = make()
    train = {
        "global_batch": 16,
        "precision": "fp32",
        "max_norm": 1.0,
        "optimizer": {"name": "adamw"},
        "schedule": {"name": "cosine", "warmup_steps": 4},
        **problem.train,
    }
    held_out = Subset(problem.rows, range(problem.num_train, len(problem.rows)))
    training = Subset(problem.rows, range(problem.num_train))
    # The evaluation's batches, too, are the same wherever rows are compared with their batch.
    config = config_of(Case(directory, {"train": train, "evaluate": {"batch": 16}}))
    losses = []
    with Trainer(problem.model, config, training, loss=problem.task, eval_data=held_out) as trainer:
        before = trainer.evaluate()
        for info in trainer.steps():
            assert info.logged is not None
            losses.append(info.logged["loss"])
        return losses, before, trainer.evaluate()


# What each must come to on rows that it has not seen, and what it may not have had before.
AIMS: dict[Callable[[], Problem], dict[str, float]] = {
    classification: {"accuracy": 0.94, "f1": 0.94, "auc": 0.99},
    multi_label: {"f1": 0.92, "auc": 0.98},
    regression: {"r2": 0.5},
    token_classification: {"accuracy": 0.87, "f1": 0.8},
    sequence_to_sequence: {"accuracy": 0.65},
    contrastive: {"accuracy": 0.06},
    language_modelling: {"accuracy": 0.23},
}


@pytest.mark.parametrize("make", AIMS, ids=lambda make: make.__name__)
def test_a_task_learns_the_same_on_any_number_of_ranks(
    ranks: RankPool, tmp_path: Path, make: Callable[[], Problem]
) -> None:
    ((losses, before, after),) = ranks.run(1, run, make, fresh(tmp_path), timeout=60)
    for name, aim in AIMS[make].items():
        assert before[name] < aim <= after[name], name
    for answer in ranks.run(2, run, make, fresh(tmp_path), timeout=60):
        assert answer[0] == pytest.approx(losses, rel=0, abs=TOLERANCE)
        for found, expected in zip(answer[1:], (before, after), strict=True):
            assert found == pytest.approx(expected, rel=0, abs=TOLERANCE)
