"""What world this process is part of: torch elastic first, then SLURM, then explicit variables, then alone."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drumline.errors import ConfigError


@dataclass(frozen=True)
class World:
    """The place of this process among all processes of a run.

    init_method: `tcp://host:port` (rank 0 serves the store there), `file:///path` on a shared file system, or
    `agent://host:port` where a launcher already serves the store. None for a world of one.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    init_method: str | None = None
    run_id: str = "drumline"
    source: str = "python"

    def __post_init__(self) -> None:
        """Raises ConfigError for a place that is none: its ranks would share one GPU."""
        if not (0 <= self.rank < self.size and 0 <= self.local_rank < self.local_size <= self.size):
            raise ConfigError(
                f"rank {self.rank} of {self.size}, on its machine {self.local_rank} of {self.local_size}, is no place",
                "ranks count from 0, and a World of several processes on a machine says local_rank and local_size",
            )


def detect_world(environ: Mapping[str, str] = os.environ) -> World:
    """Read the world from the launcher's variables.

    torch elastic (drumline launch, torchrun, accelerate launch) comes before SLURM, under which it may have been
    started. Raises ConfigError naming the variables that are missing or cannot be meant.
    """
    return _from_elastic(environ) or _from_slurm(environ) or _from_variables(environ) or World()


def accelerate_precision(environ: Mapping[str, str] = os.environ) -> str | None:
    """The mixed precision that `accelerate launch` was told: bf16, fp16, or None where nothing was chosen.

    accelerate sets "no" also when nobody asked, so it counts as not given. Raises ConfigError for anything else.
    """
    value = environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    if value == "no":
        return None
    if value in ("bf16", "fp16"):
        return value
    reason = "is not trained here: drumline has no float8 layers" if value == "fp8" else "is no precision known here"
    raise ConfigError(
        f"accelerate launch asks for mixed precision {value!r}, which {reason}",
        "pass --mixed_precision bf16 or fp16, or leave it out and set train.precision",
    )


def _from_elastic(environ: Mapping[str, str]) -> World | None:
    """Variables as torch.distributed.elastic's local agent sets them, or None where there is no such agent."""
    if "TORCHELASTIC_RUN_ID" not in environ:
        return None
    numbers = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    _require(environ, (*numbers, "MASTER_ADDR", "MASTER_PORT"), "torch elastic (TORCHELASTIC_RUN_ID is set)")
    rank, size, local_rank, local_size = (_number(environ, name) for name in numbers)
    # str(True): the agent's own store is served at that address and no rank may serve a second one.
    scheme = "agent" if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else "tcp"
    # The agent's store outlives a restart of the workers: keys of the world before it must not be read again.
    run_id = f"{environ['TORCHELASTIC_RUN_ID']}-{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return _world((rank, size, local_rank, local_size), (scheme, *_master(environ)), run_id, "torch elastic")


_SHELLS = {"bash", "sh", "dash", "zsh", "fish", "csh", "tcsh", "ksh"}
_FIRST_SPECIAL_STEP = 0xFFFFFFFA
"""slurm.h: SLURM_INTERACTIVE_STEP; the batch script's, the extern and the pending step follow."""


def _from_slurm(environ: Mapping[str, str]) -> World | None:
    """Variables as srun sets them for each task of a step (man srun, OUTPUT ENVIRONMENT VARIABLES).

    None where this is no task of a parallel step: no SLURM, a batch script's or an interactive shell's own python.
    """
    step = environ.get("SLURM_STEP_ID", environ.get("SLURM_STEPID"))
    if step is None or "SLURM_PROCID" not in environ or _is_shell(environ, step):
        return None
    count = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    names = ("SLURM_PROCID", count, "SLURM_LOCALID")
    _require(environ, (*names, "SLURM_JOB_ID"), "srun")
    rank, size, local_rank = (_number(environ, name) for name in names)
    if size == 1:
        return None
    job, restart = environ["SLURM_JOB_ID"], environ.get("SLURM_RESTART_COUNT", "0")
    address = _slurm_master(environ, job, step)
    run_id = f"slurm-{job}-{step}-{restart}"
    return _world((rank, size, local_rank, _slurm_local_size(environ)), ("tcp", *address), run_id, "slurm")


def _is_shell(environ: Mapping[str, str], step: str) -> bool:
    """Whether srun started a shell that a person types in, rather than this program.

    `srun --pty bash` names its job after the shell. The shell of a newer salloc is a step with a number of its own; its
    job's name, "interactive", reaches a later `srun python` too, so the name alone says nothing there.
    """
    if step.isdecimal() and int(step) >= _FIRST_SPECIAL_STEP:
        return True
    return environ.get("SLURM_JOB_NAME") in _SHELLS


