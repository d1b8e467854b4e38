"""`drumline.launch`: starts a function on every device as `drumline launch` starts a script."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from drumline.config.schema import HardwareConfig
from drumline.errors import HardwareError, Interrupted, LaunchError
from drumline.hardware.inventory import detect
from drumline.launcher.calls import pack_call, result_file
from drumline.launcher.restarts import Policy, of_spec, run_with_restarts
from drumline.launcher.spec import LaunchSpec
from drumline.launcher.start import choose_workers, launch_directory
from drumline.rundir import RunDir, write_atomic

T = TypeVar("T")


def launch(
    fn: Callable[..., T],
    args: Sequence[Any] = (),
    num_processes: int | None = None,
    run_dir: str | Path | None = None,
    max_restarts: int = 0,
) -> list[T]:
    """Run fn(*args) in one fresh process a GPU, and return each rank's result in rank order.

    num_processes: of the GPUs, the first so many; on a machine without GPU, so many processes (none: one).

    fn must be importable: from a module, or from a script that calls launch under `if __name__ == "__main__":`. Logs go
    to run_dir, a new directory (none: runs/launch/<name>-<time>). max_restarts: how often all are started anew after
    one was killed, hung or lost its GPU, which is then left out; fn goes on from what it has saved itself. Raises
    ConfigError for a function or arguments that cannot be sent, LaunchError with the first failing rank's message and
    code, Interrupted where a Trainer has stopped and saved its run, else KeyboardInterrupt after Ctrl-C.
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
    result = run_with_restarts(of_spec(spec), Policy(max_restarts))
    if result.stopped is not None:
        raise Interrupted(result.stopped)
    if result.interrupted is not None and result.failure is None:
        signal.raise_signal(result.interrupted)  # to the handler that was in charge before: the workers are gone
    if result.failure is not None:
        raise result.failure.to_error(run.log_of(result.failure.rank or 0))
    ended, _ = LaunchSpec.read(run.logs / "launch.json")  # a GPU may have been left out meanwhile
    return [_load(run, rank, name) for rank in range(ended.num_workers)]


def _load(run: RunDir, rank: int, name: str) -> Any:
    path = result_file(run, rank)
    if not path.exists():
        raise LaunchError(
            f"rank {rank} ended without returning from {name}", f"return instead of exiting; see {run.log_of(rank)}"
        )
    return pickle.loads(path.read_bytes())
