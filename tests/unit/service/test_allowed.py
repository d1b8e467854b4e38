"""The devices that jobs may be given."""

from __future__ import annotations

from pathlib import Path

from drumline.jobs.records import Device, Inventory
from drumline.jobs.store import open_store
from drumline.service.allowed import AGAIN_S, Allowed


def test_gpus_that_the_defaults_do_not_name_are_unusable_from_the_next_look(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'store.sqlite3'}")
    now = [100.0]
    inventory = Inventory("here", 1.0, (Device("GPU-a"), Device("GPU-b")), has_gpus=True)
    allowed = Allowed(lambda: inventory, store, clock=lambda: now[0])

    def usable() -> list[str]:
        return [device.id for device in allowed().devices if device.unusable is None]

    try:
        assert usable() == ["GPU-a", "GPU-b"]
        store.settings.put("defaults", {"gpu_ids": ["GPU-b", 7]}, "root")
        assert usable() == ["GPU-a", "GPU-b"]
        now[0] += AGAIN_S
        assert usable() == ["GPU-b"]
    finally:
        store.close()
