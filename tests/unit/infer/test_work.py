from __future__ import annotations

import errno
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from drumline.errors import ConfigError, DataError, Interrupted
from drumline.infer import stop_requests
from drumline.infer.feeding import num_ahead
from drumline.infer.ledger_folder import FINAL_LOCK, lock_file
from drumline.infer.locks import Locks
from drumline.infer.records import Prepared, Row
from drumline.infer.work import WorkSettings, work
from drumline.predictions import PredictionDir, ProgressReader
from tests.unit.infer.toy import CPU, Toy, answer, begin, config_for, texts

ROWS = texts(130)


def read(output: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


def test_each_row_has_its_answer_in_the_input_s_order(tmp_path: Path) -> None:
    toy = Toy()
    rows = read(answer(tmp_path / "out.jsonl", ROWS, toy))
    assert [row["text"] for row in rows] == ROWS
    assert [row["answer"] for row in rows] == [text[::-1] for text in ROWS]
    assert {row["error"] for row in rows} == {None}
    assert sorted(number for batch in toy.ran for number in batch) == list(range(130))


def test_rows_are_prepared_beside_the_model_and_only_once(tmp_path: Path) -> None:
    class Counting(Toy):
        prepared = 0

        def prepare(self, rows: Sequence[Any]) -> list[Prepared | str]:
            self.prepared += len(rows)
            return super().prepare(rows)

    toy = Counting()
    answer(tmp_path / "out.jsonl", ROWS, toy)
    assert "drumline-planner" in toy.threads  # but for the first window, from which the facts are found
    assert toy.prepared == 130


def test_the_facts_are_settled_before_the_first_batch(tmp_path: Path) -> None:
    toy = Toy(hook=lambda rows, num, width: seen.append(dict(toy.settled)))
    seen: list[dict[str, Any]] = []
    answer(tmp_path / "out.jsonl", ROWS, toy)
    assert seen[0] == {"tokens": 64, "longest": max(map(len, ROWS[:40]))}


def test_attention_is_not_planned_for_each_width(tmp_path: Path) -> None:
    before = torch.backends.cuda.cudnn_sdp_enabled()
    seen: list[bool] = []
    toy = Toy(hook=lambda rows, num, width: seen.append(torch.backends.cuda.cudnn_sdp_enabled()))
    answer(tmp_path / "out.jsonl", ROWS, toy)
    assert seen and not any(seen)
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


@pytest.mark.parametrize("num_workers", [2, 3])
def test_any_number_of_workers_give_the_same_bytes(tmp_path: Path, num_workers: int) -> None:
    alone = answer(tmp_path / "alone.jsonl", ROWS)
    directory, config = begin(tmp_path / "shared.jsonl", ROWS)
    meet = threading.Barrier(num_workers)
    toys, failed = [Toy() for _ in range(num_workers)], []

    def one(toy: Toy) -> None:
        try:
            meet.wait(5)
            work(directory, toy, WorkSettings(config, CPU))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=one, args=(toy,)) for toy in toys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failed == []
    assert (tmp_path / "shared.jsonl").read_bytes() == alone
    assert sorted(number for toy in toys for batch in toy.ran for number in batch) == list(range(130))


def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path) -> None:
    alone = answer(tmp_path / "alone.jsonl", ROWS)
    directory, config = begin(tmp_path / "two.jsonl", ROWS)
    first, second = Toy(), Toy()
    with pytest.raises(Interrupted):
        work(directory, first, WorkSettings(config, CPU), stop=lambda: len(first.ran) >= 4)
    assert not (tmp_path / "two.jsonl").exists()
    assert 0 < ProgressReader(directory.path).look().rows_done < 130
    work(directory, second, WorkSettings(config, CPU))
    assert (tmp_path / "two.jsonl").read_bytes() == alone
    assert sorted(number for batch in first.ran + second.ran for number in batch) == list(range(130))


