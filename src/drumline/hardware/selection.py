"""Which of the machine's GPUs to take: a pure choice, with the reason for every one that is left out, and the look."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from drumline.errors import HardwareError
from drumline.hardware.inventory import detect, matching, order_is_known
from drumline.hardware.occupants import GIB, num_own_users, occupants, without_own
from drumline.hardware.records import Gpu, GpuSample, Snapshot

if TYPE_CHECKING:
    from drumline.hardware.health import Verdict
    from drumline.hardware.topology import Topology

logger = logging.getLogger("drumline")

LIMIT_S = 20.0
"""How long the driver may take for each look before it counts as stuck; it wakes up GPUs that nobody uses first."""
NOT_NEEDED = "not needed"
"""Beginning of the reason of a GPU with which nothing is wrong."""

Policy = Literal["leave_out", "use"]


@dataclass(frozen=True)
class Wish:
    """What is asked of GPUs; the settings of `hardware` with the same names say more."""

    count: int | None = None
    min_free_memory: float = 0.0
    """Share of a GPU's memory, 0 to 1."""
    max_utilization: float = 1.0
    exclude: tuple[str, ...] = ()
    """UUIDs, beginnings of UUIDs, or indexes as nvidia-smi shows them."""
    names: tuple[str, ...] | None = None
    """UUIDs of the only ones that are looked at, in this order; None: all."""
    sick: Policy = "leave_out"
    taken: Policy = "leave_out"
    prefer_topology: bool = True
    """Of more usable ones than `count` the best connected; else the first."""
    min_free_bytes: int = 0


@dataclass(frozen=True)
class Selection:
    """GPUs that were chosen, and why each of the others was not."""

    uuids: tuple[str, ...]
    left_out: Mapping[str, str]
    """By UUID."""


@dataclass(frozen=True)
class Look:
    """What is known of the machine's GPUs before a choice."""

    snapshot: Snapshot
    """Of the GPUs that are looked at, in CUDA's order."""
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    topology: Topology | None = None
    gone: Mapping[str, str] = field(default_factory=dict)
    """GPUs that were seen a moment ago and of which the driver now says nothing, with the reason."""


def choose(
    snapshot: Snapshot,
    verdicts: Mapping[str, Verdict],
    topology: Topology | None,
    claimed: Mapping[str, str],
    wish: Wish,
) -> Selection:
    """Pure: the GPUs of this snapshot that fit the wish, in its order, and the reason for every other one.

    claimed: those that another launch has, each with who. Fewer than wish.count come out where fewer are usable; see
    `require`. Raises HardwareError for a name in wish.exclude that fits several GPUs.
    """
    gpus = [sample.gpu for sample in snapshot.gpus]
    excluded = {gpu.uuid for name in wish.exclude for gpu in matching(gpus, name, "hardware.exclude")}
    left_out: dict[str, str] = {}
    usable: list[str] = []
    for sample in snapshot.gpus:
        uuid = sample.gpu.uuid
        if wish.names is not None and uuid not in wish.names:
            left_out[uuid] = "hardware.gpus does not name it"
        elif uuid in excluded:
            left_out[uuid] = "hardware.exclude names it"
        elif reason := why_not(sample, verdicts, claimed, wish):
            left_out[uuid] = reason
        else:
            usable.append(uuid)
    if wish.names is not None:
        usable.sort(key=wish.names.index)
    if wish.count is None or len(usable) <= wish.count:
        return Selection(tuple(usable), left_out)
    best = topology.best_group(usable, wish.count) if topology is not None and wish.prefer_topology else ()
    chosen = [uuid for uuid in usable if uuid in best] if len(best) == wish.count else usable[: wish.count]
    left_out |= {uuid: f"{NOT_NEEDED}: {wish.count} were asked for" for uuid in usable if uuid not in chosen}
    return Selection(tuple(chosen), left_out)


def why_not(sample: GpuSample, verdicts: Mapping[str, Verdict], claimed: Mapping[str, str], wish: Wish) -> str | None:
    """Pure: why this GPU does not fit the wish; None: it does."""
    uuid = sample.gpu.uuid
    if wish.sick == "leave_out" and (ill := sickness(sample.gpu, verdicts)):
        return ill
    if wish.taken == "leave_out":
        if uuid in claimed:
            return claimed[uuid]
        if somebody := occupants(sample):
            return somebody
    return _too_little_memory(sample, wish) or _too_busy(sample, wish)


