"""Requests that were looked at and kept under an id, to be started by it. Their texts lie in files, never in rows."""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Callable
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
    texts: Path | None
    """The file that holds its texts, on the machine that kept them; None: it came without."""
    is_new: bool
    """Whether this request made it; False: the same one did so before."""


class Planned(NamedTuple):
    """A plan as it is started."""

    row: Versioned
    """As it was when it was read: another one may be under its id since then."""
    request: JobRequest
    """With its texts."""
    defaults_version: int
    """Of the defaults that it has taken."""
    folder: str | None
    """Of its texts, which are its job's from then on; None: it has none, and may be started more than once."""


class Plans:
    """Those of one service."""

    def __init__(self, store: Store, folder: Path, node: str, clock: Callable[[], float] = time.time) -> None:
        """folder: where texts are kept, a folder a plan. node: this machine, which alone has what lies there."""
        self._store = store
        self._folder = folder
        self._node = node
        self._clock = clock

    def keep(
        self, request: JobRequest, accepted: Accepted, owner: str, idempotency: Idempotency | None = None
    ) -> PlanView:
        """Keep a request that was accepted: its plan, or the one that the same request made before.

        Raises IdempotencyConflict where the key has made another plan, and StoreError.
        """
        if (earlier := self._made_before(idempotency)) is not None:
            return self._view(earlier, accepted, is_new=False)
        asked = request.model_dump(mode="json", exclude={"texts"}, exclude_unset=True)
        config, notes = dict(accepted.work.settings), list(accepted.notes)
        values: dict[str, Any] = {"owner": owner, "request": asked, "config": config, "notes": notes}
        values |= {"texts": accepted.rows is not None, "defaults_version": accepted.work.defaults_version}
        # A name of its own: under a plan's id, which its key gives, others may have been before, or come meanwhile.
        folder = secrets.token_hex(16)
        values |= {"node": self._node, "folder": folder}
        values |= {} if idempotency is None else {"fingerprint": idempotency.fingerprint}
        plan_id = f"plan-{secrets.token_hex(8)}" if idempotency is None else idempotency.id_of("plan")
        try:
            if accepted.rows is not None:  # before the row, so that a plan that is there has its texts
                with writing(self._folder / folder):
                    (self._folder / folder).mkdir(mode=0o700, parents=True)
                    write_rows(self._folder / folder, accepted.rows)
            kept = self._store.settings.put("plan", values, owner, document_id=plan_id)
        except BaseException as error:
            self.forget(folder)
            if not isinstance(error, Conflict) or (earlier := self._made_before(idempotency)) is None:
                raise
            return self._view(earlier, accepted, is_new=False)  # the same request, which was faster
        return self._view(kept, accepted, is_new=True)

    def read(self, plan_id: str, may_see: Callable[[str], bool]) -> Planned:
        """The request that was kept, with its texts. may_see: of an owner.

        Raises NotFound, also for an expired one, and Conflict where its texts lie on another machine.
        """
        kept = self._kept(plan_id, may_see)
        request, texts = dict(kept.values["request"]), self._texts(kept)
        if texts is not None:
            try:
                with texts.open("rb") as file:
                    request["texts"] = [json.loads(line) for line in file]
            except OSError:
                raise NotFound(f"the texts of {plan_id} are not there any more", "plan it again") from None
        version = int(kept.values.get("defaults_version") or 0)
        folder = None if texts is None else texts.parent.name
        return Planned(kept, JobRequest.model_validate(request), version, folder)

    def drop(self, plan_id: str, may_see: Callable[[str], bool]) -> None:
        """Remove it, with its texts. Raises NotFound, Conflict where these lie on another machine, and StoreError."""
        kept = self._kept(plan_id, may_see)
        if (texts := self._texts(kept)) is not None:
            with writing(texts.parent), suppress(FileNotFoundError):
                shutil.rmtree(texts.parent)
        self._store.settings.remove(kept)

    def forget(self, folder: str) -> None:
        """Remove the texts of a plan that was there, at the latest with the sweep. folder: as Planned says it."""
        shutil.rmtree(self._folder / folder, ignore_errors=True)

    def _made_before(self, idempotency: Idempotency | None) -> Versioned | None:
        """The plan of the same request; None: there is none, or none that can be started: too old, or without texts."""
        if idempotency is None:
            return None
        kept = self._store.settings.get("plan", idempotency.id_of("plan"))
        if kept is None:
            return None
        if self._clock() - kept.at > KEPT_S:
            self._store.settings.forget("plan", self._clock() - KEPT_S)
            return None
        texts = self._texts(kept)
        if texts is not None and not texts.is_file() and not self._is_elsewhere(kept):
            self._store.settings.remove(kept)
            return None
        if kept.values["fingerprint"] != idempotency.fingerprint:
            raise IdempotencyConflict(
                f"the idempotency key {idempotency.key!r} was used for another request, which made {kept.id}",
                "give every new request a key of its own",
            )
        return kept

    def _is_elsewhere(self, kept: Versioned) -> bool:
        """Whether its texts lie on another machine, where nobody sees from here what became of them."""
        texts, node = self._texts(kept), kept.values.get("node", self._node)
        return texts is not None and node != self._node and not texts.parent.is_dir()

    def _texts(self, kept: Versioned) -> Path | None:
        """The file that holds its texts, on the machine that kept them; None: it came without."""
        # Of rows from before folders had names of their own they lie under the plan's id.
        return self._folder / str(kept.values.get("folder", kept.id)) / ROWS if kept.values["texts"] else None

    def _view(self, kept: Versioned, accepted: Accepted, *, is_new: bool) -> PlanView:
        request, config, notes = (kept.values[name] for name in ("request", "config", "notes"))
        texts = self._texts(kept)
        return PlanView(kept.id, request, config, tuple(notes), accepted.resources, kept.at, texts, is_new)

    def _kept(self, plan_id: str, may_see: Callable[[str], bool]) -> Versioned:
        kept = self._store.settings.get("plan", plan_id)
        if kept is None or not may_see(str(kept.values["owner"])):
            raise NotFound(f"there is no plan {plan_id[:100]!r}", "plan it again")
        if self._clock() - kept.at > KEPT_S:
            raise NotFound(f"{plan_id} is older than {KEPT_S / 86_400:g} days", "plan it again")
        if self._is_elsewhere(kept):
            raise Conflict(f"the texts of {plan_id} lie on {kept.values['node']}", "ask the service on that machine")
        return kept


def remove_expired(
    store: Store, folder: Path, now: float, remove: Callable[[Path], object] | None = None
) -> list[Path]:
    """Remove what is left of plans that are older than KEPT_S: rows, and in `folder` texts; returns their folders.

    now: seconds since 1970. remove: what removes a folder, for who counts. Raises StoreError.
    """
    store.settings.forget("plan", now - KEPT_S)
    found: list[Path] = []
    with suppress(OSError):
        for plan in folder.iterdir():
            with suppress(FileNotFoundError):  # somebody else removed it
                if now - plan.lstat().st_mtime > KEPT_S:
                    found.append(plan)
    for plan in found:
        shutil.rmtree(plan, ignore_errors=True) if remove is None else remove(plan)
    return found
