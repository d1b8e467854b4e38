"""`drumline finetune`: a model and data in, a better model out; every setting that is not said is chosen and shown."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drumline.cli.options import Json, Overrides

if TYPE_CHECKING:
    from drumline.config.schema import RunConfig

Model = Annotated[str, typer.Option("--model", help="Folder of a Hugging Face model, or a name on the hub.")]
DataPaths = Annotated[
    list[str],
    typer.Option(
        "--data",
        help="Rows (.jsonl, .json, .csv, .tsv, .parquet), text files, a folder of them or with one folder a class, or "
        "a data set on the hub; may be given again.",
    ),
]
EvalPaths = Annotated[
    list[str] | None,
    typer.Option("--eval", help="The same for held-out rows, or the name of a split; else a share is held out."),
]
Task = Annotated[str | None, typer.Option("--task", help="What to learn (a task.kind); else told from the rows.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done, and why.")]


def register(app: typer.Typer) -> None:
    """Add the command `finetune`."""
    app.command("finetune")(finetune)


def finetune(
    model: Model,
    data: DataPaths,
    held_out: EvalPaths = None,
    task: Task = None,
    overrides: Overrides = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Fine-tune a model on your data, on every device of this machine; what you do not set is chosen, and shown.

    Under torchrun or srun each process becomes a rank of one run.
    """
    from drumline.cli.train import directory_of, train_in
    from drumline.errors import ConfigError
    from drumline.plan.finetuning import finetune_config

    if as_json and not dry_run:
        raise ConfigError("--json shows settings and goes with --dry-run", "add --dry-run, or leave it out")
    config, reasons = finetune_config(model, data, eval=held_out, task=task, overrides=overrides or ())
    if dry_run:
        print_choice(config, reasons, as_json=as_json)
        return
    path = directory_of(config, f"finetune-{name_of(model)}.yaml")
    print_choice(config, reasons, as_json=False)
    print(f"the same again, or on from where it was interrupted: drumline train {path}/config.yaml")
    sys.stdout.flush()
    # With the directory in it the config goes on in the same one, whatever it was called by.
    train_in(path, config.model_copy(update={"run_dir": path}))


def print_choice(config: RunConfig, reasons: Mapping[str, str], *, as_json: bool) -> None:
    """Print each setting that was chosen with its value and reason; as JSON all settings and the reasons."""
    from drumline.cli.output import print_json

    values = config.model_dump(mode="json")
    if as_json:
        print_json({"config": values, "reasons": dict(reasons)})
        return
    for name, why in reasons.items():
        typer.echo(f"  {name:<28} {_cell(values, name):<18} {why}")


def name_of(model: str) -> str:
    """A model's folder or hub name as part of a file's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", Path(model).name).strip("-.") or "model"


def _cell(values: Mapping[str, Any], name: str) -> str:
    found: Any = values
    for part in name.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    if isinstance(found, Mapping):
        kind = found.get("kind")
        inner = [f"{key}: {value}" for key, value in found.items() if key in ("rank", "alpha") and value is not None]
        return ", ".join([str(kind), *inner]) if kind else ", ".join(f"{key}: {value}" for key, value in found.items())
    if isinstance(found, Sequence) and not isinstance(found, str):
        return ", ".join(map(str, found))
    return "none" if found is None else str(found)
