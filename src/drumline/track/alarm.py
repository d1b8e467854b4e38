"""The last words of a process that ends at once."""

from __future__ import annotations

import os


def show(text: str) -> None:
    """Write to standard error past Python's streams, whose locks a stuck thread may hold."""
    data = f"{text}\n".encode(errors="replace")
    while data:
        data = data[os.write(2, data) :]
