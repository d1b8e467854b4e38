"""Parts of paths and queries that several routes take."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path

JobId = Annotated[str, Path(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="A job's id.")]
"""It names a folder too: no separator, no leading dot."""
PlanId = Annotated[str, Path(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="A plan's id.")]
"""It names a folder too."""
KeyId = Annotated[str, Path(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="A key's id.")]
