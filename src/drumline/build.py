"""Assembles a run's parts from its config: the only module that knows them all."""

from __future__ import annotations

import fcntl
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.data import Dataset

from drumline.config.data import RandomTokens, TextData
from drumline.config.load import load_config
from drumline.config.model import DecoderModel
from drumline.config.schema import RunConfig
from drumline.data.random_tokens import RandomTokenRows
from drumline.data.text import load_text
from drumline.engine.trainer import Trainer
from drumline.errors import ConfigError, DataError, DrumlineError
from drumline.models.decoder import decoder_from_config
from drumline.models.huggingface import head_of, load_model, text_config
from drumline.rundir import RunDir
from drumline.tasks.language_modelling import LanguageModelling


class Rows(NamedTuple):
    """What the data section comes to."""

    train: Dataset[Any]
    evaluation: Dataset[Any] | None
    vocab_size: int
    context: int


def build_trainer(config: RunConfig, run: RunDir) -> Trainer:
    """The trainer of a recipe. Raises ConfigError and DataError before any process group exists."""
    rows = build_rows(config)
    torch.manual_seed(config.seed)
    model, vocab_size = build_model(config, rows)
    return Trainer(model, config, rows.train, eval_data=rows.evaluation, loss=LanguageModelling(vocab_size), run=run)


def build_rows(config: RunConfig) -> Rows:
    """Training and evaluation rows of the data section."""
    data = config.data
    if data is None:
        raise ConfigError("the recipe has no data section", "add data: {kind: text, train: [...]}")
    if isinstance(data, RandomTokens):
        train = RandomTokenRows(data.num_rows, data.context, data.vocab_size, config.seed)
        held_out = RandomTokenRows(data.num_eval_rows, data.context, data.vocab_size, config.seed + 1)
        return Rows(train, held_out if data.num_eval_rows else None, data.vocab_size, data.context)
    splits = load_text(data, build=one_at_a_time(data))
    return Rows(splits.train, splits.eval, splits.tokenizer.vocab_size, data.context)


def one_at_a_time(data: TextData) -> Callable[[Callable[[], None]], None]:
    """Run the tokenising under a file lock: the first rank on a machine does it, the others wait and find it done.

    No collective waits, so no time-out can strike; a rank that dies gives the lock back; bad data raises on each rank.
    """

    def build(write: Callable[[], None]) -> None:
        try:
            data.cache_dir.mkdir(parents=True, exist_ok=True)
            lock = (data.cache_dir / "lock").open("w")
        except OSError as error:
            raise DataError(f"data.cache_dir {data.cache_dir} cannot be written: {error}", "choose another") from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            write()

    return build


def build_model(config: RunConfig, rows: Rows) -> tuple[nn.Module, int]:
    """The model and the number of ids that it takes; random weights depend on the seed alone."""
    if isinstance(config.model, DecoderModel):
        decoder = decoder_from_config(config.model, rows.vocab_size, rows.context)
        return decoder, decoder.shape.vocab_size
    model = load_model(config.model)
    if head_of(model) != "causal":
        raise ConfigError("language modelling needs a causal model", "set model.head=causal")
    vocab_size = int(text_config(model).vocab_size)
    if vocab_size < rows.vocab_size:
        raise ConfigError(
            f"the tokenizer has {rows.vocab_size} ids, the model in {config.model.path} takes {vocab_size}",
            "set data.tokenizer to the model's own folder",
        )
    return model, vocab_size


def check(config_file: Path) -> int:
    """Build everything but the trainer; returns the exit status, with the problem on standard error."""
    try:
        config = load_config(config_file)
        build_model(config, build_rows(config))
    except DrumlineError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(check(Path(sys.argv[1])))
