"""Which devices a job gets: of one group where it fits, and of the fullest such group, so that whole ones stay free."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable

from drumline.jobs.records import Device, Resources

ANY = Resources()
"""What every device suits."""


def suits(device: Device, asked: Resources) -> bool:
    """Whether it is one of those that are named, if any, and has the memory; one whose memory is not known has it."""
    return (not asked.gpus or device.id in asked.gpus) and _is_large_enough(device, asked)


def _is_large_enough(device: Device, asked: Resources) -> bool:
    return asked.memory_bytes is None or device.memory_bytes is None or device.memory_bytes >= asked.memory_bytes


class Pool:
    """Devices that can be taken, each once. Which are taken follows from what was put in and taken before."""

    def __init__(self, devices: Iterable[Device] = ()) -> None:
        self._groups: dict[int, list[Device]] = {}
        self._by_size: dict[int, dict[int, None]] = {}
        self._memory: list[float] = []
        self._by_id: dict[str, Device] = {}
        self.put(devices)

    def put(self, devices: Iterable[Device]) -> None:
        """Add devices."""
        added: dict[int, list[Device]] = {}
        for device in devices:
            added.setdefault(device.group, []).append(device)
            self._by_id[device.id] = device
        self._memory += [_memory(device) for members in added.values() for device in members]
        self._memory.sort()
        for number, members in added.items():
            self._set(number, [*self._groups.get(number, ()), *members])

    def count(self, asked: Resources = ANY) -> int:
        """How many there are that suit."""
        if asked.gpus:
            named = (self._by_id[name] for name in set(asked.gpus) if name in self._by_id)
            return sum(_is_large_enough(device, asked) for device in named)
        if asked.memory_bytes is None:
            return len(self._memory)
        return len(self._memory) - bisect_left(self._memory, asked.memory_bytes)

    def take(self, count: int, asked: Resources = ANY) -> list[Device]:
        """Remove that many devices that suit; at most `count(asked)` may be asked for."""
        are_all = self.count(asked) == self.count()
        taken: list[Device] = []
        while len(taken) < count:
            missing = count - len(taken)
            number = self._group_of_all(missing) if are_all else self._group(missing, asked)
            members = self._groups[number]
            if are_all:
                chosen, rest = members[:missing], members[missing:]
            else:
                chosen = [device for device in members if suits(device, asked)][:missing]
                ids = {device.id for device in chosen}
                rest = [device for device in members if device.id not in ids]
            self._set(number, rest)
            for device in chosen:
                del self._memory[bisect_left(self._memory, _memory(device))]
                del self._by_id[device.id]
            taken += chosen
        return taken

    def _group_of_all(self, count: int) -> int:
        """The smallest group that has so many, or else the largest."""
        enough = [size for size in self._by_size if size >= count]
        return next(iter(self._by_size[min(enough) if enough else max(self._by_size)]))

    def _group(self, count: int, asked: Resources) -> int:
        """The same, of those devices that suit."""
        sizes = {number: sum(suits(device, asked) for device in members) for number, members in self._groups.items()}
        enough = [number for number, size in sizes.items() if size >= count]
        if enough:
            return min(enough, key=lambda number: (sizes[number], number))
        return min(sizes, key=lambda number: (-sizes[number], number))

    def _set(self, number: int, members: list[Device]) -> None:
        old = len(self._groups.pop(number, ()))
        if old:
            self._by_size[old].pop(number)
            if not self._by_size[old]:
                del self._by_size[old]
        if members:
            self._groups[number] = members
            self._by_size.setdefault(len(members), {})[number] = None


def _memory(device: Device) -> float:
    return math.inf if device.memory_bytes is None else device.memory_bytes
