"""A pool of spawned ranks that all rank tests share: importing torch costs seconds, a new group milliseconds.

The pytest process serves a store, as torch elastic's agent does, on which the code under test makes its groups. It is a
new one a call: torch's own env:// puts no prefix before its keys and would find the addresses of an earlier group.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from tests import leak_check
from tests.rank_process import Answer, Call, RankFailure, serve

T = TypeVar("T")

MAX_RANKS = 4
START_LIMIT_S = 120.0
ADDRESS = "127.0.0.1"


class RankError(AssertionError):
    """A rank raised. The fields are those of the rank that failed first; `errors` has every failed rank's."""

    def __init__(self, errors: Mapping[int, RankFailure]) -> None:
        first = min(errors.values(), key=lambda failure: failure.time)
        self.rank = first.rank
        self.type_name = first.type_name
        self.message = first.message
        self.traceback = first.traceback
        self.errors = dict(errors)
        others = "".join(
            f"\nrank {failure.rank} too: {failure.type_name}: {failure.message}"
            for failure in errors.values()
            if failure is not first
        )
        super().__init__(f"rank {first.rank}: {first.type_name}: {first.message}\n{first.traceback}{others}")


class RanksSilent(AssertionError):
    """Ranks that gave no answer within the limit. `errors` has the failures of those that did answer."""

    def __init__(self, ranks: list[int], timeout: float, errors: Mapping[int, RankFailure]) -> None:
        self.ranks = ranks
        self.errors = dict(errors)
        answered = f"\n{RankError(errors)}" if errors else ""
        super().__init__(f"no answer within {timeout} s from ranks {ranks}; their stacks are in their output{answered}")


class RankLeak(AssertionError):
    """Ranks that left something behind: a process group, a thread, an environment variable."""

    def __init__(self, leaks: Mapping[int, list[str]]) -> None:
        self.leaks = dict(leaks)
        super().__init__("\n".join(f"rank {rank} left behind: {leak}" for rank, all in leaks.items() for leak in all))