def sickness(gpu: Gpu, verdicts: Mapping[str, Verdict]) -> str | None:
    """Pure: what is wrong with a GPU whose verdict is fail, or with the GPU that a MIG instance is a part of."""
    for uuid in (gpu.uuid, gpu.parent):
        verdict = verdicts.get(uuid or "")
        if verdict is not None and verdict.status == "fail":
            return f"sick: {verdict.reason}"
    return None


def _too_little_memory(sample: GpuSample, wish: Wish) -> str | None:
    if wish.min_free_memory <= 0 and wish.min_free_bytes <= 0:
        return None
    free, whole = sample.memory_free_bytes, sample.gpu.memory_bytes
    if free is None or not whole:
        return f"its free memory is not known: {sample.refused.get('memory_free_bytes', 'the driver does not say')}"
    if free < wish.min_free_bytes:
        return f"{free / GIB:.1f} GiB of its memory are free, and {wish.min_free_bytes / GIB:.1f} are asked for"
    if free < wish.min_free_memory * whole:
        return f"{free / whole:.0%} of its memory is free, and hardware.min_free_memory is {wish.min_free_memory:.0%}"
    return None


def _too_busy(sample: GpuSample, wish: Wish) -> str | None:
    if wish.max_utilization >= 1:
        return None
    if sample.utilization is None:
        return f"how busy it is is not known: {sample.refused.get('utilization', 'the driver does not say')}"
    if sample.utilization > wish.max_utilization:
        return f"it is {sample.utilization:.0%} at work, and hardware.max_utilization is {wish.max_utilization:.0%}"
    return None


def require(selection: Selection, wish: Wish, label: Mapping[str, str]) -> None:
    """Raise HardwareError with every reason where fewer GPUs fit than are asked for, or a named one does not.

    label: what to call each GPU by, by UUID.
    """
    wanted = wish.count or (1 if wish.names is None else len(wish.names))
    if len(selection.uuids) >= wanted:
        return
    names = wish.names
    reasons = {u: why for u, why in selection.left_out.items() if names is None or u in names}
    told = "; ".join(f"{label.get(uuid, uuid)}: {why}" for uuid, why in reasons.items())
    if names is not None and wish.count is None:
        what = f"hardware.gpus names what is not to be used: {told}"
    else:
        asked = "a GPU is asked for" if wanted == 1 else f"{wanted} GPUs are asked for"
        what = f"{asked}, and {len(selection.uuids) or 'none'} of {len(label)} can be used: {told}"
    raise HardwareError(what, _advice(reasons.values(), wish))


def _advice(reasons: Iterable[str], wish: Wish) -> str:
    text = list(reasons)
    allow = []
    if any(each.startswith("sick") for each in text):
        allow.append("hardware.sick=use takes sick ones")
    if any(each.startswith(("taken", "claimed")) for each in text):
        allow.append("hardware.taken=use shares them with others")
    if wish.exclude and any("hardware.exclude" in each for each in text):
        allow.append("hardware.exclude can be shorter")
    first = "ask for fewer (hardware.count)" if (wish.count or 0) > 1 else "name others, or wait until one is free"
    return "; ".join([first, *allow, "drumline gpus shows all of them"])


