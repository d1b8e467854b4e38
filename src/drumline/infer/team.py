"""Processes with a part of every layer each, which compute as one: the leader has the ledger, the others follow it."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from drumline.errors import ConfigError
from drumline.infer.budget import Rehearses
from drumline.infer.records import Answer, Facts, Predictor, Prepared, Row
from drumline.infer.tries import WorkerLost
from drumline.launcher.processes import die_with_parent

FOLLOW = "--follow"
"""On a follower's command line, before its seat."""
COLLECTIVE_LIMIT_S = 600.0
"""How long a process may wait for the others within a layer."""
ANSWER_LIMIT_S = 60.0
"""How long the others may take after the leader has its answer, for which it needed them all; and how long it may take
to see that one of them has failed."""
FIX = "see this worker's log; another takes its place, and the same command goes on with the rest"

logger = logging.getLogger("drumline")


@dataclass(frozen=True)
class Seat:
    """What a follower is told."""

    rank: int
    size: int
    device: str
    port: int
    """Of the leader's store, on this machine."""
    commands: int
    """File descriptor of its end of the pipe."""
    leader: int
    """Pid."""


class Followers:
    """The other processes of a team, from their start to close()."""

    def __init__(self, program: Sequence[str], devices: Sequence[torch.device]) -> None:
        """Start `program` for each device but the first, which is the leader's, and form a process group with them.

        program: gets FOLLOW and a seat, and calls `follow` with it.
        """
        size = len(devices)
        store = dist.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
        self._is_closing = False
        self._commands: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for rank, device in enumerate(devices[1:], 1):
            ours, theirs = multiprocessing.Pipe()
            seat = Seat(rank, size, str(device), store.port, theirs.fileno(), os.getpid())
            command = [*program, FOLLOW, json.dumps(asdict(seat))]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
            theirs.close()
            self._commands.append(ours)
            self._processes.append(process)
            threading.Thread(target=self._watch, args=(process,), name=f"drumline follower {rank}", daemon=True).start()
        _join(store, 0, size, devices[0])

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        if not self._is_closing:
            # The leader may wait for it within a layer, where nothing can be raised.
            logger.error("a process of this worker's team ended with %d: the worker ends, and another begins", status)
            os._exit(WorkerLost.exit_status)

    def tell(self, name: str, *args: Any) -> None:
        """Have them all call a method of their predictor."""
        for commands in self._commands:
            commands.send((name, args))

    def check(self) -> None:
        """Wait until all have done the last thing that they were told. Raises WorkerLost."""
        for rank, commands in enumerate(self._commands, 1):
            if not commands.poll(ANSWER_LIMIT_S):
                raise WorkerLost(f"process {rank} of this worker's team does not answer", FIX)
            problem = commands.recv()
            if problem is not None:
                raise WorkerLost(f"process {rank} of this worker's team failed: {problem}", FIX)

    def close(self) -> None:
        """End them; at once, since none has anything that is not the leader's too."""
        self._is_closing = True
        for process in self._processes:
            process.kill()
        for process, commands in zip(self._processes, self._commands, strict=True):
            process.wait()
            commands.close()
        if dist.is_initialized():
            dist.destroy_process_group()


def follow(seat: Seat, make_predictor: Callable[[torch.device], Predictor]) -> None:
    """Do what the leader does, until it ends; this process ends with it."""
    die_with_parent(signal.SIGKILL, seat.leader)
    commands = Connection(seat.commands)
    device = torch.device(seat.device)
    store = dist.TCPStore("127.0.0.1", seat.port, seat.size, is_master=False)
    _join(store, seat.rank, seat.size, device)
    try:
        predictor = make_predictor(device)
        commands.send(None)
        while True:
            try:
                name, args = commands.recv()
            except EOFError:
                return
            getattr(predictor, name)(*args)
            commands.send(None)
    except Exception as error:
        commands.send(_in_words(error))
        # The leader fails, too, and ends this process. One that waits within a layer ends with it, see `_watch`.
        commands.poll(ANSWER_LIMIT_S)


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]


def _join(store: dist.Store, rank: int, size: int, device: torch.device) -> None:
    limit = timedelta(seconds=COLLECTIVE_LIMIT_S)
    options: dict[str, Any] = {"store": store, "rank": rank, "world_size": size, "timeout": limit}
    if device.type == "cuda":
        torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl", device_id=device, **options)
    else:
        dist.init_process_group("gloo", **options)


@contextmanager
def in_parts(device: torch.device) -> Iterator[dict[str, Any]]:
    """Options of transformers' from_pretrained, called inside, so that each process gets its part of each layer."""
    try:
        from transformers.distributed import DistributedConfig

        options: dict[str, Any] = {"distributed_config": DistributedConfig(tp_size=dist.get_world_size())}
    except (ImportError, TypeError):  # before it had this one
        options = {"tp_plan": "auto"}
    before = os.environ.get("LOCAL_RANK")
    os.environ["LOCAL_RANK"] = str(device.index or 0)  # by which it finds this process's GPU
    try:
        yield options
    finally:
        if before is None:
            del os.environ["LOCAL_RANK"]
        else:
            os.environ["LOCAL_RANK"] = before


class Together:
    """The leader's predictor: what computes is done by all processes at once.

    Where one of them fails nobody knows how far the others came, so that it is lost for the whole team: WorkerLost,
    caused by what it was. Only a ConfigError stays one.
    """

    def __init__(self, inner: Predictor, followers: Followers) -> None:
        self._inner = inner
        self._followers = followers
        followers.check()  # that they have loaded it

    @property
    def columns(self) -> tuple[str, ...]:
        """The inner one's."""
        return self._inner.columns

    def prepare(self, rows: Sequence[Row]) -> list[Prepared | str]:
        """The inner one's."""
        return self._inner.prepare(rows)

    def survey(self, prepared: Sequence[Prepared]) -> Facts:
        """The inner one's, which must not compute with the model."""
        return self._inner.survey(prepared)

    def settle(self, facts: Facts) -> None:
        """All of them."""
        self._all("settle", facts)

    def run(self, rows: Sequence[Prepared | None], width: int) -> list[Answer]:
        """All of them; the leader's answers."""
        answers: list[Answer] = self._all("run", rows, width)
        return answers

    def rehearse(self, rows: Sequence[Prepared], width: int) -> None:
        """All of them, as the inner one does; without such a way a run."""
        self._all("rehearse" if isinstance(self._inner, Rehearses) else "run", rows, width)

    def _all(self, name: str, *args: Any) -> Any:
        self._followers.tell(name, *args)
        try:
            answer = getattr(self._inner, name)(*args)
        except ConfigError:
            raise
        except Exception as error:
            raise WorkerLost(f"a process of this worker's team failed: {_in_words(error)}", FIX) from error
        self._followers.check()
        return answer
