"""What one rank of the pool executes: calls that come through a pipe, each in a clean state, each with an answer."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import faulthandler
import importlib.util
import os
import pickle
import random
import signal
import sys
import time
import traceback
import warnings
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from types import ModuleType

from tests import leak_check


@dataclass(frozen=True)
class RankFailure:
    """The exception that ended a call on one rank; `time` is the machine's monotonic clock."""

    rank: int
    type_name: str
    message: str
    traceback: str
    time: float


@dataclass(frozen=True)
class Call:
    """What a rank is asked to do. Arguments stay pickled until the test module, whose types they may use, is loaded."""

    path: str
    module: str
    name: str
    arguments: bytes
    environment: dict[str, str]
    grouped: bool
    timeout: float


@dataclass(frozen=True)
class Answer:
    result: bytes = b""
    failure: RankFailure | None = None
    leaks: list[str] = field(default_factory=list)


def serve(connection: Connection, log: str) -> None:
    """A rank's whole life: answer calls until the other end of the pipe is gone."""
    _prepare(log)
    import torch

    torch.set_num_threads(1)
    connection.send("ready")
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        while True:
            call: Call = connection.recv()
            connection.send(_answer(call))


def _prepare(log: str) -> None:
    """Standard streams to the log; stacks on SIGUSR2; die with the pytest process even while stuck in a collective."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    faulthandler.enable()  # a crash in native code shows where
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)


def _answer(call: Call) -> Answer:
    os.environ.update(call.environment)
    before = leak_check.take_snapshot()
    result, failure = _attempt(call)
    if call.grouped:
        _leave_group()
    leaks = leak_check.find_leaks(before)
    if leaks:
        leak_check.clean_up(before)
    for name in call.environment:
        os.environ.pop(name, None)
    sys.stdout.flush()
    sys.stderr.flush()
    return Answer(result, failure, leaks)


def _attempt(call: Call) -> tuple[bytes, RankFailure | None]:
    """The pickled result, or the failure as text: its frames, which keep tensors and groups alive, end here."""
    import torch

    rank = int(call.environment["RANK"])
    # By rank: every test starts from known streams, and code that forgets to hand out rank 0's weights is caught.
    torch.manual_seed(rank)
    random.seed(rank)
    try:
        fn = getattr(_load(call.module, call.path), call.name)
        args = pickle.loads(call.arguments)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if call.grouped:
                _join_group(call)
            return pickle.dumps(fn(*args)), None
    except BaseException as error:  # a rank answers whatever happens to it, SystemExit too
        return b"", RankFailure(rank, type(error).__name__, str(error), traceback.format_exc(), time.monotonic())


def _join_group(call: Call) -> None:
    import torch.distributed as dist
    from torch.distributed import PrefixStore, TCPStore

    limit = datetime.timedelta(seconds=call.timeout)
    environment = call.environment
    store = TCPStore(environment["MASTER_ADDR"], int(environment["MASTER_PORT"]), is_master=False, timeout=limit)
    dist.init_process_group(
        "gloo",
        store=PrefixStore(environment["TORCHELASTIC_RUN_ID"], store),
        rank=int(environment["RANK"]),
        world_size=int(environment["WORLD_SIZE"]),
        timeout=limit,
    )


def _leave_group() -> None:
    """Also frees the peers of a rank that failed: their collectives end with an error."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def _load(name: str, path: str) -> ModuleType:
    """The test module, under the name it has in pytest, so that its types pickle both ways."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