def look(gpus: Sequence[Gpu], nvml: Any = None, *, with_topology: bool = True) -> Look:
    """What is known of these GPUs; each question to the driver is given up after LIMIT_S. `nvml`: for tests.

    Where the driver as a whole tells nothing, all of them come back without any facts, and a warning says so.
    """
    from drumline.hardware.health import read_verdicts
    from drumline.hardware.sample import read_snapshot
    from drumline.hardware.session import open_session

    with open_session(nvml):  # open to the end: a GPU that nobody uses takes seconds to wake, at each look anew
        snapshot = read_snapshot(nvml, LIMIT_S)
        verdicts = read_verdicts(nvml, LIMIT_S) if snapshot.gpus else {}
        topology = _topology(nvml) if with_topology and len(gpus) > 1 and snapshot.gpus else None
    by_uuid = {sample.gpu.uuid: sample for sample in snapshot.gpus}
    if not by_uuid:
        logger.warning("whether GPUs are healthy and free is not known: %s", snapshot.source)
        return Look(replace(snapshot, gpus=tuple(GpuSample(gpu, snapshot.time) for gpu in gpus)))
    there = tuple(by_uuid[gpu.uuid] for gpu in gpus if gpu.uuid in by_uuid)
    why = "; ".join(snapshot.problems) or f"the driver no longer lists it ({snapshot.source})"
    gone = {gpu.uuid: why for gpu in gpus if gpu.uuid not in by_uuid}
    there = tuple(without_own(sample, num_own_users(sys.modules)) for sample in there)
    return Look(replace(snapshot, gpus=there), verdicts, topology, gone)


def _topology(nvml: Any) -> Topology | None:
    from drumline.hardware.session import open_session
    from drumline.hardware.topology import read_topology
    from drumline.hardware.waiting import Unavailable, within

    with open_session(nvml) as session:
        found = None if session.fault is not None else within(LIMIT_S, lambda: read_topology(session), session.nvml)
    return None if isinstance(found, Unavailable) else found


def select(
    count: int | None = None,
    *,
    min_free_memory: float = 0.0,
    max_utilization: float = 1.0,
    exclude: Sequence[str] = (),
    sick: Policy = "leave_out",
    taken: Policy = "leave_out",
    prefer_topology: bool = True,
) -> Selection:
    """The GPUs of this machine that a CUDA process of this environment could use now, and why others are left out.

    Nothing is claimed: another process may take them the next moment. Raises HardwareError, with every reason, where
    fewer than `count` are usable, or none for None.
    """
    wish = Wish(
        count,
        min_free_memory,
        max_utilization,
        tuple(exclude),
        sick=sick,
        taken=taken,
        prefer_topology=prefer_topology,
    )
    machine = detect()
    if not machine.gpus:
        raise HardwareError(f"no GPU is visible ({machine.gpu_source})", "see drumline doctor")
    gpus = machine.gpus
    found = select_from(look(gpus, with_topology=count is not None), wish)
    require(found, wish, labels(gpus))
    return found


def select_optimal_gpus(num_gpus: int | None = None, min_memory_gb: float = 0.0) -> list[int]:
    """CUDA indexes of up to num_gpus GPUs that are healthy, free, and have so much free memory (in GiB).

    Of more than that the best connected; fewer, or none, where fewer are usable: the log says why.
    """
    machine = detect()
    gpus = machine.gpus
    if not gpus:
        return []
    if not order_is_known(machine):
        logger.warning("unlike GPUs: these indexes hold where CUDA_DEVICE_ORDER=PCI_BUS_ID is set")
    wish = Wish(num_gpus, min_free_bytes=int(min_memory_gb * GIB))
    found = select_from(look(gpus, with_topology=num_gpus is not None), wish)
    names = labels(gpus)
    if num_gpus is not None and len(found.uuids) < num_gpus:
        told = "; ".join(f"{names[uuid]}: {why}" for uuid, why in found.left_out.items())
        logger.warning("%d of %d GPUs can be used: %s", len(found.uuids), num_gpus, told or "there are no more")
    return [index for index, gpu in enumerate(gpus) if gpu.uuid in found.uuids]


def select_from(known: Look, wish: Wish, claimed: Mapping[str, str] | None = None) -> Selection:
    """Choose from what was seen. claimed: by other launches; None: as the claims of this machine say now."""
    if claimed is None:
        from drumline.hardware.claims import Claims

        claims = Claims()
        with claims.choosing():
            claimed = claims.of_others(sample.gpu.uuid for sample in known.snapshot.gpus)
    found = choose(known.snapshot, known.verdicts, known.topology, claimed, wish)
    return Selection(found.uuids, {**found.left_out, **known.gone})


def labels(gpus: Iterable[Gpu]) -> dict[str, str]:
    """What people call each of these GPUs, by UUID: 'GPU 1 (GPU-8932f937-...)'."""
    return {gpu.uuid: f"GPU {gpu.index} ({gpu.uuid})" for gpu in gpus}
