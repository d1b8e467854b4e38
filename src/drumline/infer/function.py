"""Any model of one's own: `predict(model, batch)` gives one answer a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from drumline.errors import ConfigError
from drumline.infer.records import ERROR, Answer, Facts, Prepared, Row
from drumline.parallel.objective import to_device

Predict = Callable[[nn.Module, Any], Any]
Collate = Callable[[list[Any]], Any]

_FIX = "return a tensor, a list, or a dict of such, whose first dimension is the rows of the batch"


class FunctionPredictor:
    """`prediction`, or the columns of the mapping that `predict` returns."""

    def __init__(
        self, model: nn.Module, predict: Predict, device: torch.device, collate: Collate | None = None
    ) -> None:
        """predict: gets the model and a batch on the device. collate: makes a batch of rows, each a dict by column;
        None: torch's own way, which stacks numbers and lists texts.
        """
        self._model = model
        self._predict = predict
        self._device = device
        self._collate: Collate = collate or default_collate
        self._columns: tuple[str, ...] = ("prediction",)

    @property
    def columns(self) -> tuple[str, ...]:
        """Known once a batch was run; until then that of a function that returns no mapping."""
        return self._columns

    def prepare(self, rows: Sequence[Row]) -> list[Prepared | str]:
        """Rows as they are; each counts as one token."""
        return [row.problem or Prepared(row.number, 1, 1, dict(row.values)) for row in rows]

    def survey(self, prepared: Sequence[Prepared]) -> Facts:
        """Nothing has to be agreed on."""
        return {}

    def settle(self, facts: Facts) -> None:
        """Nothing has to be prepared."""

    @torch.inference_mode()
    def run(self, rows: Sequence[Prepared | None], width: int) -> list[Answer]:
        """What the function says to each row that is there; another row stands in for one that is not."""
        there = [row for row in rows if row is not None]
        if not there:
            return []
        records = [(there[0] if row is None else row).payload for row in rows]
        outputs = self._predict(self._model, to_device(self._collate(records), self._device))
        values = by_row(outputs, len(rows))
        if isinstance(outputs, Mapping):
            self._columns = tuple(map(str, outputs))
        return [values[place] for place, row in enumerate(rows) if row is not None]


def by_row(outputs: Any, num_rows: int) -> list[Answer]:
    """One answer a row of what a function returned for so many. Raises ConfigError where it is not one a row."""
    if not isinstance(outputs, Mapping):
        return [{"prediction": value} for value in values_of(outputs, num_rows, "predict(model, batch)")]
    if ERROR in outputs:
        raise ConfigError(f"predict(model, batch) returned a column {ERROR!r}", "give it another name")
    columns = {str(name): values_of(values, num_rows, f"column {name!r}") for name, values in outputs.items()}
    return [{name: values[place] for name, values in columns.items()} for place in range(num_rows)]


def values_of(values: Any, num_rows: int, what: str) -> list[Any]:
    """A value a row, as an answer may hold it. Raises ConfigError for another number, and for what JSON has not."""
    values = on_host(values)
    if isinstance(values, np.ndarray):
        if values.ndim == 0:
            raise ConfigError(f"{what} gave one number for {num_rows} rows", _FIX)
        values = list(values) if values.ndim == 2 else values.tolist()
    if not isinstance(values, list | tuple):
        raise ConfigError(f"{what} gave a {type(values).__name__} for {num_rows} rows", _FIX)
    if len(values) != num_rows:
        raise ConfigError(f"{what} gave {len(values)} values for {num_rows} rows", _FIX)
    return [plain(value, what) for value in values]


def on_host(value: Any) -> Any:
    """A tensor as an array; what NumPy has no type for becomes float32."""
    if not isinstance(value, Tensor):
        return value
    return (value.float() if value.dtype == torch.bfloat16 else value).detach().cpu().numpy()


def plain(value: Any, what: str) -> Any:
    """One value as an answer may hold it: as JSON has it, or a vector of float32, which the ledger keeps as bytes.

    Raises ConfigError for what is neither.
    """
    value = on_host(value)
    if isinstance(value, np.ndarray | np.generic):
        return value if value.ndim == 1 and value.dtype == np.float32 else value.tolist()
    if isinstance(value, Mapping):
        return {str(name): plain(each, what) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, what) for each in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise ConfigError(f"{what} gave a {type(value).__name__}, which JSON does not have", _FIX)
