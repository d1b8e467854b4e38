"""What a whole run leaves on the screen and in its directory holds no text that it was trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drumline.rundir import read_lines
from tests.cli.real_command import Command

pytestmark = pytest.mark.system

SECRET = "My sister Alma lives at 12 Harbour Street and owes the bank nine thousand"
WORDS = (b"sister", b"Alma", b"Harbour")
TRAIN = "train: {global_batch: 4, max_steps: 2}\nhardware: {device: cpu, num_processes: 2}\n"


def trained(
    folder: Path, rows: list[dict[str, Any]], recipe: str, last: bytes = b""
) -> tuple[int, list[dict[str, Any]]]:
    """Train on rows, every second of them held out too; gives exit status and events, once no word was found."""
    lines = [json.dumps(row).encode() + b"\n" for row in rows]
    (folder / "train.jsonl").write_bytes(b"".join(lines) + last)
    (folder / "eval.jsonl").write_bytes(b"".join(lines[::2]))
    data = "cache_dir: cache, train: [train.jsonl], eval: [eval.jsonl]"
    (folder / "tiny.yaml").write_text(f"name: tiny\n{recipe.replace('DATA', data)}\n{TRAIN}")
    ended = Command(folder, "train", "tiny.yaml").wait()
    run = folder / "runs" / "tiny"
    said = [ended.out.encode(), ended.err.encode(), *(file.read_bytes() for file in run.rglob("*") if file.is_file())]
    assert not [word for word in WORDS for part in said if word.lower() in part.lower()], ended.out + ended.err
    return ended.status, list(read_lines(run / "events.jsonl"))


def test_language_modelling_with_bad_rows(tmp_path: Path) -> None:
    rows = [{"text": f"{SECRET} {i % 30}"} for i in range(40)]
    model = "model: {num_layers: 1, num_heads: 2, width: 16}"
    data = "data: {kind: records, context: 32, max_bad_fraction: 0.2, DATA}"
    status, events = trained(tmp_path, rows, f"{data}\n{model}", b'{"text": "' + SECRET.encode() + b"\n")
    assert status == 0
    [report] = [event for event in events if event["event"] == "data_report"]
    assert (report["train"]["bad_rows"], report["train"]["duplicates"]) == (1, 10)
    assert report["leakage"]["rows"] == 20
    assert report["train"]["tokens"]["num_cut"] == 40


@pytest.mark.parametrize("many", [True, False], ids=["texts as classes", "no classes"])
def test_a_column_of_texts_that_is_taken_for_the_label(tmp_path: Path, many: bool) -> None:
    rows = [{"text": f"row {i}", "label": f"{SECRET} {i % 4 * many}"} for i in range(12)]
    recipe = "data: {kind: records, context: 32, DATA}\ntask: {kind: classification}\nmodel: {kind: ngrams}"
    status, events = trained(tmp_path, rows, recipe)
    assert status == (0 if many else 2)
    assert ("data_report" in {event["event"] for event in events}) is many
