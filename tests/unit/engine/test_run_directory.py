"""What a run leaves in its directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from drumline import __version__
from drumline.config.load import load_config
from drumline.data.windows import Feed
from drumline.parallel.strategy import MicroBatch
from drumline.rundir import read_json, read_lines
from tests.unit.engine.training import config_of, rows, trainer_of


def test_files_of_a_run(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with trainer_of(
        directory, eval_data=rows(5, seed=1), train={"epochs": 2}, track={"every": 2}, checkpoint={"at_end": True}
    ) as trainer:
        result = trainer.fit()
        assert result.evaluation is not None
    assert sorted(path.name for path in directory.iterdir()) == [
        "checkpoints",
        "config.yaml",
        "env.json",
        "events.jsonl",
        "exit.json",
        "logs",
        "metrics.jsonl",
        "plan.json",
        "requests",
    ]
    assert directory.stat().st_mode & 0o777 == 0o700
    assert load_config(directory / "config.yaml") == config_of(
        directory, train={"epochs": 2}, track={"every": 2}, checkpoint={"at_end": True}
    )
    plan = read_json(directory / "plan.json")
    assert (plan["world_size"], plan["global_batch"], plan["steps"], plan["kind"]) == (1, 4, 6, "single")
    assert plan.keys() - plan["reasons"].keys() == {"reasons"}
    assert read_json(directory / "env.json")["drumline"] == __version__
    assert read_json(directory / "exit.json") == {"exit_status": 0, "reason": "done", "message": "", "steps": 6}
    assert [path.name for path in (directory / "checkpoints").iterdir()] == ["step_6"]


def test_events_tell_the_story_in_order(tmp_path: Path) -> None:
    with trainer_of(tmp_path / "run", checkpoint={"every": 2}) as trainer:
        trainer.fit()
    records = list(read_lines(tmp_path / "run" / "events.jsonl"))
    assert [record["event"] for record in records] == ["start", "plan", "checkpoint", "end"]
    assert all(record["rank"] == 0 and record["time"] > 1.7e9 for record in records)
    assert records[0]["world_size"] == 1
    assert records[2]["step"] == 2
    assert (records[3]["step"], records[3]["reason"]) == (3, "done")


def test_metrics_have_a_line_an_interval_and_an_evaluation(tmp_path: Path) -> None:
    with trainer_of(tmp_path / "run", eval_data=rows(5, seed=1), train={"epochs": 2}, track={"every": 4}) as trainer:
        trainer.fit()
    lines = list(read_lines(tmp_path / "run" / "metrics.jsonl"))
    assert [(line["kind"], line["step"], line["epoch"]) for line in lines] == [
        ("eval", 3, 0),
        ("train", 4, 1),
        ("train", 6, 1),
        ("eval", 6, 1),
    ]
    for line in lines:
        expected = {"time", "kind", "step", "epoch", "elapsed_s", "loss"}
        if line["kind"] == "eval":
            expected |= {"count"}
        else:
            expected |= {"lr", "grad_norm", "samples_per_s", "units_per_s", "unit", "loader_wait_s"}
            expected |= {"skipped", "memory_resident_bytes"}
            assert line["samples_per_s"] > 0
            assert [num_bytes > 1e6 for num_bytes in line["memory_resident_bytes"]] == [True]
            assert line["loader_wait_s"] >= 0
            assert (line["lr"], line["skipped"], line["unit"]) == (0.05, 0, "samples")
        assert line.keys() == expected
    assert [line["count"] for line in lines if line["kind"] == "eval"] == [5, 5]


class Slow:
    """A feed whose evaluations take 50 s by the clock."""

    waited_s = 0.0

    def __init__(self, feed: Feed, clock: list[float]) -> None:
        self._clock = clock
        self._feed = feed
        self.epoch = feed.epoch
        self.recut = feed.recut
        self.close = feed.close

    def evaluation(self) -> Iterator[MicroBatch]:
        self._clock[0] += 50.0
        return self._feed.evaluation()


def test_rates_leave_evaluation_out(tmp_path: Path) -> None:
    clock = [100.0]
    with trainer_of(tmp_path / "run", eval_data=rows(4), evaluate={"every": 1}, train={"epochs": 2}) as trainer:
        run = trainer._run
        run.clock = lambda: clock[0]
        assert run.evaluation_feed is not None
        run.evaluation_feed = Slow(run.evaluation_feed, clock)
        for info in trainer.steps():
            clock[0] += 2.0
            assert info.logged is not None
            if info.step > 1:
                assert info.logged["samples_per_s"] == info.samples / 2.0


def test_records_are_whole_lines_of_json(tmp_path: Path) -> None:
    with trainer_of(tmp_path / "run") as trainer:
        for info in trainer.steps():
            text = (tmp_path / "run" / "metrics.jsonl").read_text()
            assert text.endswith("\n")
            assert json.loads(text.splitlines()[-1])["step"] == info.step
