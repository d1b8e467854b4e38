"""Which GPUs a launch takes, before it is planned: the effects around `hardware.selection.choose`."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import psutil

from drumline.hardware.claims import Claims
from drumline.hardware.inventory import matching, named_gpus
from drumline.hardware.records import Gpu, GpuSample, Hardware, Snapshot
from drumline.hardware.selection import NOT_NEEDED, Look, Selection, Wish, labels, look, require, select_from
from drumline.launcher.spec import MARK
from drumline.rundir import ENDING_S

if TYPE_CHECKING:
    from drumline.config.schema import HardwareConfig, RunConfig
    from drumline.launcher.world import World

logger = logging.getLogger("drumline")

SETTLE_S = 1.0
"""How long it may take the driver to drop a process that has ended."""
_LOOK_S = 0.5


def take_gpus(
    asked: HardwareConfig,
    hardware: Hardware,
    claims: Claims | None = None,
    *,
    nvml: Any = None,
    pause: Callable[[float], None] = time.sleep,
) -> Hardware:
    """The machine with those GPUs only that a launch takes, by `asked`; the others are told in `left_out`.

    claims: with which they are claimed; None: nothing is claimed, and what others have claimed is left to them all the
    same. On the CPU nothing is looked at. Raises HardwareError, with every reason, where too few can be used or one
    that hardware.gpus names cannot.
    """
    if asked.device == "cpu" or not hardware.gpus:
        return hardware
    # The count comes into it here only to be refused beside names: which ones it is shows the look.
    named = named_gpus(hardware, asked.gpus, asked.exclude, None if asked.gpus is None else asked.count)
    gpus = {gpu.uuid: gpu for gpu in (hardware.gpus if asked.gpus is None else named)}
    _tell_of_strange_names(asked.exclude, hardware)
    see = partial(look, tuple(gpus.values()), nvml, with_topology=asked.count is not None)
    known, own = see(), Claims() if claims is None else claims
    if asked.taken == "leave_out" and MARK not in os.environ:  # else it is inside a launch, and what runs there goes on
        known = without_leftovers(known, own, see, pause)
    label = labels(gpus.values())
    selection = _agreed(known, wish_of(asked, named), own, label)
    left_out = tuple(f"{label[uuid]}: {why}" for uuid, why in selection.left_out.items())
    return replace(hardware, gpus=tuple(gpus[uuid] for uuid in selection.uuids), left_out=left_out)


def wanted(config: RunConfig) -> HardwareConfig:
    """Pure: what a run asks of the GPUs; one that is a single process takes one, and leaves the others to others."""
    asked = config.hardware
    alone = config.parallel.kind == "single" and asked.gpus is None and asked.count is None
    return asked.model_copy(update={"count": 1}) if alone else asked


def tell_left_out(hardware: Hardware) -> Hardware:
    """Say what `take_gpus` has left out and why, for launches that show no plan; returns the machine as it is."""
    for text in hardware.left_out:
        logger.log(logging.INFO if NOT_NEEDED in text else logging.WARNING, "left out: %s", text)
    return hardware


def wish_of(asked: HardwareConfig, named: Sequence[Gpu]) -> Wish:
    """Pure: the settings as a wish; `named`: what asked.gpus stands for, where it is given."""
    return Wish(
        count=asked.count,
        min_free_memory=asked.min_free_memory,
        max_utilization=asked.max_utilization,
        exclude=tuple(asked.exclude),
        names=None if asked.gpus is None else tuple(gpu.uuid for gpu in named),
        sick=asked.sick,
        taken=asked.taken,
    )


def _agreed(known: Look, wish: Wish, own: Claims, label: Mapping[str, str]) -> Selection:
    """Choose, and claim what was chosen, while no other launch chooses."""
    with own.choosing():
        claimed = own.of_others(label)
        while True:
            selection = select_from(known, wish, claimed)
            require(selection, wish, label)
            lost = own.take(selection.uuids)
            if not lost or wish.taken == "use":
                return selection
            # Somebody who did not wait for his turn; what is chosen next may be other GPUs altogether.
            claimed |= lost
            own.keep(())


def without_leftovers(known: Look, own: Claims, see: Callable[[], Look], pause: Callable[[float], None]) -> Look:
    """Wait for processes that are about to end: of a launch of ours that was killed just before, and unseen ones.

    In a container those may be of whatever ended there just before, or somebody else's: a moment shows. What goes on
    without a claim, as from a container with a /tmp of its own, then counts like a stranger's.
    """
    uuids = [sample.gpu.uuid for sample in known.snapshot.gpus]
    with own.choosing():
        claimed = own.of_others(uuids)
    waited, related = 0.0, _relatives()
    while True:
        pids = leftovers(known.snapshot, {*claimed, *own.held}, related)
        if waited >= (ENDING_S if pids else SETTLE_S) or not (pids or _has_unseen(known.snapshot)):
            break
        if pids and not waited:
            listed = ", ".join(map(str, pids))
            logger.warning("waiting for an earlier launch to end, whose processes still compute: pid %s", listed)
        pause(_LOOK_S)
        waited += _LOOK_S
        known = see()
    return replace(known, snapshot=_as_strangers(known.snapshot, pids)) if pids else known


def leftovers(snapshot: Snapshot, claimed: Set[str], related: Set[int]) -> list[int]:
    """Pure: pids of processes of our launches on GPUs that no launch has claimed, but for this process's relatives."""
    return [
        process.pid
        for sample in snapshot.gpus
        if sample.gpu.uuid not in claimed
        for process in sample.processes or ()
        # One of which nothing is known may be a relative under another number.
        if process.ours and process.name is not None and process.pid not in related
    ]


