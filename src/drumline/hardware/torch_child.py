"""What only torch knows, asked in a child process, so that a broken CUDA or a hung GPU cannot take this one along."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

# Each question stands alone: a build without CUDA lacks some of them.
SCRIPT = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch

def ask(question):
    try:
        return question()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}

def devices():
    torch.cuda.init()
    found = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        found.append({"name": facts.name, "uuid": str(getattr(facts, "uuid", "")), "memory_bytes": facts.total_memory,
                      "compute_capability": [facts.major, facts.minor], "multiprocessors": facts.multi_processor_count})
    return found

cuda = torch.version.cuda is not None
distributed = torch.distributed.is_available()
print()
json.dump({
    "version": torch.__version__,
    "cuda": torch.version.cuda,
    "cudnn": ask(torch.backends.cudnn.version),
    "nccl": ask(lambda: ".".join(map(str, torch.cuda.nccl.version()))) if cuda else None,
    "backends": [name for name in ("nccl", "gloo", "mpi")
                 if distributed and getattr(torch.distributed, f"is_{name}_available")()],
    "arch_list": ask(torch.cuda.get_arch_list),
    "devices": ask(devices) if cuda else [],
}, sys.stdout)
"""


def ask_torch(limit_s: float = 120.0, script: str = SCRIPT) -> dict[str, Any]:
    """Torch's build, libraries and devices as torch sees them; {"error": why} where the child fails or is too slow."""
    return ask_child(["-c", script], limit_s)


def ask_child(arguments: Sequence[str], limit_s: float, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The last line that Python prints with these arguments, as JSON; {"error": why} where it fails or is too slow.

    environ: of the child; None: this process's own.
    """
    command = [sys.executable, *arguments]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ)
    try:
        answer, complaint = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        return {"error": f"torch gave no answer within {limit_s:g} s{_end(child)}"}
    except BaseException:
        _end(child)
        raise
    if child.returncode != 0:
        lines = complaint.strip().splitlines() or ["no message"]
        return {"error": f"torch does not start (exit status {child.returncode}): {lines[-1]}"}
    try:
        # Only the last line: what a plugin prints while torch is imported comes before it.
        facts: dict[str, Any] = json.loads(answer.splitlines()[-1])
    except (ValueError, IndexError):
        return {"error": f"torch's child wrote no answer but {answer[-200:]!r}"}
    return facts


def _end(child: subprocess.Popen[str]) -> str:
    """Kill the child; what to add to the report where even that does not end it."""
    child.kill()
    try:
        child.communicate(timeout=5.0)
    except subprocess.TimeoutExpired:
        # Nothing can end a process that waits inside a driver, so nothing may wait for it.
        return f", and process {child.pid} cannot be killed: a driver hangs"
    return ""