class RankPool:
    """Up to four living ranks, started when a test first needs them."""

    def __init__(self) -> None:
        self._processes: list[BaseProcess] = []
        self._connections: list[Connection] = []
        self._folder = tempfile.TemporaryDirectory(prefix="drumline-ranks-")
        self._num_calls = 0
        self.output: dict[int, str] = {}
        """What each rank wrote to its standard streams during the last call."""

    def run(self, world_size: int, fn: Callable[..., T], *args: Any, timeout: float = 30.0) -> list[T]:
        """Call `fn(*args)`, a module-level function of a test module, on ranks 0 to world_size - 1.

        Returns the results by rank; arguments and results must pickle. Each rank sees the variables that torch elastic
        sets, with this pool's store as the agent's. Raises RankError, RanksSilent or RankLeak.
        """
        return self._run(world_size, fn, args, timeout, grouped=False)

    def run_grouped(self, world_size: int, fn: Callable[..., T], *args: Any, timeout: float = 30.0) -> list[T]:
        """As `run`, inside a default gloo process group, for tests of plain torch code."""
        return self._run(world_size, fn, args, timeout, grouped=True)

    def close(self) -> None:
        """End every rank, by its handle, and remove what they wrote."""
        self._stop(grace_s=5.0)
        self._folder.cleanup()

    def _run(
        self, world_size: int, fn: Callable[..., T], args: tuple[Any, ...], timeout: float, *, grouped: bool
    ) -> list[T]:
        if not 1 <= world_size <= MAX_RANKS:
            raise ValueError(f"the pool has 1 to {MAX_RANKS} ranks, not {world_size}")
        if "<" in fn.__qualname__:
            raise ValueError(f"{fn.__qualname__} is not a module-level function, so a rank cannot import it")
        from torch.distributed import TCPStore

        self._start(world_size)
        store = TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False)
        self._num_calls += 1
        starts = [self._log(rank).stat().st_size for rank in range(world_size)]
        arguments = pickle.dumps(args)
        for rank in range(world_size):
            call = Call(
                path=inspect.getfile(fn),
                module=fn.__module__,
                name=fn.__qualname__,
                arguments=arguments,
                environment=self._environment(rank, world_size, store.port),
                grouped=grouped,
                timeout=timeout,
            )
            self._connections[rank].send(call)
        answers = self._collect(world_size, timeout)
        self._show(starts)
        return _results(answers, world_size, timeout)

    def _start(self, world_size: int) -> None:
        """Bring the pool to at least `world_size` ranks and wait until the new ones have imported torch."""
        context = multiprocessing.get_context("spawn")
        new = range(len(self._processes), world_size)
        for rank in new:
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, str(self._log(rank))), name=f"rank {rank}")
            process.start()
            theirs.close()
            assert process.pid is not None
            leak_check.allowed_children.add(process.pid)
            self._processes.append(process)
            self._connections.append(ours)
        for rank in new:
            if not self._connections[rank].poll(START_LIMIT_S):
                self._stop(grace_s=0.0)
                raise RanksSilent([rank], START_LIMIT_S, {})
            try:
                self._connections[rank].recv()
            except EOFError:
                self._stop(grace_s=0.0)
                raise AssertionError(f"rank {rank} did not start:\n{self._log(rank).read_text()}") from None

    def _environment(self, rank: int, world_size: int, port: int) -> dict[str, str]:
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            "LOCAL_WORLD_SIZE": str(world_size),
            "MASTER_ADDR": ADDRESS,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RUN_ID": f"call-{os.getpid()}-{self._num_calls}",
            "TORCHELASTIC_RESTART_COUNT": "0",
        }

    def _collect(self, world_size: int, timeout: float) -> dict[int, Answer]:
        """Wait for the answers; where one is missing, or a rank died, the pool goes (the next call rebuilds it)."""
        answers: dict[int, Answer] = {}
        pending = {self._connections[rank]: rank for rank in range(world_size)}
        deadline = time.monotonic() + timeout
        dead = False
        while pending and (ready := wait(list(pending), max(0.0, deadline - time.monotonic()))):
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = pending.pop(connection)
                try:
                    answers[rank] = connection.recv()
                except (EOFError, ConnectionResetError):
                    dead = True
                    self._processes[rank].join(1.0)
                    message = f"the rank's process ended with exit code {self._processes[rank].exitcode}"
                    answers[rank] = Answer(failure=RankFailure(rank, "RankDied", message, "", time.monotonic()))
        if pending:
            for rank in pending.values():
                pid = self._processes[rank].pid
                assert pid is not None
                os.kill(pid, signal.SIGUSR2)
            time.sleep(0.1)
        if pending or dead:
            self._stop(grace_s=0.0)
        return answers

    def _show(self, starts: list[int]) -> None:
        """Pass on what the ranks wrote, to where pytest shows it if the test fails."""
        self.output = {}
        for rank, start in enumerate(starts):
            with self._log(rank).open("rb") as file:
                file.seek(start)
                text = file.read().decode(errors="replace")
            self.output[rank] = text
            sys.stdout.write("".join(f"[rank {rank}] {line}\n" for line in text.splitlines()))

    def _stop(self, grace_s: float) -> None:
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(grace_s)
            if process.is_alive():
                process.kill()
                process.join()
            assert process.pid is not None
            leak_check.allowed_children.discard(process.pid)
            process.close()
        self._processes.clear()
        self._connections.clear()

    def _log(self, rank: int) -> Path:
        return Path(self._folder.name) / f"rank_{rank}.log"


def _results(answers: dict[int, Answer], world_size: int, timeout: float) -> list[Any]:
    """The results by rank, or the one exception that says what went wrong."""
    errors = {rank: answer.failure for rank, answer in answers.items() if answer.failure is not None}
    silent = [rank for rank in range(world_size) if rank not in answers]
    if silent:
        raise RanksSilent(silent, timeout, errors)
    error = RankError(errors) if errors else None
    leaks = {rank: answer.leaks for rank, answer in sorted(answers.items()) if answer.leaks}
    if leaks:
        raise RankLeak(leaks) from error
    if error is not None:
        raise error
    return [pickle.loads(answers[rank].result) for rank in range(world_size)]
