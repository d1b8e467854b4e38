"""`drumline.launch`: starts a function on every device as `drumline launch` starts a script."""

from __future__ import annotations

import pickle
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from drumline.config.load import config_from_mapping
from drumline.config.schema import HardwareConfig, RunConfig
from drumline.errors import HardwareError, Interrupted, LaunchError
from drumline.hardware.claims import Claims
from drumline.hardware.inventory import detect
from drumline.launcher.calls import pack_call, result_file
from drumline.launcher.gpus import take_gpus, tell_left_out
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
    hardware: HardwareConfig | Mapping[str, Any] | None = None,
) -> list[T]:
    """Run fn(*args) in one fresh process a GPU, and return each rank's result in rank order.

    num_processes: of the usable GPUs so many, those that are connected best; on a machine without GPU, so many
    processes (none: one). hardware: what else is asked of the GPUs, as the section of a config says it. They are nobody
    else's until this returns; without num_processes it takes all that are usable.

    fn must be importable: from a module, or from a script that calls launch under `if __name__ == "__main__":`. Logs go
    to run_dir, a new directory (none: runs/launch/<name>-<time>). max_restarts: how often all are started anew after
    one was killed, hung or lost its GPU, which is then left out; fn goes on from what it has saved itself. Raises
    ConfigError for a function or arguments that cannot be sent, LaunchError with the first failing rank's message and
    code, Interrupted where a Trainer has stopped and saved its run, else KeyboardInterrupt after Ctrl-C.
    """
    call = pack_call(fn, args)
    machine, name = detect(), getattr(fn, "__name__", type(fn).__name__)
    config = config_of(num_processes, hardware, has_gpus=bool(machine.gpus))
    with Claims(name) as claims:
        workers = choose_workers(config.hardware, tell_left_out(take_gpus(config.hardware, machine, claims)))
        if num_processes is not None and workers.num != num_processes:
            what = f"{num_processes} processes were asked for, and hardware.gpus names {workers.num} GPUs"
            raise HardwareError(what, "say one of the two")
        gpus = workers.gpus if workers.gpus or config.hardware.device == "cpu" else None
        run = launch_directory(name) if run_dir is None else RunDir.create(Path(run_dir))
        call_file = run.logs / "call.pkl"
        write_atomic(call_file, call)
        spec = LaunchSpec(run.path, workers.num, "function", str(call_file.resolve()), gpus=gpus)
        return _results(spec, name, Policy.of(config, max_restarts))


def config_of(
    num_processes: int | None, hardware: HardwareConfig | Mapping[str, Any] | None, *, has_gpus: bool
) -> RunConfig:
    """Pure: what is asked, with the number of processes in it as it counts on this machine. Raises ConfigError."""
    section = dict(hardware.model_dump(exclude_unset=True) if isinstance(hardware, HardwareConfig) else hardware or {})
    if num_processes is not None:
        by_count = has_gpus and section.get("device") != "cpu" and section.get("gpus") is None
        section["count" if by_count else "num_processes"] = num_processes
    return config_from_mapping({"hardware": section}, "drumline.launch")


def _results(spec: LaunchSpec, name: str, policy: Policy) -> list[Any]:
    run = spec.run
    result = run_with_restarts(of_spec(spec), policy)
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
