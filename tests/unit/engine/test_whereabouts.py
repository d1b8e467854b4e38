from __future__ import annotations

import os
import signal
import subprocess
import threading

import pytest
import torch
from torch import nn

from drumline.engine.whereabouts import born, doing, is_debugged, line_of, process_space, stack_of, state_of, waits
from drumline.parallel import side_channel
from drumline.parallel.heartbeats import Frame


def test_the_stack_of_another_thread_ends_at_the_users_line() -> None:
    entered, leave = threading.Event(), threading.Event()

    def stand_still() -> None:
        entered.set()
        leave.wait(10)

    thread = threading.Thread(target=stand_still)
    thread.start()
    entered.wait(10)
    assert thread.ident is not None
    stack = stack_of(thread.ident)
    leave.set()
    thread.join()
    line = line_of(stack)
    assert line is not None and (line.file, line.function) == (__file__, "stand_still")
    assert stack[0].file == threading.__file__
    assert stack_of(thread.ident) == []


def test_without_a_line_of_the_users_the_innermost_of_drumlines_counts() -> None:
    ours, torchs = Frame(side_channel.__file__, 3, "exchange"), Frame(torch.__file__, 5, "f")
    assert line_of([torchs, ours]) == ours
    assert line_of([torchs]) == torchs
    assert line_of([]) is None


C10D = torch.distributed.distributed_c10d.__file__
AUTOGRAD = torch.autograd.graph.__file__


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([side_channel.__file__], "waits for the other ranks"),
        (["/home/me/x.py", nn.modules.module.__file__], "is in a forward pass"),
        ([AUTOGRAD, "/home/me/x.py"], "is in a backward pass"),
        ([torch.utils.data.dataloader.__file__], "reads rows"),
        (["/home/me/x.py"], ""),
    ],
)
def test_what_a_stack_tells(files: list[str], said: str) -> None:
    assert doing([Frame(file, 1, "f") for file in files]) == said


def test_a_collective_is_called_by_the_name_that_the_user_called() -> None:
    stack = [Frame(C10D, 1, "all_gather"), Frame(C10D, 2, "all_gather_object"), Frame("/home/me/x.py", 3, "mine")]
    assert doing(stack) == "is in the collective all_gather_object"
    assert waits(stack) and not waits(stack[2:])


def test_a_debugger_is_seen() -> None:
    assert is_debugged([Frame("/usr/lib/python3.12/bdb.py", 1, "f")])
    assert not is_debugged([Frame("/home/me/db.py", 1, "f")])


def test_states_of_a_process() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        started = born(child.pid)
        assert started > born(os.getpid()) > 0
        assert state_of(child.pid, started) == "runs"
        assert state_of(child.pid, started - 100) == "dead"  # its number is another one's now
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        assert state_of(child.pid, started) == "stopped"
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert state_of(child.pid, started) == "dead"  # not reaped yet
    finally:
        child.kill()
        child.wait()
    assert state_of(child.pid, started) == "dead"


def test_the_space_of_process_numbers_is_this_machines() -> None:
    assert "pid:[" in process_space() and process_space() == process_space()
