"""The report, from whole, broken and hostile run directories."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from drumline.plan.record import Plan
from drumline.rundir import LineWriter, RunDir, write_json
from drumline.track.page import MAX_ROWS
from drumline.track.plots import PLOT_NAMES
from drumline.track.report import read_run, summarise, write_report
from drumline.track.report_page import render_page

PLAN = Plan("ddp", "cpu", (), 2, 2, "gloo", 64, 32, 1, "fp32", 0, 400, 100, {"kind": "two processes & room for each"})
START = 1_764_300_000.0


class Page(HTMLParser):
    """The words, links, ids and unclosed tags of a page."""

    VOID = frozenset({"meta", "br", "img", "link", "input", "hr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        self.links += [value or "" for name, value in attrs if name in {"src", "href", "data", "action", "srcset"}]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += [data.strip()] if data.strip() else []


def lines(path: Path, records: list[dict[str, Any]]) -> None:
    writer = LineWriter(path)
    for record in records:
        writer.write(record)
    writer.close()


def metrics() -> list[dict[str, Any]]:
    train = [
        {"time": START + step, "kind": "train", "step": step, "epoch": 0, "loss": 2 + 30 / step, "lr": 1e-3}
        | {
            "units_per_s": 3000.0 + step,
            "unit": "tokens",
            "memory_resident_bytes": [5e8, 6e8],
            "elapsed_s": float(step),
        }
        for step in range(10, 401, 10)
    ]
    evals = [
        {
            "time": START + step,
            "kind": "eval",
            "step": step,
            "epoch": 0,
            "loss": loss,
            "count": 1512,
            "elapsed_s": step + 2.0,
        }
        for step, loss in ((100, 2.5), (200, 2.25), (300, math.nan), (400, 2.3))
    ]
    return sorted(train + evals, key=lambda record: record["step"])


def make_run(path: Path) -> RunDir:
    run = RunDir.create(path)
    run.config.write_text("name: moby\nseed: 0\nmodel:\n  kind: decoder\n", encoding="utf-8")
    write_json(run.plan, PLAN.to_json())
    write_json(
        run.env, {"drumline": "0.1.0", "host": {"cpu_cores": 2}, "gpus": [{"name": "H100"}], "backends": ["gloo"]}
    )
    lines(run.metrics, metrics())
    events = [
        {"time": START, "event": "start", "rank": 0, "message": "2 processes"},
        {"time": START + 61, "event": "warning", "rank": 1, "message": "slow loader", "waited_s": 3.5},
    ]
    lines(run.events, events)
    write_json(run.exit, {"exit_status": 0, "reason": "done", "message": "400 updates", "steps": 400})
    return run


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a whole run, written once: it is drawing that takes time."""
    return write_report(make_run(tmp_path_factory.mktemp("runs") / "moby").path)


def page_of(run: Path) -> Page:
    """The page without its plots, which are what takes time."""
    records = read_run(run)
    return checked(render_page(records, summarise(records), []))


def checked(text: str) -> Page:
    page = Page(text)
    assert page.open == []
    assert "script" not in page.tags
    assert page.handlers == []
    assert all(link.startswith("#") for link in page.links)
    return page


def test_the_page_has_everything_and_loads_nothing(report: Path) -> None:
    assert report.parts[-3:] == ("moby", "report", "index.html")
    files = {file.name for file in report.parent.iterdir()}
    assert files == {"index.html", *(f"{name}.png" for name in PLOT_NAMES)}
    page = checked(report.read_text(encoding="utf-8"))
    assert page.tags.count("svg") == 5
    words = page.words
    assert words.count("moby") == 1
    assert "moby - drumline report" in words
    assert "done" in words
    assert words[words.index("evaluation loss") + 1] == "2.3000"
    assert "best 2.2500 at update 200" in words
    assert words[words.index("duration") + 1] == "0:06:42"
    assert words[words.index("tokens/s") + 1] == "3,205"
    assert words[words.index("kind") : words.index("kind") + 3] == ["kind", "ddp", "two processes & room for each"]
    assert words[words.index("host.cpu_cores") + 1] == "2"
    assert words[words.index("gpus[0].name") + 1] == "H100"
    assert words[words.index("warning") - 1 :][:4] == ["+0:01:01", "warning", "1", "slow loader; waited_s 3.5"]
    assert any(word.startswith("name: moby\nseed: 0") for word in words)
    assert "1,512" in words
    assert "nan" in words


