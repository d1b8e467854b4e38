"""What is wrong with a run's settings beside its rows, found before a model is loaded."""

from __future__ import annotations

from collections.abc import Sequence

from drumline.config.inference import ChooseTask, ClassifyTask, GenerateTask, InferenceConfig
from drumline.errors import DataError
from drumline.infer.choose import refuse_few
from drumline.infer.prompts import check_fields, no_prompt
from drumline.infer.strategies import load_strategy

IMAGE_COLUMNS = ("image", "path")
"""Of rows that have one, a classifier may read images; of which kind it is, only the model says."""


def check_question(config: InferenceConfig) -> None:
    """Raise ConfigError for a task that asks a model nothing, and for a choice between fewer than two labels."""
    task = config.task
    if not isinstance(task, GenerateTask | ChooseTask):
        return
    asked = task.prompt
    strategy = None if asked.strategy is None else load_strategy(asked.strategy)
    if asked.messages is None and not asked.prompt and strategy is None:
        raise no_prompt()
    if isinstance(task, ChooseTask):
        refuse_few(task.labels or (strategy.labels if strategy else []))


def check_named(config: InferenceConfig, columns: Sequence[str]) -> None:
    """Raise DataError for settings that name a column which no row has: `columns` are those of all rows together."""
    if not columns:
        return
    task, rows = config.task, config.rows
    wanted = {"rows.label": rows.label}
    if isinstance(task, GenerateTask | ChooseTask):
        check_fields(task.prompt, columns)
    elif not (isinstance(task, ClassifyTask) and any(name in columns for name in IMAGE_COLUMNS)):
        pair = {"rows.text_pair": rows.text_pair} if isinstance(task, ClassifyTask) else {}
        wanted = {"rows.text": rows.text, **pair, **wanted}
    for setting, name in wanted.items():
        if name is not None and name not in columns:
            raise DataError(
                f"no row has a column {name!r}, which {setting} names; the rows have {', '.join(columns)}",
                f"--set {setting}=COLUMN with one of these, or name other rows",
            )
