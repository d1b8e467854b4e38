"""A function call on its way to the workers, and its results on their way back: files in the run directory."""

from __future__ import annotations

import multiprocessing
import multiprocessing.spawn
import os
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from drumline.errors import ConfigError
from drumline.rundir import RunDir, write_atomic

_GUARD_FIX = 'put the call under `if __name__ == "__main__":`, since every worker imports the script once more'


def pack_call(function: Callable[..., Any], args: Sequence[Any]) -> bytes:
    """Pickle a call so that a fresh process can make it.

    Raises ConfigError for a function that has no importable name, for arguments that cannot be pickled, and inside a
    worker that is importing its launcher's script.
    """
    name = getattr(function, "__qualname__", repr(function))
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigError(
            f"drumline.launch({name}) is called again by a worker that is only being prepared", _GUARD_FIX
        )
    if "<locals>" in name or "<lambda>" in name:
        raise ConfigError(
            f"{name} cannot be started in other processes: it has no name that they could import",
            "define it with def at the top level of a module or script",
        )
    main = _main_module()
    if getattr(function, "__module__", None) == "__main__" and not main:
        raise ConfigError(
            f"{name} is defined in a notebook or an interactive session, which other processes cannot import",
            "put it into a .py file beside the notebook and import it from there",
        )
    try:
        call = pickle.dumps((function, tuple(args)))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"{name} or its arguments cannot be sent to other processes: {error}",
            "pass plain values, arrays or module-level objects, and open files, locks and the like inside the function",
        ) from error
    # A script is imported once more only for what is in it: one that calls launch outside of a guard may stay so.
    return pickle.dumps((_preparation(main if b"__main__" in call else {}), call))


def run_call(path: Path, result: Path) -> None:
    """Make a packed call in this process and keep what it returns in `result`. Raises what the function raises."""
    preparation, call = pickle.loads(path.read_bytes())
    process: Any = multiprocessing.current_process()
    process._inheriting = True  # as multiprocessing's own children: starting processes while importing is an error
    try:
        multiprocessing.spawn.prepare(preparation)
        function, args = pickle.loads(call)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"a worker cannot import what it should run: {error}",
            "make the function's module importable where the launching script runs, without side effects on sys.path",
        ) from error
    finally:
        del process._inheriting
    value = function(*args)
    try:
        data = pickle.dumps(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            f"the result of {getattr(function, '__qualname__', function)}, a {type(value).__qualname__}, cannot be "
            f"sent back: {error}",
            "return plain values, arrays or a path to a file",
        ) from error
    write_atomic(result, data)


def result_file(run: RunDir, rank: int) -> Path:
    """Where a rank's pickled result is."""
    return run.logs / f"rank_{rank}.result.pkl"


def _main_module() -> dict[str, str]:
    """How a child finds the module that runs as __main__, in the terms of multiprocessing.spawn; empty: it cannot."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name is not None:
        return {"init_main_from_name": spec.name}
    path = getattr(main, "__file__", None)
    return {"init_main_from_path": os.path.abspath(path)} if path and Path(path).exists() else {}  # noqa: PTH100


def _preparation(main: dict[str, str]) -> dict[str, Any]:
    """What multiprocessing.spawn.prepare needs in a worker.

    Its own get_preparation_data would fix the caller's start method, and gives a key that may not be written to a file.
    """
    path = [entry or str(Path.cwd()) for entry in sys.path]
    return {"sys_path": path, "sys_argv": sys.argv, "dir": str(Path.cwd()), **main}
