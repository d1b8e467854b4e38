"""The devices that jobs can be given: the machine's GPUs, or slots for processes where it has none."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

from drumline.config.service import ServiceConfig
from drumline.errors import DrumlineError
from drumline.hardware.claims import Claims
from drumline.hardware.host import cpu_cores
from drumline.hardware.inventory import matching, read_machine, visible_gpus
from drumline.hardware.nvml import NO_DRIVER, Reading
from drumline.hardware.records import Gpu, GpuSample
from drumline.hardware.selection import Look, Wish, look, why_not
from drumline.hardware.topology import Topology
from drumline.jobs.commands import SLOT
from drumline.jobs.records import Device, Inventory

logger = logging.getLogger("drumline")

LOOK_S = 5.0
"""Between two looks at the machine."""
LATE_S = 45.0
"""Age from which what was seen last is not believed any more."""
GPU_FOLDER = Path("/proc/driver/nvidia/gpus")
"""Where the loaded kernel module shows its GPUs, whether or not it answers questions."""
_ONE_BRIDGE = 30
"""Up to this of NVML's levels two GPUs without NVLink count as near: one PCIe host bridge."""


def node_of(config: ServiceConfig) -> str:
    """The name of this machine in the store."""
    return config.node or socket.gethostname()


def read_inventory(config: ServiceConfig) -> Inventory:
    """The devices as they are now, each with the reason why no job is given it, if there is one.

    Asks the driver, each question under a limit, and may take as long; see DeviceWatch.
    """
    node, now = node_of(config), time.time()
    reading = read_machine()
    gpus, source = visible_gpus(reading, os.environ)
    if gpus:
        return Inventory(node, now, _gpus(gpus, config), has_gpus=True)
    if not _is_without(reading):
        logger.warning("no device is known: %s", source)
        return Inventory(node, now, (), has_gpus=True)
    return Inventory(node, now, slots(config.scheduling.cpu_slots or cpu_cores()))


def slots(count: int) -> tuple[Device, ...]:
    """Devices of a machine without GPU."""
    return tuple(Device(f"{SLOT}{number}") for number in range(count))


def devices_of(found: Look, claimed: dict[str, str], excluded: set[str], topology: Topology | None) -> list[Device]:
    """Pure: GPUs that were looked at, as devices. claimed: by others than jobs of this service."""
    group = _groups([sample.gpu.uuid for sample in found.snapshot.gpus], topology)
    devices = []
    for sample in found.snapshot.gpus:
        uuid = sample.gpu.uuid
        reason = "the service excludes it" if uuid in excluded else why_not(sample, found.verdicts, claimed, Wish())
        devices.append(Device(uuid, _room(sample), reason, group[uuid]))
    return devices + [Device(uuid, None, why) for uuid, why in found.gone.items()]


def _gpus(gpus: Sequence[Gpu], config: ServiceConfig) -> tuple[Device, ...]:
    found = look(gpus)
    claims = Claims()
    with claims.choosing():
        claimed = claims.of_others(gpu.uuid for gpu in gpus)
    own = str(config.data_dir.expanduser().absolute() / "jobs")
    claimed = {uuid: who for uuid, who in claimed.items() if own not in who}
    excluded = set()
    for name in config.scheduling.exclude:
        try:
            excluded |= {gpu.uuid for gpu in matching(gpus, name, "scheduling.exclude")}
        except DrumlineError as error:  # a name that fits several excludes none: said, and not at each look a crash
            logger.warning("%s", error.problem)
    return tuple(devices_of(found, claimed, excluded, found.topology))


def _room(sample: GpuSample) -> int | None:
    """Free memory, and what processes of ours hold, whose jobs have the GPU or have just ended."""
    free = sample.memory_free_bytes
    if free is None:
        return None
    return free + sum(each.memory_bytes or 0 for each in sample.processes or () if each.ours)


def _groups(uuids: Sequence[str], topology: Topology | None) -> dict[str, int]:
    """GPUs that reach each other by NVLink, or where none do through one PCIe host bridge, have one number."""
    group = {uuid: number for number, uuid in enumerate(uuids)}
    if topology is None:
        return dict.fromkeys(uuids, 0)
    links = {pair: topology.link(*pair) for pair in combinations(uuids, 2)}
    by_wire = any(link is not None and link.nvlinks for link in links.values())
    for (a, b), link in links.items():
        near = link is not None and (link.nvlinks > 0 if by_wire else (link.level or 0) <= _ONE_BRIDGE)
        if (near or topology.distance(a, b) == 0) and group[a] != group[b]:
            low, high = sorted((group[a], group[b]))
            group = {uuid: low if number == high else number for uuid, number in group.items()}
    return group


def _is_without(reading: Reading) -> bool:
    """Whether the machine has no GPU, as against a driver that does not answer."""
    fault = reading.fault
    if fault is None or fault.code in NO_DRIVER:
        return not reading.problems
    return not GPU_FOLDER.is_dir()


class DeviceWatch:
    """What the machine has, as a thread of its own sees it every few seconds: asking it costs nothing.

    A driver that answers late makes its devices unusable until it does; before the first look there are none, and the
    inventory's time is 0.
    """

    def __init__(
        self,
        config: ServiceConfig,
        read: Callable[[ServiceConfig], Inventory] = read_inventory,
        clock: Callable[[], float] = time.time,
        every_s: float = LOOK_S,
    ) -> None:
        """read: stands in for the machine in tests."""
        self._config = config
        self._read = read
        self._clock = clock
        self._every_s = every_s
        self._last = Inventory(node_of(config), 0.0)
        self._end = threading.Event()
        self._looked = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look."""
        self._thread = threading.Thread(target=self._watch, name="drumline devices", daemon=True)
        self._thread.start()

    def wait(self, limit_s: float) -> bool:
        """Whether the first look was done within so many seconds."""
        return self._looked.wait(limit_s)

    def close(self) -> None:
        """Stop looking; a driver that hangs is not waited for."""
        self._end.set()
        if self._thread is not None:
            self._thread.join(5.0)
            self._thread = None

    def __call__(self) -> Inventory:
        """What was seen last."""
        last, now = self._last, self._clock()
        age = now - last.time
        if last.time == 0.0 or age < LATE_S:
            return last
        why = f"the driver has not answered for {age:.0f} s"
        late = (replace(device, unusable=device.unusable or why) for device in last.devices)
        return replace(last, devices=tuple(late))

    def _watch(self) -> None:
        while not self._end.is_set():
            try:
                self._last = self._read(self._config)
                self._looked.set()
            except Exception:
                logger.exception("the machine's devices could not be looked at")
            self._end.wait(self._every_s)
