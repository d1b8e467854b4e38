"""What a test may not leave behind, found by comparing two snapshots of the process."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

allowed_children: set[int] = set()
"""Process ids that outlive a test on purpose: the shared pool of ranks."""

IGNORED_VARIABLES = frozenset(
    {
        "PYTEST_CURRENT_TEST",  # pytest sets it anew for every phase
        # Inductor writes its defaults here the first time that it compiles, on a GPU those of Triton as well.
        "TORCHINDUCTOR_CACHE_DIR",
        "TRITON_CACHE_DIR",
        "TRITON_PTXAS_PATH",
        "KMP_DUPLICATE_LIB_OK",  # scikit-learn, imported by transformers where it is installed, sets both
        "KMP_INIT_AT_FORK",
    }
)
KEPT_THREADS = ("torch._inductor", "tqdm._monitor")
"""Modules whose threads live as long as the process: Inductor's compile pool, the monitor of a progress bar."""


@dataclass(frozen=True)
class Snapshot:
    """State of this process that a test must leave as it found it."""

    environment: dict[str, str]
    directory: str
    threads: frozenset[threading.Thread]
    children: frozenset[int]
    handlers: dict[int, Any]
    settings: dict[str, Any]
    has_group: bool


def take_snapshot() -> Snapshot:
    """Record the process as it is now."""
    return Snapshot(
        environment={name: value for name, value in os.environ.items() if name not in IGNORED_VARIABLES},
        directory=_directory(),
        threads=frozenset(thread for thread in threading.enumerate() if not _is_kept(thread)),
        children=frozenset(child.pid for child in psutil.Process().children() if not _is_allowed(child)),
        handlers={number: signal.getsignal(number) for number in signal.valid_signals()},
        settings=_settings(),
        has_group=_has_group(),
    )


def find_leaks(before: Snapshot, patience_s: float = 1.0) -> list[str]:
    """One line a leak since `before`; empty if there is none. Threads and processes get `patience_s` to end."""
    after = take_snapshot()
    if not _compare(before, after):
        return []
    gc.collect()
    deadline = time.monotonic() + patience_s
    after = take_snapshot()
    while (after.threads - before.threads or after.children - before.children) and time.monotonic() < deadline:
        time.sleep(0.02)
        after = take_snapshot()
    return _compare(before, after)


def clean_up(before: Snapshot) -> None:
    """Undo what can be undone, so that one leaking test does not fail those after it."""
    if _has_group() and not before.has_group:
        sys.modules["torch.distributed"].destroy_process_group()
    for name in os.environ.keys() - before.environment.keys() - IGNORED_VARIABLES:
        del os.environ[name]
    os.environ.update(before.environment)
    if _directory() != before.directory:
        os.chdir(before.directory)
    for number, handler in before.handlers.items():
        if signal.getsignal(number) != handler:
            signal.signal(number, handler)
    for child in psutil.Process().children():
        if child.pid not in before.children and not _is_allowed(child):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
                child.wait(5)
    _restore_settings(before.settings)


def _compare(before: Snapshot, after: Snapshot) -> list[str]:
    leaks = [
        f"environment variable {name}: {before.environment.get(name)!r} became {after.environment.get(name)!r}"
        for name in sorted(before.environment.keys() | after.environment.keys())
        if before.environment.get(name) != after.environment.get(name)
    ]
    if after.directory != before.directory:
        leaks.append(f"working directory: {before.directory} became {after.directory}")
    for thread in after.threads - before.threads:
        leaks.append(f"thread {thread.name!r} ({'daemon' if thread.daemon else 'not daemon'}) still runs")
    for pid in sorted(after.children - before.children):
        leaks.append(f"child process {pid} ({_describe(pid)})")
    for number, handler in before.handlers.items():
        if after.handlers[number] != handler and not _is_loaders(after.handlers[number]):
            leaks.append(f"handler of {_signal_name(number)}: {handler!r} became {after.handlers[number]!r}")
    for name, value in before.settings.items():
        if after.settings[name] != value:
            leaks.append(f"global setting {name}: {value!r} became {after.settings[name]!r}")
    if after.has_group and not before.has_group:
        leaks.append("process group: torch.distributed is still initialised")
    return leaks


def _directory() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return "a removed directory"


def _is_loaders(handler: Any) -> bool:
    """Whether it is the one that torch's DataLoader installs with its first process and never takes back."""
    return str(getattr(handler, "__module__", "")).startswith("torch.utils.data")


def _signal_name(number: int) -> str:
    """Its name; real-time signals have none of their own."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _is_kept(thread: threading.Thread) -> bool:
    """Threads that Python did not start (a dummy stands for them), and those of libraries' process-wide pools."""
    if isinstance(thread, threading._DummyThread):
        return True
    target = getattr(thread, "_target", None)
    modules = (type(thread).__module__, getattr(target, "__module__", None) or "")
    return any(module.startswith(KEPT_THREADS) for module in modules)


def _is_allowed(child: psutil.Process) -> bool:
    """The pool's ranks, Inductor's compile workers and multiprocessing's two servants end with the session."""
    servants = (
        getattr(multiprocessing.resource_tracker._resource_tracker, "_pid", None),
        getattr(multiprocessing.forkserver._forkserver, "_forkserver_pid", None),
    )
    if child.pid in allowed_children or child.pid in servants:
        return True
    try:
        return any("torch/_inductor/compile_worker" in part for part in child.cmdline())
    except psutil.Error:
        return False


def _describe(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return f"{process.status()}: {' '.join(process.cmdline())[:200] or process.name()}"
    except psutil.Error:
        return "ended, never waited for"


def _has_group() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and bool(distributed.is_initialized())


def _settings() -> dict[str, Any]:
    """Switches of Python and torch that hold for the whole process; torch's only once somebody imported it."""
    settings: dict[str, Any] = {"gc.isenabled": gc.isenabled()}
    torch = sys.modules.get("torch")
    if torch is not None:
        settings["torch.get_default_dtype"] = torch.get_default_dtype()
        settings["torch.get_float32_matmul_precision"] = torch.get_float32_matmul_precision()
        settings["torch.is_grad_enabled"] = torch.is_grad_enabled()
        settings["torch.are_deterministic_algorithms_enabled"] = torch.are_deterministic_algorithms_enabled()
        settings["torch.get_num_threads"] = torch.get_num_threads()
    return settings


def _restore_settings(settings: dict[str, Any]) -> None:
    (gc.enable if settings["gc.isenabled"] else gc.disable)()
    if len(settings) > 1:
        torch = sys.modules["torch"]
        torch.set_default_dtype(settings["torch.get_default_dtype"])
        torch.set_float32_matmul_precision(settings["torch.get_float32_matmul_precision"])
        torch.set_grad_enabled(settings["torch.is_grad_enabled"])
        torch.use_deterministic_algorithms(settings["torch.are_deterministic_algorithms_enabled"])
        torch.set_num_threads(settings["torch.get_num_threads"])
