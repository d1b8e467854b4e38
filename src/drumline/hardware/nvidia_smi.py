"""`nvidia-smi` asked where its library cannot be asked from Python, with the same records as an answer."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from drumline.hardware.children import Ended, NotEnded, finish
from drumline.hardware.nvml import Unavailable
from drumline.hardware.records import Snapshot
from drumline.hardware.smi_document import first_line, parse

# Where it lies when it is not in PATH; under Windows' Linux it seldom is.
_PLACES = ("/usr/bin/nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi", "/opt/bin/nvidia-smi")


def read_with_smi(limit_s: float = 5.0, *, program: str | None = None) -> Snapshot | Unavailable:
    """All GPUs of the machine by `nvidia-smi -q -x`, or why it gives nothing; limit_s seconds at most, over all calls.

    What that document lacks is asked for besides: compute capabilities (--query-gpu) and, with MIG on, the UUIDs of the
    instances (-L); these may be refused without harm to the rest.
    """
    program = program or shutil.which("nvidia-smi") or next((place for place in _PLACES if Path(place).exists()), None)
    if program is None:
        return Unavailable("there is no nvidia-smi")
    end = time.monotonic() + limit_s
    now = time.time()
    document = _ask(program, ["-q", "-x"], end)
    if isinstance(document, Unavailable):
        return document
    capabilities = _ask(program, ["--query-gpu=uuid,compute_cap", "--format=csv,noheader"], end)
    listing = _ask(program, ["-L"], end) if "<mig_device>" in document else ""
    return parse(
        document,
        now,
        capabilities="" if isinstance(capabilities, Unavailable) else capabilities,
        listing="" if isinstance(listing, Unavailable) else listing,
    )


def _ask(program: str, arguments: Sequence[str], end: float) -> str | Unavailable:
    left = end - time.monotonic()
    if left <= 0:
        return Unavailable("there was no time left for nvidia-smi")
    try:
        # Numbers and words as its documentation has them, whatever the user's language is.
        ended = finish([program, *arguments], left, {**os.environ, "LC_ALL": "C"})
    except OSError as error:
        return Unavailable(f"nvidia-smi cannot be started: {error.strerror or error}")
    if isinstance(ended, NotEnded):
        return Unavailable(f"nvidia-smi {ended.why}")
    return _answer(ended)


def _answer(ended: Ended) -> str | Unavailable:
    """Its output; with a status other than 0 it still counts where GPUs are in it, as with one GPU lost of several."""
    if ended.status != 0 and "<gpu " not in ended.output:
        return Unavailable(f"nvidia-smi failed ({ended.status}): {first_line(ended.output or ended.complaint)}")
    return ended.output
