"""How ranks agree on a checkpoint, and what they take back from it; whole runs are with the rank tests."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from drumline.config.schema import RunConfig
from drumline.engine.meter import Meter, by_rank
from drumline.engine.resume import agree_on_checkpoint, check_rows, look, take_back_meters, trim_metrics
from drumline.engine.run import Progress
from drumline.errors import DataError
from drumline.launcher.world import World
from drumline.manifest import MANIFEST, Entry, Manifest, digest
from drumline.parallel.groups import Groups
from drumline.rundir import RESTART_REQUEST, LineWriter, RunDir, read_lines, write_json


class Meeting:
    """The side channel of ranks that are threads of this process."""

    def __init__(self, size: int) -> None:
        self._barrier = threading.Barrier(size, timeout=10)
        self._given: list[Any] = [None] * size

    def side_of(self, rank: int) -> Any:
        def exchange(tag: str, payload: Any = None) -> list[Any]:
            self._given[rank] = json.loads(json.dumps(payload))
            self._barrier.wait()
            answers = list(self._given)
            self._barrier.wait()
            return answers

        return SimpleNamespace(exchange=exchange)


def agreed(directories: Sequence[RunDir], local_ranks: Sequence[int]) -> list[tuple[int | None, list[str]]]:
    """What each rank comes to, in these run directories: the step, and the names of what was passed over."""
    size = len(directories)
    meeting = Meeting(size)

    def one(rank: int) -> tuple[int | None, list[str]]:
        world = World(rank, size, local_ranks[rank], size)
        groups = SimpleNamespace(world=world, side=meeting.side_of(rank))
        run: Any = SimpleNamespace(groups=groups, directory=directories[rank])
        step, skipped = agree_on_checkpoint(run)
        return step, sorted(Path(name).name for name in skipped)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(one, range(size)))


def save(run: RunDir, *steps: int) -> None:
    for step in steps:
        path = run.checkpoint_of(step)
        path.mkdir(parents=True)
        (path / "state.pt").write_bytes(b"x" * step)
        entry = Entry("state.pt", 0, step, digest(path / "state.pt"))
        write_json(path / MANIFEST, Manifest(step, (entry,), 2, "ddp", "whole").to_json())


@pytest.fixture
def nodes(tmp_path: Path) -> list[RunDir]:
    """Two machines' folders."""
    return [RunDir(tmp_path / name) for name in ("first", "second")]


def test_the_newest_one_where_all_share_a_folder(nodes: list[RunDir]) -> None:
    save(nodes[0], 2, 10, 9)
    assert agreed([nodes[0]] * 3, [0, 1, 2]) == [(10, [])] * 3


def test_no_checkpoint_at_all(nodes: list[RunDir]) -> None:
    assert agreed(nodes, [0, 0]) == [(None, [])] * 2


def test_a_damaged_one_is_passed_over_also_by_ranks_that_do_not_read_it(nodes: list[RunDir]) -> None:
    save(nodes[0], 2, 4, 6)
    (nodes[0].checkpoint_of(6) / "state.pt").write_bytes(b"y" * 6)  # of the right size: only its checksum tells
    (nodes[0].checkpoint_of(4) / MANIFEST).unlink()
    assert agreed([nodes[0]] * 2, [0, 1]) == [(2, ["step_4", "step_6"])] * 2


def test_the_newest_that_every_machine_has(nodes: list[RunDir]) -> None:
    save(nodes[0], 2, 4, 6, 10)
    save(nodes[1], 2, 4, 8)
    (nodes[1].checkpoint_of(4) / "state.pt").unlink()
    step, skipped = agreed(nodes, [0, 0])[0]
    assert (step, skipped) == (2, ["step_4"])
    save(nodes[1], 6)
    assert agreed(nodes, [0, 0]) == [(6, [])] * 2


def test_none_where_the_machines_have_none_in_common(nodes: list[RunDir]) -> None:
    save(nodes[0], 2, 6)
    save(nodes[1], 4)
    (nodes[1].checkpoint_of(4) / MANIFEST).unlink()
    assert agreed(nodes, [0, 0]) == [(None, ["step_4"])] * 2


