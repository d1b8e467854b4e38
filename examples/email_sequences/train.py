"""A sequence classifier on labelled texts: trained on every GPU, stopped when it no longer learns, and reported.

    python examples/email_sequences/train.py --small                          # under a minute on two cores
    python examples/email_sequences/train.py
    drumline train examples/email_sequences/email_sequences.yaml              # the same from a recipe

The texts are definitions from a dictionary (WordNet, packed with drumline); what is learned is their topic, of eight.
For mails of your own change `read`: it returns texts, and the name of each one's class.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import functools
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from drumline import Loss
from drumline.adapters.email_sequences import MultiGPUConfig, create_optimized_training_optimizer
from drumline.config.recipes import recipes_folder
from drumline.config.schema import RunConfig

NUM_WORDS = 24
"""Of a text; longer ones are cut, shorter ones padded with 0."""


def read(name: str) -> tuple[list[str], list[str]]:
    """The texts of `train` or `eval`, and the class of each."""
    with (recipes_folder() / "wordnet" / f"{name}.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return [row["definition"] for row in rows], [row["topic"] for row in rows]


def words_of(text: str) -> list[str]:
    """In lower case; of each word the first six letters, so that most forms of a word are one."""
    return [word[:6] for word in re.findall("[a-z]+", text.lower())][:NUM_WORDS]


class Texts(NamedTuple):
    """What is learned from and what is held out: word numbers, int64 [rows, NUM_WORDS], and classes."""

    train: TensorDataset
    held_out: TensorDataset
    num_words: int
    classes: list[str]


@functools.cache
def load() -> Texts:
    """Read both files; the words and classes are those of the training texts. 0 is padding, 1 an unknown word."""
    texts, labels = read("train")
    words = {word: number for number, word in enumerate(sorted({w for text in texts for w in words_of(text)}), 2)}
    classes = sorted(set(labels))

    def numbered(texts: list[str], labels: list[str]) -> TensorDataset:
        rows = [[words.get(word, 1) for word in words_of(text)] for text in texts]
        padded = torch.tensor([row + [0] * (NUM_WORDS - len(row)) for row in rows])
        return TensorDataset(padded, torch.tensor([classes.index(label) for label in labels]))

    return Texts(numbered(texts, labels), numbered(*read("eval")), len(words) + 2, classes)


class SequenceClassifier(nn.Module):
    """Word vectors, a recurrent layer in both directions, and the largest value of each of its outputs."""

    def __init__(self, num_words: int, num_classes: int, width: int = 64) -> None:
        super().__init__()
        self.words = nn.Embedding(num_words, width, padding_idx=0)
        self.dropout = nn.Dropout(0.3)
        self.sequence = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, num_classes)

    def forward(self, words: Tensor) -> Tensor:
        """Word numbers [B, T] to scores [B, num_classes]."""
        found, _ = self.sequence(self.dropout(self.words(words)))
        found = found.masked_fill((words == 0).unsqueeze(-1), -1.0)  # the least that a GRU gives
        scores: Tensor = self.head(self.dropout(found.amax(dim=1)))
        return scores


def score(outputs: Tensor, targets: Tensor) -> Loss:
    """Cross-entropy summed over the rows, and the share of rows that are right."""
    right = (outputs.argmax(dim=1) == targets).sum()
    total = F.cross_entropy(outputs, targets, reduction="sum")
    return Loss(total, metrics={"accuracy": (right, len(targets))})


# What the recipe's `model: {kind: python}` takes from this file.


def make_model(config: RunConfig) -> nn.Module:
    """The model with fresh weights."""
    return SequenceClassifier(load().num_words, len(load().classes))


def make_data(config: RunConfig) -> tuple[TensorDataset, TensorDataset]:
    """Texts to learn from, and held-out ones."""
    return load().train, load().held_out


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Loss:
    """Of one micro-batch."""
    words, targets = batch
    return score(model(words), targets)


def by_class(model: nn.Module, texts: Texts) -> dict[str, float]:
    """For each class the share of its held-out texts that are recognised."""
    words, targets = texts.held_out.tensors
    model.cpu().eval()
    with torch.no_grad():
        right = model(words).argmax(dim=1) == targets
    return {name: float(right[targets == number].float().mean()) for number, name in enumerate(texts.classes)}


def report(results: dict[str, Any], summary: dict[str, Any], shares: dict[str, float]) -> str:
    """Markdown: what was trained how, epoch by epoch, class by class."""
    how = f"{results['training_mode']}, {results['updates']} updates in {results['training_time']:.0f} s"
    lines = ["# E-mail sequences", "", f"{how}, {summary['throughput']:.0f} texts/s; ended by {results['reason']}.", ""]
    lines += ["| epoch | training loss | validation loss | accuracy |", "|---|---|---|---|"]
    for number, each in enumerate(results["history"], 1):
        lines.append(f"| {number} | {each['train_loss']:.3f} | {each['val_loss']:.3f} | {each['val_accuracy']:.3f} |")
    lines += [
        "",
        "| topic | recognised |",
        "|---|---|",
        *(f"| {name} | {share:.2f} |" for name, share in shares.items()),
    ]
    seen = {name: value for name, value in summary["gpu_summary"].items() if value}
    lines += ["", "GPUs: " + (", ".join(f"{name} {value:.4g}" for name, value in seen.items()) or "none used"), ""]
    return "\n".join(lines)


async def main(epochs: int, patience: int, name: str | None) -> None:
    """Train, and write the report into the run's folder."""
    texts = load()
    torch.manual_seed(0)
    model = SequenceClassifier(texts.num_words, len(texts.classes))
    training = create_optimized_training_optimizer(
        model,
        DataLoader(texts.train, batch_size=32, shuffle=True),
        DataLoader(texts.held_out, batch_size=128),
        MultiGPUConfig(training_mode="auto", enable_gpu_monitoring=True),
        experiment_name=name,
        max_epochs=epochs,
        learning_rate=3e-3,
        early_stopping_patience=patience,
        enable_mixed_precision=True,
        loss_fn=score,
    )
    print(f"training {len(texts.train)} texts, mode {training.multi_gpu_trainer.training_mode}", flush=True)
    results = await training.train()
    if not results["history"]:
        print(f"nothing was left to train: {results['run_dir']} has ended")
        return
    summary = training.multi_gpu_trainer.get_performance_summary()
    file = Path(results["run_dir"]) / "report.md"
    file.write_text(report(results, summary, by_class(model, texts)), encoding="utf-8")
    print(f"accuracy {results['history'][-1]['val_accuracy']:.3f} after {results['epochs']} epochs; see {file}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="three epochs")
    parser.add_argument("--epochs", type=int, default=20, help="at most")
    parser.add_argument("--patience", type=int, default=2, help="epochs without a lower validation loss")
    parser.add_argument("--name", help="of the run; the same name again goes on with it")
    chosen = parser.parse_args()
    asyncio.run(main(3 if chosen.small else chosen.epochs, chosen.patience, chosen.name))