def _as_strangers(snapshot: Snapshot, pids: Sequence[int]) -> Snapshot:
    """Pure: the same, where these processes are not ours."""

    def of(sample: GpuSample) -> GpuSample:
        changed = (replace(each, ours=each.ours and each.pid not in pids) for each in sample.processes or ())
        return replace(sample, processes=None if sample.processes is None else tuple(changed))

    return replace(snapshot, gpus=tuple(of(sample) for sample in snapshot.gpus))


def _has_unseen(snapshot: Snapshot) -> bool:
    processes = (process for sample in snapshot.gpus for process in sample.processes or ())
    return any(process.name is None and not process.ours for process in processes)


def _relatives() -> set[int]:
    own = psutil.Process()
    return {own.pid, *(each.pid for each in (*own.parents(), *own.children(recursive=True)))}


def _tell_of_strange_names(names: Sequence[str], hardware: Hardware) -> None:
    for name in names:
        if not matching(hardware.gpus, name, "hardware.exclude"):
            logger.warning("hardware.exclude: %r is no GPU that this process may use", name)


def own_hardware(
    asked: HardwareConfig, hardware: Hardware, world: World, environ: Mapping[str, str] = os.environ
) -> Hardware:
    """The machine for a process for which no launcher of ours has chosen GPUs.

    A process alone gets those that fit what `asked` says of them, if it says anything; else, and under other launchers,
    where each rank comes to its own, all stay.
    """
    chosen = MARK in environ or world.size > 1 or not _says_more(asked)
    return hardware if chosen else take_gpus(asked, hardware)


def doubts(
    asked: HardwareConfig,
    hardware: Hardware,
    uuids: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    nvml: Any = None,
) -> list[str]:
    """What speaks against the GPUs that this process is about to use, where no launcher of ours has looked at them."""
    if MARK in environ or not uuids:
        return []
    gpus = [gpu for gpu in hardware.gpus if gpu.uuid in uuids]
    wish = wish_of(asked.model_copy(update={"gpus": None, "count": None, "exclude": []}), gpus)
    found, names = select_from(look(gpus, nvml, with_topology=False), wish), labels(gpus)
    return [f"{names[uuid]} is used all the same: {reason}" for uuid, reason in found.left_out.items()]


def _says_more(asked: HardwareConfig) -> bool:
    """Whether the settings ask for more than all GPUs, or certain ones."""
    return asked.count is not None or bool(asked.exclude) or asked.min_free_memory > 0 or asked.max_utilization < 1
