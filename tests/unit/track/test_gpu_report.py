"""The report of a run whose GPUs were recorded."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from drumline.rundir import RunDir, write_json
from drumline.track import plots
from drumline.track.comparison import read_runs
from drumline.track.comparison_page import render_comparison
from drumline.track.gpu_page import energy, gpu_sections
from drumline.track.gpu_plots import draw_gpus, time_unit
from drumline.track.gpu_records import labels_of, phases_of, spent_by, summaries_of, values_of
from drumline.track.report import read_run, summarise, write_report
from tests.unit.track.test_report import START, checked, lines, make_run, page_of

TELLS = ("utilization", "sm_active", "memory_used_bytes", "power_w", "temperature_c")


def gpu_line(
    elapsed_s: float, node: str = "a", uuids: tuple[str, ...] = ("GPU-0", "GPU-1"), **more: Any
) -> dict[str, Any]:
    wave = math.sin(elapsed_s / 40)
    means = dict(zip(TELLS, (0.97, 0.8 + 0.1 * wave, (60 + wave) * 2**30, 620 + 50 * wave, 60 + 4 * wave), strict=True))
    fields = {name: {"mean": v, "min": 0.9 * v, "max": 1.1 * v, "p95": v} for name, v in means.items()}
    return {
        "time": START + elapsed_s,
        "kind": "gpu",
        "step": int(elapsed_s),
        "elapsed_s": elapsed_s,
        "node": node,
        "gpus": dict.fromkeys(uuids, fields),
        **{"energy_j": 1240.0 * elapsed_s, "gpu_s": 2 * elapsed_s, "cost": 0.002 * elapsed_s},
        **more,
    }


def make_recorded(path: Path, machines: int = 1) -> RunDir:
    run = make_run(path)
    lines(run.metrics, [gpu_line(float(second)) for second in range(15, 401, 15)])
    if machines == 2:
        theirs = [gpu_line(float(second), "b", ("GPU-8", "GPU-9")) for second in range(15, 401, 15)]
        lines(run.logs / "gpus_b.jsonl", theirs)
        lines(run.logs / "events_b.jsonl", [{"time": START + 30, "event": "xid", "gpu": "GPU-8", "code": 63}])
    alert = {"rule": "idle", "subject": "GPU-0", "severity": "warning", "message": "idle <b>", "action": "look"}
    lines(run.events, [{"time": START + 70, "event": "alert", "state": "firing", **alert}])
    return run


def test_the_page_shows_gpus_on_the_clock_of_the_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "draw_plots", lambda *_: [])  # what is drawn of every run takes seconds
    report = write_report(make_recorded(tmp_path / "moby").path)
    assert (report.parent / "gpus.png").exists()
    page = checked(report.read_text(encoding="utf-8"))
    assert page.tags.count("svg") == 1
    words = page.words
    for word in ("at work (%)", "power (W)", "training loss", "time (min)", "GPU-0", "GPU-1"):
        assert word in words
    row = words.index("SMs at work")
    assert words[row + 5 :][:7] == ["GPU-0", "97%", "82%", "67.1 GiB", "630 W", "70 °C", "GPU-1"]


def test_energy_cost_and_alerts_are_told(tmp_path: Path) -> None:
    page = page_of(make_recorded(tmp_path / "moby").path)
    assert page.words[page.words.index("GPU energy") + 1] == "134.33 Wh"
    assert page.words[page.words.index("GPU hours") + 1] == "0.22"
    assert page.words[page.words.index("cost") + 1] == "0.78"
    alerts = page.words.index("Alerts")
    assert page.words[alerts + 6 :][:6] == ["+70 s", "firing", "warning", "GPU-0", "idle <b>", "look"]


def test_training_s_own_numbers_are_as_without(tmp_path: Path) -> None:
    plain, recorded = make_run(tmp_path / "plain").path, make_recorded(tmp_path / "recorded").path
    first, second = summarise(read_run(plain)), summarise(read_run(recorded))
    assert (first.energy_j, first.cost) == (None, None)
    for name in ("steps", "duration_s", "units_per_s", "last_train_loss", "best_eval_loss", "memory_bytes"):
        assert getattr(first, name) == getattr(second, name)
    assert "GPUs" not in page_of(plain).words


def test_machines_are_told_apart_and_added_up(tmp_path: Path) -> None:
    records = read_run(make_recorded(tmp_path / "moby", machines=2).path)
    assert labels_of(records.gpus, {}) == {f"GPU-{n}": f"{'a' if n < 2 else 'b'} GPU-{n}" for n in (0, 1, 8, 9)}
    spent = spent_by(records.gpus)
    assert spent is not None
    assert (spent.energy_j, spent.gpu_s) == (2 * 1240 * 390, 4 * 390)
    assert [event["event"] for event in records.events] == ["start", "xid", "warning", "alert"]


def test_indexes_are_used_where_they_are_known(tmp_path: Path) -> None:
    run = make_recorded(tmp_path / "moby")
    write_json(run.env, {"gpus": [{"uuid": "GPU-1", "index": 7}, "nonsense"]})
    records = read_run(run.path)
    assert [gpu.label for gpu in summaries_of(records.gpus, records.env)] == ["GPU-0", "GPU 7"]


def test_broken_records_cost_only_themselves() -> None:
    records: list[dict[str, Any]] = [
        gpu_line(15.0),
        {"kind": "gpu", "gpus": "none"},
        {"kind": "gpu", "elapsed_s": "late", "gpus": {"GPU-0": {"power_w": 5}}},
        gpu_line(30.0, gpus={"GPU-0": {"power_w": {"mean": math.nan}}}),
        gpu_line(45.0),
    ]
    assert [time for time, _ in values_of(records, "GPU-0", "power_w")] == [15.0, 45.0]
    [first, second] = summaries_of(records, {})
    assert first.power_w == pytest.approx((620 + 50 * math.sin(15 / 40) + 620 + 50 * math.sin(45 / 40)) / 2)
    assert second.label == "GPU-1"


def test_without_records_nothing_is_drawn() -> None:
    assert draw_gpus([{"loss": 1.0, "elapsed_s": 3.0}], [], {}) == []
    assert draw_gpus([], [{"kind": "gpu", "gpus": {}}], {}) == []


def test_phases_are_told_apart() -> None:
    def line(elapsed_s: float, phase: str, seconds: float, watts: float, node: str = "a") -> dict[str, Any]:
        gpus = {f"GPU-{node}": {"power_w": {"mean": watts, "min": watts, "max": watts, "p95": watts}}}
        return gpu_line(elapsed_s, node, phase=phase, seconds=seconds, gpus=gpus)

    records = [
        line(15, "training", 15, 600),
        line(20, "evaluation", 5, 300),
        line(30, "training", 5, 200),
        line(30, "training", 20, 400, "b"),
    ]
    training, evaluation = phases_of(records)
    assert (training.phase, training.seconds, training.power_w) == ("training", 20, (9000 + 1000 + 8000) / 40)
    assert (evaluation.phase, evaluation.seconds, evaluation.power_w) == ("evaluation", 5, 300)
    assert (training.utilization, phases_of([gpu_line(15.0)])) == (None, [])
    page = checked("".join(gpu_sections(records, {})))
    assert page.words[page.words.index("GPUs by phase") + 4 :][:4] == ["power a GPU", "training", "0:00:20", "450 W"]
    assert "GPUs by phase" not in checked("".join(gpu_sections(records[:1], {}))).words


def test_runs_are_compared_by_what_they_took(tmp_path: Path) -> None:
    runs = read_runs([make_recorded(tmp_path / name).path for name in ("a", "b")])
    page = checked(render_comparison(runs, []))
    assert page.words.count("134.33 Wh") == 2


def test_units() -> None:
    assert [time_unit(seconds)[0] for seconds in (20, 299, 300, 17_999, 18_000)] == ["s", "s", "min", "min", "h"]
    assert (energy(1800.0), energy(359_000.0), energy(3.6e9)) == ("0.50 Wh", "99.72 Wh", "1,000.00 kWh")