def test_a_page_can_be_printed_and_read_in_the_dark(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    for wanted in ("@media print", "prefers-color-scheme: dark", "default-src 'none'"):
        assert wanted in text
    used = set(re.findall(r"var\((--[a-z]+)\)", text))
    for block in text.split("@media (prefers-color-scheme: dark)")[:2]:
        assert used <= set(re.findall(r"(--[a-z]+):", block))


def test_another_folder_may_be_given_and_the_report_written_again(report: Path, tmp_path: Path) -> None:
    run = report.parent.parent
    (tmp_path / "loss.png").write_text("an older one")
    again = write_report(run, tmp_path)
    assert again == tmp_path / "index.html"
    assert again.read_bytes() == report.read_bytes()
    assert (tmp_path / "loss.png").read_bytes() == (report.parent / "loss.png").read_bytes()


@pytest.mark.parametrize("missing", ["config", "plan", "env", "metrics", "events", "exit"])
def test_each_file_may_be_missing(missing: str, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run_of_mine")
    getattr(run, missing).unlink()
    page = page_of(run.path)
    assert ("run_of_mine" if missing == "config" else "moby") in page.words
    if missing == "exit":
        assert "no end on record: it is still running, or was killed" in page.words
    if missing == "metrics":
        assert "evaluation loss" not in page.words


def test_an_empty_directory_still_gives_a_page(tmp_path: Path) -> None:
    page = checked(write_report(tmp_path).read_text(encoding="utf-8"))
    assert page.words.count("Nothing was recorded.") == 6
    assert page.words.count("nothing was recorded") == 5


def test_broken_files_cost_their_own_part_and_are_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "moby")
    run.env.write_text("{", encoding="utf-8")
    run.config.write_text("name: [", encoding="utf-8")
    whole = run.metrics.read_bytes().splitlines(keepends=True)
    run.metrics.write_bytes(b"".join(whole[:11]) + whole[11][:20] + b"\n" + b"".join(whole[12:]))
    with run.events.open("ab") as file:
        file.write(b'{"event": "torn')
    records = read_run(run.path)
    assert (len(records.train), len(records.evals), len(records.events)) == (10, 1, 2)
    assert [note.split(":")[0] for note in records.notes] == [
        "metrics.jsonl is broken after 11 records, the rest is not shown",
        "config.yaml cannot be read",
        "env.json cannot be read",
    ]
    page = page_of(run.path)
    assert all(note in page.words for note in records.notes if "\n" not in note)


def test_nothing_from_a_file_becomes_markup(tmp_path: Path) -> None:
    evil = "</title></pre><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"
    run = make_run(tmp_path / "<img src=x onerror=alert(1)>")
    run.config.write_text(f"name: {evil!r}\n", encoding="utf-8")
    write_json(run.plan, PLAN.to_json() | {evil: evil, "reasons": {"kind": evil}, "device": evil})
    write_json(run.env, {evil: [evil, {"a": evil}]})
    write_json(run.exit, {"exit_status": 1, "reason": evil, "message": evil, "steps": 3})
    lines(run.events, [{"time": evil, "event": evil, "rank": evil, "message": evil, evil: evil}])
    lines(run.metrics, [{"kind": kind, "step": 5, "loss": 1.0, "unit": evil, evil: 1.0} for kind in ("eval", "train")])
    page = checked(write_report(run.path).read_text(encoding="utf-8"))
    assert page.words.count(evil) >= 6
    assert "img" not in page.tags
    run.config.unlink()
    assert "<img src=x onerror=alert(1)>" in page_of(run.path).words


def test_values_by_rank_and_fifty_metrics(tmp_path: Path) -> None:
    run = make_run(tmp_path / "moby")
    metrics = {"accuracy": 0.75} | {f"metric_{k}": k / 4 for k in range(49)} | {"by_class": [0.5, 0.25]}
    lines(run.metrics, [{"time": START + 401, "kind": "eval", "step": 400, "loss": 2.0, "count": 9, **metrics}])
    last = {"memory_peak_bytes": [2**30, 1.5 * 2**30], "memory_allocated_bytes": [2.0**20 * rank for rank in range(99)]}
    lines(run.metrics, [{"time": START + 402, "kind": "train", "step": 410, "loss": 2.0, "critic/loss": 1.5, **last}])
    words = page_of(run.path).words
    tiles = words[: words.index("Evaluations")]
    assert tiles[tiles.index("evaluation accuracy") + 1] == "0.7500"
    assert "evaluation metric_1" in tiles and "evaluation metric_2" not in tiles
    assert tiles[tiles.index("memory") :][1:3] == ["1.5 GiB", "highest of all ranks"]
    assert {"metric_0", "metric_48", "12.0000", "0.5000, 0.2500"} <= set(words)
    line = words[words.index("Last log line") :]
    assert line[line.index("memory_peak_bytes") + 1] == "1.0 GiB, 1.5 GiB"
    assert line[line.index("memory_allocated_bytes") + 1] == "0 MiB to 98 MiB"
    assert line[line.index("critic/loss") + 1] == "1.5000"


def test_a_failed_tracker_stands_out(tmp_path: Path) -> None:
    run = make_run(tmp_path / "moby")
    lines(run.events, [{"event": "tracker_failed", "rank": 0, "tracker": "Sink", "message": "Sink.log: no answer"}])
    records = read_run(run.path)
    assert (
        '<tr class="warn"><td class="key">' in render_page(records, summarise(records), []).split("tracker_failed")[0]
    )
    assert "Sink.log: no answer; tracker Sink" in page_of(run.path).words


def test_long_tables_are_shortened_in_the_middle(tmp_path: Path) -> None:
    run = make_run(tmp_path / "moby")
    lines(run.events, [{"event": "skipped", "rank": 0, "message": f"update {k}"} for k in range(1000)])
    words = page_of(run.path).words
    assert f"… {1002 - MAX_ROWS} rows left out" in words
    assert {"update 97", "update 900", "update 999"} <= set(words)
    assert not {"update 98", "update 899"} & set(words)


def test_the_summary_takes_best_from_finite_values_and_medians(tmp_path: Path) -> None:
    run = make_run(tmp_path / "moby")
    records = read_run(run.path)
    summary = summarise(records)
    assert (summary.status, summary.exit_status, summary.steps, summary.total_steps) == ("done", 0, 400, 400)
    assert (summary.best_eval_loss, summary.best_eval_step, summary.last_eval_loss) == (2.25, 200, 2.3)
    assert (summary.duration_s, summary.units_per_s, summary.unit) == (402.0, 3205.0, "tokens")
    assert (summary.mfu, summary.memory_bytes, summary.last_train_loss) == (None, 6e8, 2.075)
    assert summary.last_eval_metrics == {}
    scored = {
        "kind": "eval",
        "step": 7,
        "loss": 2.0,
        "f1": 0.5,
        "auc": math.nan,
        "count": 3,
        "by_class": [1.0],
        "x": "y",
    }
    assert summarise(replace(records, evals=[scored])).last_eval_metrics == {"f1": 0.5, "auc": None}
    killed = summarise(replace(records, end={}, evals=[{"kind": "eval", "step": 7, "loss": math.nan}]))
    assert (killed.exit_status, killed.steps) == (None, 400)
    assert (killed.best_eval_loss, killed.last_eval_loss, killed.best_eval_step) == (None, None, None)
