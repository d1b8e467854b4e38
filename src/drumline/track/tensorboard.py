"""TensorBoard files. Only here is tensorboard known."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from drumline.errors import MissingExtra
from drumline.plan.record import Plan
from drumline.track.units import as_float, as_text, leaves

NO_CURVES = frozenset({"time", "kind", "step", "unit"})
"""What of a record is no curve."""

SESSION_START = 1
"""SessionLog.START of TensorBoard's event.proto: events of this step and later ones, from before, are void."""


def load_tensorboard() -> None:
    """Import what is used of tensorboard. Raises MissingExtra where it is not installed."""
    try:
        import tensorboard.compat.proto.event_pb2
        import tensorboard.plugins.hparams.summary_v2
        import tensorboard.summary.writer.record_writer  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingExtra("tensorboard", "track") from error


class TensorBoardTracker:
    """Writes each record's numbers as scalars `train/<name>` and `eval/<name>` at its step; lists as one curve a rank.

    The plan and the settings become text and hyper-parameters. Each call writes its records to the file before it
    returns. TensorBoard's own writer does that in a thread, which dies on a full disk with nothing but a traceback on
    the screen, and imports TensorFlow where that is installed.
    """

    def __init__(self, folder: Path, config: Path | None = None, resumed: int | None = None) -> None:
        """Write into `folder`, made when the run starts; `config`: the run's config.yaml. Raises MissingExtra.

        resumed: the update after which the run goes on; what other files say of later ones is not shown any more.
        """
        load_tensorboard()
        self._folder = folder
        self._config = config
        self._resumed = resumed
        self._writer: Any = None

    def start(self, plan: Plan, total_steps: int | None) -> None:
        """Open the file and describe the run."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._folder.mkdir(parents=True, exist_ok=True)
        number = len(list(self._folder.glob("events.out.tfevents.*")))  # a resumed run has several
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{number}"
        self._writer = RecordWriter((self._folder / name).open("xb"))
        self._write(file_version="brain.Event:2")
        if self._resumed is not None:
            self._write(step=self._resumed + 1, session_log={"status": SESSION_START})
        facts = {**plan.to_json(), "total_steps": total_steps}
        reasons = facts.pop("reasons")
        config = "" if self._config is None else self._config.read_text(encoding="utf-8")
        settings = {"plan": facts, **(yaml.safe_load(config) or {})}
        self._write(summary={"value": [_text("plan", _table(facts, reasons)), _text("config", _verbatim(config))]})
        self._write(summary=hparams_pb({key: _hyper(value) for key, value in leaves(settings)}))

    def log(self, record: dict[str, Any]) -> None:
        """Write one record's numbers, which are NaN or infinite where the record's are."""
        room = record.get("kind", "train")
        values = [{"tag": f"{room}/{name}", "simple_value": value} for name, value in curves(record)]
        self._write(step=int(record.get("step", 0)), summary={"value": values})

    def close(self) -> None:
        """Close the file; closing twice is allowed."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def _write(self, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.write(Event(wall_time=time.time(), **fields).SerializeToString())
        self._writer.flush()


def curves(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """A record's numbers by name, a list's as `<name>/rank_<n>`; what is no number is passed over."""
    for name, value in record.items():
        if name in NO_CURVES:
            continue
        if isinstance(value, list):
            parts = [(f"{name}/rank_{rank}", as_float(part)) for rank, part in enumerate(value)]
        else:
            parts = [(name, as_float(value))]
        yield from ((tag, number) for tag, number in parts if number is not None)


def _hyper(value: Any) -> bool | float | str:
    return value if isinstance(value, bool | int | float) else as_text(value)


def _text(tag: str, markdown: str) -> dict[str, Any]:
    """A text as TensorBoard's text plugin wants it; the tag's ending is the one that its own writers give."""
    return {
        "tag": f"{tag}/text_summary",
        "metadata": {"plugin_data": {"plugin_name": "text"}},
        "tensor": {
            "dtype": "DT_STRING",
            "tensor_shape": {"dim": [{"size": 1}]},
            "string_val": [markdown.encode()],
        },
    }


def _table(facts: Mapping[str, Any], reasons: Mapping[str, str]) -> str:
    rows = [f"| {key} | {as_text(value)} | {reasons.get(key, '')} |" for key, value in facts.items()]
    return "\n".join(["| | value | why |", "|---|---|---|", *rows])


def _verbatim(text: str) -> str:
    """As a block of code in Markdown."""
    return "\n".join(f"    {line}" for line in text.splitlines())
