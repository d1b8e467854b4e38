"""`drumline.predict`: rows in, one answer a row out, by a model at hand, in a folder, of a run, or on the hub."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

import torch
from torch import nn

from drumline.build.predictor import make_predictor, own_device
from drumline.config.infer_file import load_inference_config
from drumline.config.inference import InferenceConfig
from drumline.config.section import Section
from drumline.errors import ConfigError
from drumline.infer.function import Collate, FunctionPredictor, Predict
from drumline.infer.given_rows import GIVEN, AnsweredRow, Given, answer_here, answer_into_file
from drumline.infer.loading import predictor_of
from drumline.infer.model_at_hand import GivenTokenizer, as_loaded, device_of, in_evaluation_mode
from drumline.infer.records import Predictor


class Settings(TypedDict, total=False):
    """What `predict` takes by name beside its arguments: parts of an InferenceConfig, as its file has them."""

    collate: Collate
    """With `predict`: makes a batch of a list of rows; else torch's default_collate does."""
    loading: Mapping[str, Any]
    """Section `model` beside its path: step, dtype, quantise, ..."""
    columns: Mapping[str, Any]
    """Section `rows` beside the files: text, text_pair, label, id."""
    prefix: str
    """output.prefix."""
    batching: Mapping[str, Any]
    hardware: Mapping[str, Any]
    split: Mapping[str, Any]
    run_dir: str | Path
    seed: int
    max_deaths: int


@overload
def predict(
    model: str | Path | nn.Module,
    rows: Given,
    task: str | Mapping[str, Any] | Section = "generate",
    *,
    predict: Predict | None = None,
    tokenizer: GivenTokenizer | None = None,
    out: None = None,
    **settings: Unpack[Settings],
) -> list[AnsweredRow]: ...


@overload
def predict(
    model: str | Path | nn.Module,
    rows: Given,
    task: str | Mapping[str, Any] | Section = "generate",
    *,
    predict: Predict | None = None,
    tokenizer: GivenTokenizer | None = None,
    out: str | Path,
    **settings: Unpack[Settings],
) -> Path: ...


def predict(
    model: str | Path | nn.Module,
    rows: Given,
    task: str | Mapping[str, Any] | Section = "generate",
    *,
    predict: Predict | None = None,
    tokenizer: GivenTokenizer | None = None,
    out: str | Path | None = None,
    **settings: Unpack[Settings],
) -> list[AnsweredRow] | Path:
    """Answer each row once, and return the rows in their order: own columns, those of the answer, and `error`.

    model: a folder, a run directory, a name on the hub; a transformers model in memory, which is used where it lies; or
    any module, with `predict(model, batch)`, which returns a tensor, a list, or a dict of such with one entry a row.
    rows: dicts by column, or texts (column `text`); any iterable, gone through once. task: generate, choose, classify,
    token_classify, embed or score, or with its settings: {"kind": "choose", "labels": ["yes", "no"]}. tokenizer: of a
    model in memory that was read from no folder; a folder or one of transformers'.

    Rows are sorted by length and batched by tokens. Where memory runs out a batch is halved; a row that fails alone has
    the reason in `error`, and None in `error` where all is well; its batch-mates have their answers.

    out: a .jsonl, .csv or .parquet file, which appears when all rows are answered; its path is returned then. What is
    done is kept beside it in OUT.run: the same call goes on after any end, and several processes that make it at once
    (under drumline launch, torchrun, srun, or by hand) share the rows, each with a GPU of its own, and all return. Else
    nothing is left on the disk, and each process answers all rows that it is given.

    Raises ConfigError and DataError for what cannot be meant, Interrupted when OUT.run/requests/stop appears, and
    WorkerLost where the GPU is lost to this process: the same call with `out` goes on in a new one.
    """
    config = config_of(model, task, out, settings)
    columns: tuple[str, ...] | None = None
    with ExitStack() as stack:
        if predict is not None:
            if not isinstance(model, nn.Module):
                raise ConfigError("predict=... was given, and the model is a name", "load it, and give the module")
            columns = ()
            own: Predictor = FunctionPredictor(model, predict, device_of(model), settings.get("collate"))
        if isinstance(model, nn.Module):
            stack.enter_context(in_evaluation_mode(model))

        def make() -> tuple[Predictor, torch.device]:
            if not isinstance(model, nn.Module):
                device = own_device(config, alone=False)
                return make_predictor(config, device), device
            if predict is not None:
                return own, device_of(model)
            loaded = stack.enter_context(as_loaded(model, tokenizer))
            return predictor_of(loaded, config, device_of(model)), device_of(model)

        if out is None:
            return answer_here(rows, config, make, columns)
        answer_into_file(rows, config, make, columns)
    return Path(out)


def config_of(
    model: str | Path | nn.Module, task: str | Mapping[str, Any] | Section, out: str | Path | None, settings: Settings
) -> InferenceConfig:
    """Pure: the settings of such a run. Raises ConfigError for what they do not know, or what an argument says."""
    given: dict[str, Any] = {name: value for name, value in settings.items() if name != "collate"}
    unknown = sorted(given.keys() - Settings.__annotations__.keys())
    if unknown:
        known = ", ".join(Settings.__annotations__)
        raise ConfigError(f"drumline.predict has no setting {unknown[0]!r}", f"use one of {known}")
    path = f"{type(model).__name__} in memory" if isinstance(model, nn.Module) else str(model)
    values: dict[str, Any] = {
        "model": {**given.pop("loading", {}), "path": path},
        "rows": {**given.pop("columns", {}), "files": [GIVEN]},
        "output": {"file": str(out or "rows.jsonl"), "prefix": given.pop("prefix", "")},
        "task": task.model_dump(mode="json") if isinstance(task, Section) else task,
    }
    if "limit" in values["rows"]:
        raise ConfigError("columns.limit is for files", "give fewer rows")
    return load_inference_config(None, {**values, **_plain(given)})


def _plain(given: Mapping[str, Any]) -> dict[str, Any]:
    """Paths as texts, as a file has them."""
    return {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
