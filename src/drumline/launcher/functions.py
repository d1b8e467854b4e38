"""`drumline.launch`: starts a function on every device as `drumline launch` starts a script."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from drumline.config.schema import HardwareConfig
from drumline.errors import HardwareError, LaunchError
from drumline.hardware.inventory import detect
from drumline.launcher.calls import pack_call, result_file
from drumline.launcher.spec import LaunchSpec
from drumline.launcher.start import choose_workers, launch_directory, start_workers
from drumline.rundir import RunDir, write_atomic

T = TypeVar("T")


def launch(
    fn: Callable[..., T],
    args: Sequence[Any] = (),
    num_processes: int | None = None,
    run_dir: str | Path | None = None,
) -> list[T]:
    """Run fn(*args) in one fresh process a GPU, and return each rank's result in rank order.

    num_processes: of the GPUs, the first so many; on a machine without GPU, so many processes (none: one).

    fn must be importable: from a module, or from a script that calls launch under `if __name__ == "__main__":`. Logs go
    to run_dir, a new directory (none: runs/launch/<name>-<time>). Raises ConfigError for a function or arguments that
    cannot be sent, LaunchError with the first failing rank's message and code, KeyboardInterrupt after Ctrl-C.
    """
    call = pack_call(fn, args)
    hardware = detect()
    uuids = [gpu.uuid for gpu in hardware.gpus]
    chosen = uuids[:num_processes] if uuids and num_processes is not None else None
    workers = choose_workers(HardwareConfig(num_processes=num_processes, gpus=chosen), hardware)
    if num_processes is not None and workers.num != num_processes:
        raise HardwareError(f"{num_processes} processes were asked for, there are {len(uuids)} GPUs", "ask for fewer")
    name = getattr(fn, "__name__", type(fn).__name__)
    run = launch_directory(name) if run_dir is None else RunDir.create(Path(run_dir))
    call_file = run.logs / "call.pkl"
    write_atomic(call_file, call)
    spec = LaunchSpec(run.path, workers.num, "function", str(call_file.resolve()), gpus=workers.gpus or None)
    result = start_workers(spec)
    if result.interrupted is not None:
        signal.raise_signal(result.interrupted)  # to the handler that was in charge before: the workers are gone
    if result.failure is not None:
        raise result.failure.to_error(run.log_of(result.failure.rank or 0))
    return [_load(run, rank, name) for rank in range(workers.num)]


def _load(run: RunDir, rank: int, name: str) -> Any:
    path = result_file(run, rank)
    if not path.exists():
        raise LaunchError(
            f"rank {rank} ended without returning from {name}", f"return instead of exiting; see {run.log_of(rank)}"
        )
    return pickle.loads(path.read_bytes())
