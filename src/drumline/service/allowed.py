"""The devices that jobs may be given: the machine's, of which POST /multigpu/config may name some GPUs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from drumline.jobs.defaults import KIND, limited
from drumline.jobs.records import Inventory

if TYPE_CHECKING:
    from drumline.jobs.store import Store

AGAIN_S = 1.0
"""Between two looks at the document: the inventory is asked for several times a second."""


class Allowed:
    """Calling it gives the inventory as jobs may use it."""

    def __init__(
        self, devices: Callable[[], Inventory], store: Store, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._devices, self._store, self._clock = devices, store, clock
        self._due = float("-inf")
        self._gpu_ids: tuple[int | str, ...] = ()

    def __call__(self) -> Inventory:
        """The devices, those unusable that nobody named. Raises StoreError where the document cannot be read."""
        inventory = self._devices()
        if inventory.has_gpus and self._clock() >= self._due:
            document = self._store.settings.latest(KIND)
            self._gpu_ids = () if document is None else tuple(document.values.get("gpu_ids", ()))
            self._due = self._clock() + AGAIN_S
        return limited(inventory, self._gpu_ids)
