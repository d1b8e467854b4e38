"""One verdict of `doctor`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Check:
    """One verdict; `fix` says what to do where the status is not ok."""

    name: str
    status: Literal["ok", "warn", "fail"]
    message: str
    fix: str | None = None
