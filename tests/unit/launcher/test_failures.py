from __future__ import annotations

import json
from pathlib import Path

import pytest

from drumline.errors import ConfigError, DrumlineError, GroupError, LaunchError, PeerFailed, ValueRangeError
from drumline.launcher.failures import (
    LAST_SEEN_MARK,
    PLACE_MARK,
    Failure,
    earliest,
    failure_of,
    failure_of_exit,
    first_failure,
    record_failure,
)
from drumline.rundir import write_json

GLOO = "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:37164"


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def test_record_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "rank_3.error.json"
    record_failure(path, 3, raised(ValueError("boom")))
    assert set(json.loads(path.read_text())) == {
        "rank",
        "time",
        "code",
        "exit_status",
        "message",
        "traceback",
        "last_seen",
    }
    failure = first_failure([tmp_path / "rank_0.error.json", path])
    assert failure is not None
    assert (failure.rank, failure.code, failure.exit_status) == (3, "error", 1)
    assert failure.message.startswith("ValueError: boom (")
    assert failure.traceback is not None and failure.traceback.endswith("ValueError: boom\n")
    assert [entry.name for entry in tmp_path.iterdir()] == ["rank_3.error.json"]


def test_no_error_files_are_no_failure(tmp_path: Path) -> None:
    assert first_failure([tmp_path / "rank_0.error.json"]) is None


def test_a_drumline_error_keeps_code_status_and_fix_and_needs_no_traceback() -> None:
    failure = failure_of(1, raised(ConfigError("lr is negative", "set train.lr=3e-4")))
    assert (failure.code, failure.exit_status, failure.traceback) == ("config", 2, None)
    error = failure.to_error(Path("rank_1.log"))
    assert isinstance(error, LaunchError)
    assert (error.code, error.exit_status) == ("config", 2)
    assert str(error) == "rank 1 failed: lr is negative\n  fix: set train.lr=3e-4"


def test_another_error_points_to_the_log() -> None:
    error = failure_of(0, raised(KeyError("x"))).to_error(Path("logs/rank_0.log"))
    assert error.problem.startswith("rank 0 failed: KeyError: 'x' (")
    assert error.fix == "see logs/rank_0.log"
    assert error.exit_status == 1


def test_the_place_is_the_users_line_not_drumlines(tmp_path: Path) -> None:
    # The innermost frame is in drumline.rundir; this test's own is the innermost of the user's.
    try:
        write_json(tmp_path / "absent" / "x.json", {})
    except OSError as error:
        message = failure_of(0, error).message
    assert f"({__file__}:" in message


def test_the_place_of_a_syntax_error_is_the_broken_line() -> None:
    try:
        compile("a = 1\nb = = 2\n", "train.py", "exec")
    except SyntaxError as error:
        assert failure_of(0, error).message.endswith("(train.py:2)")


@pytest.mark.parametrize(
    ("code", "status", "message"),
    [(5, 5, "exit with status 5"), (300, 1, "exit with status 300"), ("no data", 1, "no data")],
)
def test_exits(code: int | str, status: int, message: str) -> None:
    failure = failure_of(0, raised(SystemExit(code)))
    assert (failure.code, failure.exit_status) == ("exit", status)
    assert failure.message.startswith(f"{message} (")


@pytest.mark.parametrize(
    ("exit_code", "code", "status", "message"),
    [
        (-9, "signal", 1, "killed by signal 9, SIGKILL (out of memory killer?)"),
        (-15, "signal", 1, "killed by signal 15, SIGTERM"),
        (-40, "signal", 1, "killed by signal 40"),
        (7, "exit", 7, "exit with status 7"),
    ],
)
def test_deaths_without_a_record(exit_code: int, code: str, status: int, message: str) -> None:
    assert failure_of_exit(1, exit_code, 12.5) == Failure(1, 12.5, code, status, message)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(GLOO),
        RuntimeError("ncclRemoteError: A call failed possibly due to a network error or a remote process exiting "
                     "prematurely. remote process exited or there was a network error"),
        PeerFailed("rank 1 failed", "see its log"),
        raised(GroupError("the gradient reduction failed", "see the other ranks"), RuntimeError(GLOO)),
    ],
)  # fmt: skip
def test_errors_that_only_tell_of_a_peer(error: BaseException) -> None:
    assert failure_of(0, error).is_consequence


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(104, "Connection reset by peer"),
        RuntimeError("shapes differ"),
        ValueRangeError("id", "fix"),
    ],
)
def test_errors_of_the_ranks_own(error: BaseException) -> None:
    assert not failure_of(0, error).is_consequence


def failure(rank: int, time: float, code: str = "error") -> Failure:
    return Failure(rank, time, code, 1, "")


def test_the_earliest_wins() -> None:
    assert earliest([failure(0, 2.0), failure(1, 1.0)]) == failure(1, 1.0)
    assert earliest([]) is None


def test_a_consequence_never_wins_over_a_cause_that_was_recorded_later() -> None:
    consequence, cause = failure(0, 1.0, "peer_failed"), failure(1, 1.5)
    assert earliest([consequence, cause]) == cause


def test_of_consequences_alone_the_earliest_wins() -> None:
    assert earliest([failure(0, 2.0, "peer_failed"), failure(2, 1.0, "peer_failed")]) == failure(2, 1.0, "peer_failed")


def test_first_failure_applies_the_same_rule_to_files(tmp_path: Path) -> None:
    paths = [tmp_path / f"rank_{rank}.error.json" for rank in range(3)]
    record_failure(paths[0], 0, RuntimeError(GLOO))
    record_failure(paths[2], 2, DrumlineError("cause", "fix"))
    found = first_failure(paths)
    assert found is not None and found.rank == 2


def test_a_hang_wins_over_what_was_ended_because_of_it() -> None:
    killed, hang = failure(1, 1.0, "signal"), failure(0, 2.0, "hang")
    assert earliest([killed, hang]) == hang
    report = Failure(0, 2.0, "hang", 1, "no progress for 3 s: rank 1 did not arrive\n  fix: see that line")
    assert str(report.to_error(Path("log"))).startswith("the run hangs: no progress for 3 s")


def test_a_rank_without_a_word_is_told_of_by_where_others_saw_it_last(tmp_path: Path) -> None:
    error = raised(RuntimeError(GLOO))
    error.add_note(f"{LAST_SEEN_MARK}1: update 5, micro-batch 1 of 1, step 4, at train.py:9 in forward")
    path = tmp_path / "rank_0.error.json"
    record_failure(path, 0, raised(PeerFailed("rank 1 is gone", "see its log"), error))
    seen = first_failure([path])
    assert seen is not None and seen.is_consequence
    found = earliest([seen, failure_of_exit(1, -9, 1.0)])
    assert found is not None and found.rank == 1
    assert found.message.endswith("; last seen: update 5, micro-batch 1 of 1, step 4, at train.py:9 in forward")


def test_an_exception_says_where_the_run_stood() -> None:
    error = raised(ValueError("boom"))
    error.add_note(f"{PLACE_MARK}update 3, reading window 2 of epoch 0, step 2")
    assert failure_of(1, error).message.endswith("), update 3, reading window 2 of epoch 0, step 2")
