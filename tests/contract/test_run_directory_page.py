"""The page about the run directory names every file, metric and event that there is."""

from __future__ import annotations

import re
from pathlib import Path

from drumline.rundir import RunDir
from drumline.track.protocol import RECORD_KEYS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "run-directory.md").read_text(encoding="utf-8")


EVENT = (
    r'\bevent\(\s*"(\w+)"',
    r'"event": "(\w+)"',
    r'\bnote\(self\.\w+, "(\w+)"',
    r'\b_(?:tell|record)\(\w+, "(\w+)"',
    r'OUT_OF_MEMORY = "(\w+)"',
)


def events_in(source: Path) -> set[str]:
    """Names that are given to a writer of events, or stand in a record as "event", anywhere below a folder."""
    texts = [path.read_text() for path in source.rglob("*.py")]
    return {name for text in texts for pattern in EVENT for name in re.findall(pattern, text)}


def test_every_metric_is_described() -> None:
    assert not {name for name in RECORD_KEYS if f"`{name}`" not in PAGE}


def test_every_event_is_described() -> None:
    events = events_in(ROOT / "src")
    assert {"start", "end", "checkpoint"} <= events
    assert not {name for name in events if f"`{name}`" not in PAGE}


def test_every_file_is_described() -> None:
    run = RunDir(Path("run"))
    names = [name for name, value in vars(RunDir).items() if isinstance(value, property)]
    files = {getattr(run, name).name for name in names}
    assert {"config.yaml", "metrics.jsonl"} <= files
    assert not {name for name in files if name not in PAGE}


def test_a_new_event_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text('run.event("unheard_of", step=1)\n')
    assert events_in(tmp_path) == {"unheard_of"}