def test_a_file_asks_it_to_stop_and_the_next_worker_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop_requests, "LOOK_S", 0.0)
    directory, config = begin(tmp_path / "out.jsonl", ROWS)
    directory.run.requests.mkdir()
    file = directory.run.requests / "stop"

    def ask(rows: Sequence[int], num: int, width: int) -> None:
        file.write_text("{}")

    toy = Toy(hook=ask)
    with pytest.raises(Interrupted):
        work(directory, toy, WorkSettings(config, CPU))
    assert 0 < len(toy.ran) < 10
    os.utime(file, (time.time() - 1,) * 2)
    work(directory, Toy(), WorkSettings(config, CPU))
    assert len(read((tmp_path / "out.jsonl").read_bytes())) == 130


def test_who_waits_for_the_output_heeds_a_stop(tmp_path: Path) -> None:
    directory, config = begin(tmp_path / "out.jsonl", ROWS)

    def all_done() -> bool:
        return ProgressReader(directory.path).look().rows_done == 130

    locks = Locks(lock_file(directory))
    try:
        with locks.held(FINAL_LOCK), pytest.raises(Interrupted):
            work(directory, Toy(), WorkSettings(config, CPU), stop=all_done)
    finally:
        locks.close()


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_batch_that_is_broken_off_is_nobody_s_fault_and_goes_to_the_next(
    tmp_path: Path, error: type[BaseException]
) -> None:
    def broken(rows: Sequence[int], num: int, width: int) -> None:
        if len(first.ran) == 3:
            raise error

    alone = answer(tmp_path / "alone.jsonl", ROWS)
    directory, config = begin(tmp_path / "two.jsonl", ROWS)
    first = Toy(hook=broken)
    with pytest.raises(error):
        work(directory, first, WorkSettings(config, CPU))
    assert max(directory.state.read_bytes()[:4].replace(b"\xff", b"\0")) == 0  # its starts are taken back
    work(directory, Toy(), WorkSettings(config, CPU))
    assert (tmp_path / "two.jsonl").read_bytes() == alone


def in_prepare(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare, calls = toy.prepare, []

    def failing(rows: Sequence[Any]) -> list[Prepared | str]:
        calls.append(rows)
        if len(calls) == 2:  # the first one is asked for by the main thread, for the facts
            raise OSError(errno.EIO, "the input's disk")
        return prepare(rows)

    monkeypatch.setattr(toy, "prepare", failing)


def in_finish(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*ignored: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("drumline.infer.ledger.Ledger.finish", failing)


def in_record(toy: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*ignored: object) -> None:
        raise ValueError("no disk's fault")

    monkeypatch.setattr("drumline.infer.worker_record.WorkerRecord.add", failing)


@pytest.mark.parametrize("fails", [in_prepare, in_finish, in_record])
def test_what_fails_in_a_thread_ends_the_worker_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Callable[[Toy, pytest.MonkeyPatch], None]
) -> None:
    alone = answer(tmp_path / "alone.jsonl", ROWS)
    directory, config = begin(tmp_path / "two.jsonl", ROWS)
    toy = Toy()
    with monkeypatch.context() as patch:
        fails(toy, patch)
        with pytest.raises((OSError, ValueError), match=r"disk|space"):
            work(directory, toy, WorkSettings(config, CPU))
    work(directory, Toy(), WorkSettings(config, CPU))
    assert (tmp_path / "two.jsonl").read_bytes() == alone


def test_the_last_batch_s_answers_that_cannot_be_kept_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*ignored: object) -> None:
        raise MemoryError("no room for the line")

    directory, config = begin(tmp_path / "out.jsonl", ["one"])
    monkeypatch.setattr("drumline.infer.answers.AnswersWriter.write", failing)
    with pytest.raises(MemoryError, match="no room"):
        work(directory, Toy(), WorkSettings(config, CPU))
    assert directory.state.read_bytes() == b"\0"


def test_rows_that_cannot_be_prepared_get_errors_and_the_others_answers(tmp_path: Path) -> None:
    rows: list[dict[str, Any] | str] = list(texts(60))
    for number in (0, 7, 31, 32, 59):
        rows[number] = {"other": number}
    found = read(answer(tmp_path / "out.jsonl", rows))
    bad = [number for number, row in enumerate(found) if row["error"] is not None]
    assert bad == [0, 7, 31, 32, 59]
    assert {found[number]["error"] for number in bad} == {"the row has no field 'text'"}
    assert all(found[number]["answer"] is None for number in bad)


