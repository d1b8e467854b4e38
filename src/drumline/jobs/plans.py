"""Requests that were looked at and kept under an id, to be started by it. Their texts lie in files, never in rows."""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from drumline.errors import Conflict, IdempotencyConflict, NotFound
from drumline.jobs.intake import Accepted
from drumline.jobs.records import Resources
from drumline.jobs.requests import JobRequest
from drumline.jobs.retry_folder import ROWS, write_rows, writing

if TYPE_CHECKING:
    from drumline.jobs.store import Idempotency, Store
    from drumline.jobs.store.values import Versioned

KEPT_S = 7 * 86_400.0
"""How long a plan is kept that nobody starts, with its texts."""


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
    resources: Resources
    """What its job will need of a machine."""
    created: float


class Planned(NamedTuple):
    """A plan as it is started."""

    request: JobRequest
    """With its texts."""
    defaults_version: int
    """Of the defaults that it has taken."""
    is_once: bool
    """Whether it has texts, which are its job's from then on."""


class Plans:
    """Those of one service."""

    def __init__(self, store: Store, folder: Path, clock: Callable[[], float] = time.time) -> None:
        """folder: where texts are kept, a folder a plan."""
        self._store = store
        self._folder = folder
        self._clock = clock

    def keep(
        self, request: JobRequest, accepted: Accepted, owner: str, idempotency: Idempotency | None = None
    ) -> tuple[PlanView, bool]:
        """Keep a request that was accepted: the plan and True, or the one that the same request made before and False.

        Raises IdempotencyConflict where the key has made another plan, and StoreError.
        """
        if (earlier := self._made_before(idempotency)) is not None:
            return _view(earlier, accepted), False
        asked = request.model_dump(mode="json", exclude={"texts"}, exclude_unset=True)
        config, notes = dict(accepted.work.settings), list(accepted.notes)
        values: dict[str, Any] = {"owner": owner, "request": asked, "config": config, "notes": notes}
        values |= {"texts": accepted.rows is not None, "defaults_version": accepted.work.defaults_version}
        values |= {} if idempotency is None else {"fingerprint": idempotency.fingerprint}
        plan_id = f"plan-{secrets.token_hex(8)}" if idempotency is None else idempotency.id_of("plan")
        folder = self._folder / f".{secrets.token_hex(8)}"
        try:
            if accepted.rows is not None:
                with writing(folder):
                    folder.mkdir(mode=0o700, parents=True)
                    write_rows(folder, accepted.rows)
            kept = self._store.settings.put("plan", values, owner, document_id=plan_id)
            if accepted.rows is not None:
                self.forget(plan_id)  # of one that was there under the same id, and was started or too old
                with writing(folder):
                    folder.rename(self._folder / plan_id)
        except Conflict:
            if (earlier := self._made_before(idempotency)) is None:
                raise
            return _view(earlier, accepted), False  # the same request, which was faster
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return _view(kept, accepted), True

    def read(self, plan_id: str, may_see: Callable[[str], bool]) -> Planned:
        """The request that was kept, with its texts. may_see: of an owner. Raises NotFound, also for an expired one."""
        values = self._values(plan_id, may_see)
        request = dict(values["request"])
        if values["texts"]:
            try:
                with (self._folder / plan_id / ROWS).open("rb") as file:
                    request["texts"] = [json.loads(line) for line in file]
            except OSError:
                raise NotFound(f"the texts of {plan_id} are not there any more", "plan it again") from None
        return Planned(JobRequest.model_validate(request), int(values["defaults_version"] or 0), bool(values["texts"]))

    def drop(self, plan_id: str, may_see: Callable[[str], bool]) -> None:
        """Remove its texts. Raises NotFound."""
        self._values(plan_id, may_see)
        self.forget(plan_id)

    def forget(self, plan_id: str) -> None:
        """Remove the texts of a plan that was there."""
        shutil.rmtree(self._folder / plan_id, ignore_errors=True)

    def _made_before(self, idempotency: Idempotency | None) -> Versioned | None:
        """The plan of the same request; None: there is none, or it is too old to be started."""
        if idempotency is None:
            return None
        kept = self._store.settings.get("plan", idempotency.id_of("plan"))
        if kept is None:
            return None
        if self._clock() - kept.at > KEPT_S:
            self._store.settings.forget("plan", self._clock() - KEPT_S)
            return None
        if kept.values["fingerprint"] != idempotency.fingerprint:
            raise IdempotencyConflict(
                f"the idempotency key {idempotency.key!r} was used for another request, which made {kept.id}",
                "give every new request a key of its own",
            )
        return kept

    def _values(self, plan_id: str, may_see: Callable[[str], bool]) -> Mapping[str, Any]:
        kept = self._store.settings.get("plan", plan_id)
        if kept is None or not may_see(str(kept.values["owner"])):
            raise NotFound(f"there is no plan {plan_id[:100]!r}", "plan it again")
        if self._clock() - kept.at > KEPT_S:
            raise NotFound(f"{plan_id} is older than {KEPT_S / 86_400:g} days", "plan it again")
        return kept.values


def _view(kept: Versioned, accepted: Accepted) -> PlanView:
    values = kept.values
    return PlanView(kept.id, values["request"], values["config"], tuple(values["notes"]), accepted.resources, kept.at)


def remove_expired(store: Store, folder: Path, now: float) -> None:
    """Remove what is left of plans that are older than KEPT_S: rows, and in `folder` texts. Raises StoreError."""
    store.settings.forget("plan", now - KEPT_S)
    for old in expired(folder, now):
        shutil.rmtree(old, ignore_errors=True)


def expired(folder: Path, now: float) -> list[Path]:
    """The folders of plans, among those in `folder`, that are older than KEPT_S. now: seconds since 1970."""
    found: list[Path] = []
    with suppress(OSError):
        for plan in folder.iterdir():
            with suppress(FileNotFoundError):  # somebody else removed it
                if now - plan.lstat().st_mtime > KEPT_S:
                    found.append(plan)
    return found
