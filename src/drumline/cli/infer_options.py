"""The options of `drumline infer`, as one record, and the settings that they stand for."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from drumline.cli.options import Overrides


@dataclass(frozen=True)
class InferOptions:
    """What was given; None and empty: was not."""

    model: Annotated[
        str | None, typer.Option(help="Folder of a model or adapter, a run's directory, or a name on the hub.")
    ] = None
    data: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="File with rows (.jsonl, .json, .csv, .tsv, .parquet, .txt), or a folder; may be given again.",
        ),
    ] = None
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to make: .jsonl, .csv or .parquet; OUT.run is its ledger.")
    ] = None
    task: Annotated[
        str | None, typer.Option(metavar="KIND", help="generate, choose, classify, token_classify, embed or score.")
    ] = None
    limit: Annotated[int | None, typer.Option(metavar="N", help="Only the first N rows.")] = None
    strategy: Annotated[str | None, typer.Option(metavar="NAME", help="A named prompt, or a YAML file with one.")] = (
        None
    )
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What is asked, with row fields: 'Is this a cat? {text}'.")
    ] = None
    labels: Annotated[
        str | None, typer.Option(metavar="A,B", help="What may be answered; the task is choose then, unless given.")
    ] = None
    config_file: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="YAML file with settings; options win over it.")
    ] = None
    overrides: Overrides = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show settings and workers, and do nothing.")] = False
    so_far: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Only write the rows that are answered by now into FILE; wants --out."),
    ] = None

    def values(self) -> dict[str, Any]:
        """The settings, nested, that were given."""
        below: dict[str, Any] = {"prompt": _without_none(strategy=self.strategy, prompt=self.prompt)}
        if self.labels is not None:
            below["labels"] = [label.strip() for label in self.labels.split(",") if label.strip()]
        kind = self.task if self.task is not None or self.labels is None else "choose"
        settings = {
            "model": _without_none(path=self.model),
            "rows": _without_none(files=self.data or None, limit=self.limit),
            "output": _without_none(file=None if self.out is None else str(self.out)),
            "task": {name: value for name, value in {"kind": kind, **below}.items() if value},
        }
        return {name: section for name, section in settings.items() if section}


def with_options(command: Callable[[InferOptions], None]) -> Callable[..., None]:
    """Turn a function of the record into one with a parameter for each option, as typer reads it."""
    signature = inspect.signature(InferOptions, eval_str=True)
    parameters = [
        parameter.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) for parameter in signature.parameters.values()
    ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        command(InferOptions(**given))

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _without_none(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}
