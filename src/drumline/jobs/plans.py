"""Requests that were looked at and kept under an id, to be started by it. Their texts lie in files, never in rows."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drumline.errors import NotFound
from drumline.jobs.intake import Accepted
from drumline.jobs.requests import JobRequest
from drumline.jobs.retry_folder import ROWS, write_rows, writing

if TYPE_CHECKING:
    from drumline.jobs.store import Store

KEPT_S = 7 * 86_400.0
"""How long the texts of a plan that nobody starts are kept."""


@dataclass(frozen=True)
class PlanView:
    """A request that was looked at and kept, to be started by its id."""

    id: str
    request: dict[str, Any]
    """Without its texts."""
    config: dict[str, Any]
    """The settings of its run: of kind train all that differ from the schema's, else those beside what is chosen."""
    notes: tuple[str, ...]
    """What was understood in another way than it was said."""
    created: float


class Plans:
    """Those of one service."""

    def __init__(self, store: Store, folder: Path) -> None:
        """folder: where texts are kept, a folder a plan."""
        self._store = store
        self._folder = folder

    def keep(self, request: JobRequest, accepted: Accepted, owner: str) -> PlanView:
        """Keep a request that was accepted. Raises StoreError."""
        asked = request.model_dump(mode="json", exclude={"texts"}, exclude_unset=True)
        config, notes = dict(accepted.work.settings), list(accepted.notes)
        values = {"owner": owner, "request": asked, "config": config, "notes": notes}
        kept = self._store.settings.put("plan", {**values, "texts": accepted.rows is not None}, owner)
        for old in expired(self._folder, time.time()):
            shutil.rmtree(old, ignore_errors=True)
        if accepted.rows is not None:
            folder = self._folder / kept.id
            with writing(folder):
                folder.mkdir(mode=0o700, parents=True)
                write_rows(folder, accepted.rows)
        return PlanView(kept.id, asked, config, accepted.notes, kept.at)

    def read(self, plan_id: str, may_see: Callable[[str], bool]) -> JobRequest:
        """The request that was kept, with its texts. may_see: of an owner. Raises NotFound."""
        values = self._values(plan_id, may_see)
        request = dict(values["request"])
        if values["texts"]:
            try:
                with (self._folder / plan_id / ROWS).open("rb") as file:
                    request["texts"] = [json.loads(line) for line in file]
            except OSError:
                raise NotFound(f"the texts of {plan_id} are not there any more", "plan it again") from None
        return JobRequest.model_validate(request)

    def drop(self, plan_id: str, may_see: Callable[[str], bool]) -> None:
        """Remove its texts. Raises NotFound."""
        self._values(plan_id, may_see)
        shutil.rmtree(self._folder / plan_id, ignore_errors=True)

    def _values(self, plan_id: str, may_see: Callable[[str], bool]) -> Mapping[str, Any]:
        kept = self._store.settings.get("plan", plan_id)
        if kept is None or not may_see(str(kept.values["owner"])):
            raise NotFound(f"there is no plan {plan_id[:100]!r}", "plan it again")
        return kept.values


def expired(folder: Path, now: float) -> list[Path]:
    """The folders of plans, among those in `folder`, that are older than KEPT_S. now: seconds since 1970."""
    found: list[Path] = []
    with suppress(OSError):
        for plan in folder.iterdir():
            with suppress(FileNotFoundError):  # somebody else removed it
                if now - plan.lstat().st_mtime > KEPT_S:
                    found.append(plan)
    return found