def _slurm_local_size(environ: Mapping[str, str]) -> int:
    counts = environ.get("SLURM_STEP_TASKS_PER_NODE")
    if counts is None:
        _require(environ, ("SLURM_NTASKS_PER_NODE",), "srun (neither it nor SLURM_STEP_TASKS_PER_NODE)")
        return _number(environ, "SLURM_NTASKS_PER_NODE")
    _require(environ, ("SLURM_NODEID",), "srun")
    nodes, node = tasks_per_node(counts), _number(environ, "SLURM_NODEID")
    if node >= len(nodes):
        raise _cannot_be(f"SLURM_NODEID is {node}, but SLURM_STEP_TASKS_PER_NODE={counts} lists {len(nodes)} nodes")
    return nodes[node]


def tasks_per_node(text: str) -> list[int]:
    """Expand SLURM's count of tasks on each node: "2(x3),1" is [2, 2, 2, 1]. Raises ConfigError for other text."""
    counts: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise _cannot_be(f"SLURM_STEP_TASKS_PER_NODE is {text!r}")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def first_host(nodelist: str) -> str:
    """The first host of SLURM's list, whose ranges stand in brackets: "node[01-04,07],x9" gives "node01"."""
    first = re.split(r",(?![^\[]*\])", nodelist.strip(), maxsplit=1)[0]
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first)


def _slurm_master(environ: Mapping[str, str], job: str, step: str) -> tuple[str, str]:
    """Where rank 0 serves the store: the batch script's own choice if it made one, else the step's first host."""
    host = environ.get("MASTER_ADDR")
    if host is None:
        nodes = environ.get("SLURM_STEP_NODELIST", environ.get("SLURM_JOB_NODELIST"))
        if not nodes:
            _require(environ, ("SLURM_STEP_NODELIST",), "srun")
        host = first_host(nodes or "")
    # All ranks must find the same port without talking; this range lies below the ports that the kernel hands out.
    return host, environ.get("MASTER_PORT", str(10_000 + (_digits(job) + _digits(step)) % 20_000))


def _digits(text: str) -> int:
    return int(re.sub(r"\D", "", text) or 0)


def _from_variables(environ: Mapping[str, str]) -> World | None:
    """Variables of torch's `env://`, set by hand, by mpirun scripts or by Kubernetes operators.

    None without RANK and WORLD_SIZE: MASTER_ADDR alone is no world (accelerate sets it for a single process too). With
    LOCAL_RANK left out the process counts as the only one of its machine.
    """
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        return None
    if environ.get("WORLD_SIZE") == "1" and environ.get("RANK", "0") == "0":
        return None
    local = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
    wanted = local if any(name in environ for name in local) else ()
    _require(environ, ("RANK", "WORLD_SIZE", *wanted, "MASTER_ADDR", "MASTER_PORT"), "explicit variables")
    rank, size = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    local_rank, local_size = (_number(environ, name) for name in local) if wanted else (0, 1)
    return _world((rank, size, local_rank, local_size), ("tcp", *_master(environ)), "drumline", "variables")


def _master(environ: Mapping[str, str]) -> tuple[str, str]:
    return environ["MASTER_ADDR"], environ["MASTER_PORT"]


def _world(place: tuple[int, int, int, int], address: tuple[str, str, str], run_id: str, source: str) -> World:
    rank, size, local_rank, local_size = place
    if not (0 <= rank < size and 0 <= local_rank < local_size <= size):
        raise _cannot_be(f"rank {rank} of {size}, local rank {local_rank} of {local_size} ({source})")
    scheme, host, port = address
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise _cannot_be(f"MASTER_PORT is {port!r}")
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"  # a bare IPv6 address would end at its first colon
    init_method = f"{scheme}://{host}:{port}" if size > 1 else None
    return World(rank, size, local_rank, local_size, init_method, run_id, source)


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ[name].strip()
    if not text.isdecimal():
        raise _cannot_be(f"{name} is {text!r}")
    return int(text)


def _require(environ: Mapping[str, str], names: Sequence[str], source: str) -> None:
    missing = [name for name in names if not environ.get(name)]
    if missing:
        raise ConfigError(
            f"this process was started by {source}, but {', '.join(missing)} is not set",
            "let one launcher set all of them (drumline launch, torchrun, srun), or unset those that are left over",
        )


def _cannot_be(what: str) -> ConfigError:
    return ConfigError(
        f"the launcher's variables describe no world: {what}",
        "check which launcher or script set them; drumline launch and torchrun set all of them",
    )