def test_a_request_of_an_attempt_that_has_ended_is_removed_on_each_machine(nodes: list[RunDir]) -> None:
    """Its folder may be its own, of which rank 0 sees nothing."""
    request = nodes[1].requests / RESTART_REQUEST
    request.parent.mkdir(parents=True)
    request.touch()
    told: list[dict[str, Any]] = [{"path": str(nodes[1].path), "kept": [[], None]}]
    side = SimpleNamespace(exchange=lambda *said: told)
    for world, there in ((World(3, 4, 1, 2), True), (World(2, 4, 0, 2), False)):
        look(cast(Groups, SimpleNamespace(world=world, side=side)), RunConfig(), None, "run")
        assert request.exists() == there


def run_at(progress: Progress, directory: RunDir | None = None, *, rank: int = 0, size: int = 1) -> Any:
    world = World(rank, size, rank, size)
    return SimpleNamespace(
        progress=progress, directory=directory, meter=Meter(), groups=SimpleNamespace(world=world), began=100.0
    )


def test_metrics_end_where_the_checkpoint_was_made(nodes: list[RunDir]) -> None:
    nodes[0].path.mkdir()
    writer = LineWriter(nodes[0].metrics)
    # The second evaluation at step 4 came of an epoch's end after updates that were all skipped.
    for kind, step in [("eval", 0), ("train", 2), ("train", 4), ("eval", 4), ("eval", 4), ("train", 6), ("eval", 6)]:
        writer.write({"kind": kind, "step": step, "elapsed_s": 10.0 + step})
    writer.close()
    history: list[dict[str, float]] = [{"step": 0}, {"step": 4}]
    run = run_at(Progress(step=4, history=history), nodes[0])
    trim_metrics(run)
    found = [(record["kind"], record["step"]) for record in read_lines(nodes[0].metrics)]
    assert found == [("eval", 0), ("train", 2), ("train", 4), ("eval", 4)]
    assert run.began == 100 - 14
    trim_metrics(run_at(Progress(), nodes[0]))
    assert list(read_lines(nodes[0].metrics)) == []


def test_sums_go_back_to_their_ranks_or_all_to_rank_zero() -> None:
    parts = [{"total": [3.5, 2.0]}, {"total": [4.25, 1.0], "metric/own": [1.0, 1.0]}]
    kept = by_rank(parts)
    assert kept == {"total": [3.5, 2.0, 4.25, 1.0], "metric/own": [0.0, 0.0, 1.0, 1.0]}

    def taken(rank: int, size: int) -> dict[str, list[float]]:
        run = run_at(Progress(meters=kept), rank=rank, size=size)
        take_back_meters(run)
        assert run.progress.meters == {}
        found: dict[str, list[float]] = run.meter.take()
        return found

    assert taken(0, 2)["total"] == [3.5, 2.0]
    assert taken(1, 2) == {"total": [4.25, 1.0], "metric/own": [1.0, 1.0]}
    assert taken(0, 3) == {"total": [7.75, 3.0], "metric/own": [1.0, 1.0]}
    assert taken(1, 3) == taken(2, 3) == {}


def test_data_of_another_length_is_another_order() -> None:
    with pytest.raises(DataError, match="an epoch has 9 rows of training data, and had 8"):
        check_rows(run_at(Progress(rows=8)), 9, Path("step_4"))
    for before, now in ((8, 8), (None, 9), (8, None)):
        run = run_at(Progress(rows=before))
        check_rows(run, now, Path("step_4"))
        assert run.progress.rows == now


def test_the_state_of_an_older_version_is_taken() -> None:
    state = {"step": 4, "epoch": 1, "window": 2, "skipped": 0, "skipped_in_a_row": 0, "history": []}
    progress = Progress.from_state({**state, "patience": {"best": None, "waited": 0}})
    assert (progress.step, progress.meters, progress.rows, progress.micro_batch) == (4, {}, None, None)
