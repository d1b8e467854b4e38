from __future__ import annotations

from dataclasses import replace

import pytest

from drumline.engine.verdict import Account, hangs, lowest_living, report
from drumline.engine.whereabouts import State
from drumline.parallel import side_channel
from drumline.parallel.heartbeats import Beat, Frame, Heard

POLL = Frame(side_channel.__file__, 200, "_poll")
MINE = Frame("/home/me/train.py", 12, "slow")
SLOW = Beat(1, 2, "callbacks after update 2", 3.1, stack=(MINE,), line=MINE, host="here", pid=77)
WAITING = Beat(1, 2, "update 3, meeting the other ranks", 3.2, stack=(POLL, MINE), line=MINE, host="here", pid=78)


@pytest.mark.parametrize(
    ("other", "silent_s", "expected"),
    [
        (SLOW, 0.0, True),
        (replace(SLOW, idle_s=2.9), 0.0, False),  # it came on a moment ago
        (replace(SLOW, idle_s=2.9), 0.5, True),  # so it had then, half a second ago
        (replace(SLOW, idle_s=0.0, busy="writing"), 0.0, False),
        (replace(SLOW, idle_s=0.0, busy="writing"), 1.9, False),  # its heart may beat again
        (replace(SLOW, idle_s=0.0, busy="writing"), 2.1, True),  # it does not
        (replace(SLOW, idle_s=0.0, away=True), 0.0, True),  # in the user's own code between two calls
    ],
)
def test_a_run_hangs_where_nobody_comes_on(other: Beat, silent_s: float, expected: bool) -> None:
    assert hangs([Heard(WAITING), Heard(other, silent_s)], limit_s=3.0, lost_s=2.0) is expected


def test_a_rank_of_which_nothing_was_heard_will_not_come_on() -> None:
    assert hangs([Heard(WAITING), None], 3.0, 2.0)


def test_the_lowest_living_rank_reports() -> None:
    assert lowest_living([Heard(SLOW, 9.0), None, Heard(replace(SLOW, away=True)), Heard(WAITING)], 2.0) == 3
    assert lowest_living([Heard(SLOW), Heard(WAITING)], 2.0) == 0
    assert lowest_living([None, Heard(SLOW, 9.0)], 2.0) is None


def test_the_report_of_a_callback_that_sleeps() -> None:
    found = report([Account(0, WAITING), Account(1, SLOW)], 3.0, 6.0)
    assert found.problem.splitlines() == [
        "no progress for 3 s (faults.hang_timeout_s=6, half of it after an update): rank 1 did not arrive, "
        "rank 0 waits",
        "  rank 1 is at its own work: callbacks after update 2, step 2, for 3.1 s, at /home/me/train.py:12 in slow",
        "    /home/me/train.py:12 in slow",
        "  rank 0 waits for the other ranks: update 3, meeting the other ranks, step 2, for 3.2 s, "
        "at /home/me/train.py:12 in slow",
    ]
    assert "raise faults.hang_timeout_s" in found.fix
    assert (found.facts["arrived"], found.facts["missing"]) == ([0], [1])
    assert found.facts["ranks"][1] == {
        "rank": 1,
        "state": "works",
        "place": "callbacks after update 2",
        "step": 2,
        "idle_s": 3.1,
        "line": "/home/me/train.py:12",
        "stack": ["/home/me/train.py:12 in slow"],
        "pending": [],
    }


@pytest.mark.parametrize(
    ("state", "said", "fix"),
    [
        (
            "stopped",
            "rank 1 is stopped by SIGSTOP or a debugger (process 77): callbacks after update 2, step 2",
            "-CONT",
        ),
        ("dead", "rank 1 is dead (process 77 is gone): callbacks after update 2, step 2", "out-of-memory"),
        ("runs", "no heart-beat for 2.5 s, though its process runs: it is in native code", "see that line"),
        ("unknown", "rank 1 has sent no heart-beat for 2.5 s (process 77 on here)", "see that line"),
    ],
)
def test_a_silent_rank_by_what_became_of_its_process(state: State, said: str, fix: str) -> None:
    found = report([Account(0, WAITING), Account(1, SLOW, 2.5, state)], 3.0, 3.0)
    assert said in found.problem and "/home/me/train.py:12" in found.problem
    assert fix in found.fix
    assert found.facts["ranks"][1]["state"] == state


def test_collectives_that_do_not_match() -> None:
    reduce = replace(WAITING, stack=(MINE,), pending=("gloo:all_reduce (number 2 of group 1; Float [4])",))
    gather = replace(reduce, pending=("gloo:all_gather (number 2 of group 1; Float [4])",))
    found = report([Account(0, reduce), Account(1, gather)], 3.0, 3.0)
    assert "all 2 ranks wait for each other, in different places" in found.problem
    assert "gloo:all_reduce (number 2" in found.problem and "gloo:all_gather (number 2" in found.problem
    assert "called on some of them only" in found.fix
    same = report([Account(0, reduce), Account(1, reduce)], 3.0, 3.0)
    assert "in the same place" in same.problem and "drumline doctor" in same.fix


def test_a_process_that_is_alone() -> None:
    found = report([Account(0, SLOW)], 3.0, 3.0)
    assert found.problem.startswith("no progress for 3 s (faults.hang_timeout_s=3): rank 0 is stuck\n")


def test_a_rank_without_a_beat_and_one_that_is_elsewhere() -> None:
    found = report([Account(0, WAITING), Account(1, None), Account(2, replace(SLOW, away=True))], 3.0, 3.0)
    assert "ranks 1, 2 did not arrive, rank 0 waits" in found.problem
    assert "rank 1 has sent no heart-beat at all" in found.problem
    assert "rank 2 is in no call of the trainer's, since this one: callbacks after update 2" in found.problem


def test_the_report_of_many_ranks_stays_short() -> None:
    found = report([Account(rank, WAITING) for rank in range(99)] + [Account(99, SLOW)], 3.0, 3.0)
    assert found.problem.count("waits for the other ranks") == 16
    assert found.problem.splitlines()[-1].endswith("97, 98")
