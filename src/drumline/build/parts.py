"""A run's model, data, task and trainer, from its config."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from drumline.build.data_report import data_report, tell_report
from drumline.build.features import prepare
from drumline.build.models import make_model, make_task
from drumline.build.rows import Loaded, load_rows
from drumline.config.changes import with_global_batch
from drumline.config.combinations import combination_problems
from drumline.config.model import PythonModel
from drumline.config.problem import refuse
from drumline.config.schema import RunConfig
from drumline.data.schema import shown_name, told_names
from drumline.data.source import as_source
from drumline.engine.trainer import Options, Trainer
from drumline.errors import ConfigError
from drumline.launcher.world import detect_world
from drumline.models.python_file import DataFacts, ModelFile, load_file
from drumline.rundir import LineWriter, RunDir, read_json, read_lines

logger = logging.getLogger("drumline.build")


@dataclass(frozen=True)
class Built:
    """What a recipe comes to, as Trainer takes it."""

    model: nn.Module
    train: Any
    options: Options
    loaded: Loaded | None
    """None: the user's file brings its own data."""


def build_trainer(config: RunConfig, run: RunDir) -> Trainer:
    """The trainer of a recipe, in a run directory that is prepared.

    Raises ConfigError and DataError before any process group exists.
    """
    built = build_parts(bound(config, run))
    keep(run, *data_events(config, built, run))
    built.options["run"] = run
    return Trainer(built.model, config, built.train, **built.options)


def build_joined(config: RunConfig) -> Trainer:
    """The trainer of a recipe whose run directory, run_dir, rank 0 makes or finds when all ranks have met here.

    Raises ConfigError and DataError before any process group exists.
    """
    assert config.run_dir is not None
    asked = RunDir(config.run_dir)
    built = build_parts(bound(config, asked))
    events = data_events(config, built, asked)
    trainer = Trainer(built.model, config, built.train, **built.options)
    keep(RunDir(trainer.run_dir), *events)
    return trainer


def bound(config: RunConfig, run: RunDir) -> RunConfig:
    """A config whose batch is stated for each GPU, with the global batch that the run has.

    Which rows meet in an update goes by it, and must be the same after a restart with fewer GPUs.
    """
    train = config.train
    if train.batch_size_per_gpu is None:
        return config
    if run.plan.exists():
        return with_global_batch(config, int(read_json(run.plan)["global_batch"]))
    return with_global_batch(
        config, train.batch_size_per_gpu * (train.gradient_accumulation_steps or 1) * detect_world().size
    )


def build_parts(config: RunConfig, *, device: str = "cpu") -> Built:
    """Data, model, task and what belongs to them; random weights depend on the seed alone.

    device: where the model is made; on `meta` it has shapes and no values, and takes no memory.
    """
    if problems := list(combination_problems(config)):
        raise refuse(problems)
    if isinstance(config.model, PythonModel):
        return build_from_file(config, load_file(config.model.file), device=device)
    loaded = load_rows(config)
    torch.manual_seed(config.seed)
    with torch.device(device):
        model = make_model(config, loaded)
    return assembled(config, loaded, model, make_task(config, loaded, model))


def build_from_file(config: RunConfig, file: ModelFile, *, device: str = "cpu") -> Built:
    """The same with a user's own model, and as much else as his file brings."""
    loss = file.make_loss(config)
    if "make_data" in file:
        if config.data is not None:
            raise ConfigError(
                f"{file.path} defines make_data, and the recipe has a data section", "keep one of the two"
            )
        train, held_out = file.make_data(config)
        torch.manual_seed(config.seed)
        with torch.device(device):
            model = file.make_model(config, DataFacts())
        options = Options(eval_data=held_out, loss=loss)
        return Built(model, train, with_optimizer(options, file), None)
    loaded = load_rows(config, own_loss=loss is not None)
    torch.manual_seed(config.seed)
    with torch.device(device):
        model = file.make_model(config, loaded.facts)
    built = assembled(config, loaded, model, make_task(config, loaded, model) if loss is None else loss)
    return Built(model, built.train, with_optimizer(built.options, file), loaded)


def with_optimizer(options: Options, file: ModelFile) -> Options:
    """Add the file's make_optimizer, where it has one."""
    make_optimizer = file.make_optimizer()
    if make_optimizer is not None:
        options["optimizer"] = make_optimizer
    return options


def assembled(config: RunConfig, loaded: Loaded, model: nn.Module, loss: Any) -> Built:
    """Add the features that the task reads of the rows."""
    train, held_out, collate = prepare(config, loaded, model)
    options = Options(eval_data=held_out, loss=loss)
    if collate is not None:
        options["collate"] = collate
    return Built(model, train, options, loaded)


def data_events(config: RunConfig, built: Built, run: RunDir) -> list[dict[str, Any]]:
    """Log on rank 0 what the data holds and what is to be seen to in it; both as lines for events.jsonl.

    The latter once a run, so not where it goes on.
    """
    if built.loaded is None or detect_world().rank != 0:
        return []
    events = [] if built.loaded.reads == "packed" else [data_event(built.loaded)]
    if any(line.get("event") == "data_report" for line in read_lines(run.events)):
        return events
    found = data_report(config, built.loaded, built.train, built.options.get("eval_data"))
    if found is not None:
        tell_report(found)
        events.append({"event": "data_report", "rank": 0, **found.event()})
    return events


def keep(run: RunDir, *events: dict[str, Any]) -> None:
    """Write lines into events.jsonl."""
    if not events:
        return
    lines = LineWriter(run.events)
    for event in events:
        lines.write(event)
    lines.close()


def data_event(loaded: Loaded) -> dict[str, Any]:
    """Log what the data holds; the same as an event, in which the names of the classes are found later."""
    facts: dict[str, Any] = {}
    for name, rows in (("train", loaded.train), ("eval", loaded.evaluation)):
        if rows is None:
            continue
        schema = rows.schema
        logger.info("data.%s: %s", name, schema.describe().replace("\n", "; "))
        facts[name] = {
            "rows": schema.num_rows,
            "bad_rows": schema.num_bad,
            "bad_rows_files": [str(path) for path in schema.bad_rows],
            "columns": {shown_name(column): str(values) for column, values in schema.columns.items()},
        }
    if loaded.form is not None:
        logger.info("data.row_format: %s, since %s", loaded.form.kind, loaded.form.reason)
        # By which `drumline chat` knows how the model is to be spoken to.
        facts["row_format"], facts["row_format_reason"] = loaded.form.kind, loaded.form.reason
        facts["template"] = None if loaded.template is None else loaded.template.where
    if loaded.template is not None:
        logger.info("data.template: %s", loaded.template.where)
    if loaded.classes is not None:
        logger.info("data: %s", loaded.classes.describe())
        facts["classes"] = list(told_names(loaded.classes.names))
    return {"event": "data", "rank": 0, **facts}


def first_batch(built: Built) -> None:
    """Read one row of each split as a batch, and let the task look at it, as the run would."""
    task: Any = built.options.get("loss")
    collate = built.options.get("collate")
    for data in (built.train, built.options.get("eval_data")):
        if data is None:
            continue
        source = as_source(data, collate)
        row = next(iter(source.rows)) if source.is_stream else source.rows[0]
        batch = source.collate([row])
        if hasattr(task, "check"):
            task.check(batch)
            task.count(batch)
