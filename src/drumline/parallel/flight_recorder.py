"""What torch's flight recorder knows of collectives that have begun and not ended."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

from torch._C import _distributed_c10d

logger = logging.getLogger("drumline")

_RECORDERS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
"""NCCL's, and that of the other backends; which of them there is depends on torch's version and build."""


def pending_collectives() -> list[str]:
    """One line a collective of this process that has begun and not ended, oldest first; empty where nothing is kept.

    torch keeps the newest 2000 unless TORCH_FR_BUFFER_SIZE says otherwise (FlightRecorder.hpp), 0 for none.
    """
    found: list[str] = []
    for name in _RECORDERS:
        dump = getattr(_distributed_c10d, name, None)
        if dump is None:
            continue
        try:
            found += pending(json.loads(dump(includeCollectives=True, onlyActive=True)))
        except (RuntimeError, TypeError, ValueError, KeyError, AttributeError) as error:
            logger.debug("torch's flight recorder (%s) cannot be read: %s", name, error)
    return found


def pending(trace: Mapping[str, Any]) -> list[str]:
    """The lines of one dump."""
    entries = [e for e in trace.get("entries", ()) if not e.get("retired") and e.get("state") != "completed"]
    return [describe(entry) for entry in sorted(entries, key=lambda entry: entry.get("record_id", 0))]


def describe(entry: Mapping[str, Any]) -> str:
    """Name, number in its group, and what it was given."""
    sizes, types = entry.get("input_sizes") or [], entry.get("input_dtypes") or []
    given = ", ".join(f"{kind} {size}" for kind, size in list(zip(types, sizes, strict=False))[:2])
    number = entry.get("collective_seq_id")
    group = (entry.get("process_group") or ["?"])[0]
    return (
        f"{entry.get('profiling_name', 'a collective')} (number {number} of group {group or 0}; {given or 'no input'})"
    )