@pytest.mark.parametrize(
    "rows", [[], ["one"], ["the same"] * 50, [{"no": "text"}]], ids=["none", "one", "equal", "bad"]
)
def test_small_and_even_inputs(tmp_path: Path, rows: list[Any]) -> None:
    assert [row.get("answer") for row in read(answer(tmp_path / "out.jsonl", rows))] == [
        row[::-1] if isinstance(row, str) else None for row in rows
    ]


def test_a_row_that_raises_is_found_and_its_batch_mates_have_the_very_answers(tmp_path: Path) -> None:
    def poison(rows: Sequence[int], num: int, width: int) -> None:
        if 17 in rows or 90 in rows:
            raise ValueError(f"bad row {next(row for row in rows if row in (17, 90))}\nmore")

    calm = read(answer(tmp_path / "calm.jsonl", ROWS))
    found = read(answer(tmp_path / "found.jsonl", ROWS, Toy(hook=poison)))
    assert {n: row["error"] for n, row in enumerate(found) if row["error"]} == {
        17: "ValueError: bad row 17",
        90: "ValueError: bad row 90",
    }
    assert [row for n, row in enumerate(found) if n not in (17, 90)] == [
        row for n, row in enumerate(calm) if n not in (17, 90)
    ]


def test_memory_that_runs_out_makes_batches_smaller_and_a_row_alone_is_reported(tmp_path: Path) -> None:
    def small(rows: Sequence[int], num: int, width: int) -> None:
        if num * width > 40:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    rows = [*texts(20), "y" * 50]
    found = read(answer(tmp_path / "out.jsonl", rows, Toy(hook=small)))
    assert [row["answer"] for row in found[:20]] == [text[::-1] for text in rows[:20]]
    assert found[20]["error"] == "out of memory even alone (50 tokens)"
    events = [
        json.loads(line) for line in PredictionDir(tmp_path / "out.jsonl.run").run.events.read_text().splitlines()
    ]
    assert "out of memory" in json.dumps(events)


def test_the_record_says_what_was_done(tmp_path: Path) -> None:
    def poison(rows: Sequence[int], num: int, width: int) -> None:
        if 3 in rows:
            raise ValueError("bad")

    rows: list[Any] = [*texts(30), {"no": "text"}]
    answer(tmp_path / "out.jsonl", rows, Toy(hook=poison))
    directory = PredictionDir(tmp_path / "out.jsonl.run")
    progress = ProgressReader(directory.path).look()
    assert (progress.rows_done, progress.rows_failed, progress.rows_total) == (31, 2, 31)
    assert progress.tokens == sum(map(len, texts(30))) + 29


def test_a_worker_that_comes_when_all_is_done_does_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    output = answer(out, ROWS)
    toy = Toy()
    directory = PredictionDir(tmp_path / "out.jsonl.run")
    work(directory, toy, WorkSettings(config_for(out), CPU))
    assert toy.ran == []
    assert out.read_bytes() == output


@pytest.mark.parametrize(
    ("num_open", "last_s", "ahead"), [(100, 0.01, 2), (100, 3.0, 1), (5, 0.01, 1), (5, 3.0, 0), (5, None, 0)]
)
def test_leases_in_hand(num_open: int, last_s: float | None, ahead: int) -> None:
    assert num_ahead(num_open, last_s) == ahead


def test_rows_of_a_run_that_began_with_another_model_are_refused(tmp_path: Path) -> None:
    directory, config = begin(tmp_path / "out.jsonl", ROWS)
    first = Toy()
    with pytest.raises(Interrupted):
        work(directory, first, WorkSettings(config, CPU), stop=lambda: len(first.ran) >= 1)

    class Other(Toy):
        def _prepare(self, row: Row) -> Prepared | str:
            return "it is too long"

    with pytest.raises(DataError, match="was planned with another model or task: now it is too long"):
        work(directory, Other(), WorkSettings(config, CPU))


def test_columns_that_are_there_already_are_refused(tmp_path: Path) -> None:
    toy = Toy()
    with pytest.raises(ConfigError, match="'answer'"):
        answer(tmp_path / "out.jsonl", [{"text": "a", "answer": "b"}], toy)
    assert toy.ran == []
