"""Verdicts on what `drumline quickstart --check` measured; reads nothing and needs no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from drumline.track.bench import size_of

CHECKS = ("devices", "all-reduce", "parameters", "speed")

Result = Mapping[str, Any]


class Verdict(NamedTuple):
    """One line of the check."""

    name: str
    is_ok: bool
    message: str


def verdicts(together: Result, alone: Result, gpus: Sequence[str], source: str) -> list[Verdict]:
    """Pure: one verdict a check. together, alone: what `bench_soundness` returned on all devices and on one.

    gpus: UUIDs of the GPUs that the ranks should be on; none on the CPU. source: why there are none.
    """
    judged = (
        _devices(together["ranks"], gpus, source),
        _all_reduce(together["comm"]),
        _parameters(together["ranks"]),
        _speed(together, alone, on_gpus=bool(gpus)),
    )
    return [Verdict(name, *found) for name, found in zip(CHECKS, judged, strict=True)]


def _devices(ranks: Sequence[Result], gpus: Sequence[str], source: str) -> tuple[bool, str]:
    found = [rank["device"] for rank in ranks]
    shared = sorted({device for device in found if found.count(device) > 1})
    if shared:
        return False, f"several ranks are on {', '.join(shared)}"
    if not gpus:
        return True, f"no GPU is visible ({source}): {len(found)} processes on the CPU"
    if set(found) != set(gpus):
        return False, f"the ranks are on {', '.join(found)}, and should be on {', '.join(gpus)}"
    return True, f"{len(found)} GPU, with a rank" if len(found) == 1 else f"{len(found)} ranks, each on its own GPU"


def _all_reduce(comm: Result | None) -> tuple[bool, str]:
    if comm is None:
        return True, "one rank has nobody to reduce with"
    row = next(row for row in comm["rows"] if row["collective"] == "all_reduce")
    between = f"{size_of(row['bytes'])} between {comm['world_size']} ranks over {comm['backend']}"
    if comm["wrong_sums"]:
        return False, f"{between}: {comm['wrong_sums']} sums are wrong; drumline gpus --test looks at each GPU and link"
    return True, f"{between}: every sum is right, {row['bus_bytes_per_s'] / 1e9:.2f} GB/s bus bandwidth"


def _parameters(ranks: Sequence[Result]) -> tuple[bool, str]:
    first = ranks[0]["parameters"]
    other = [number for number, rank in enumerate(ranks) if rank["parameters"] != first]
    if other:
        return False, f"after one update those of rank {', '.join(map(str, other))} are not those of rank 0"
    if not all(rank["moved"] for rank in ranks):
        return False, "an update has not changed them"
    return True, "one rank's, changed by an update" if len(
        ranks
    ) == 1 else f"equal on {len(ranks)} ranks after an update"


def _speed(together: Result, alone: Result, *, on_gpus: bool) -> tuple[bool, str]:
    """On the CPU the processes may share cores with each other and with anybody else: there it is only told."""
    num, unit, one = len(together["ranks"]), together["unit"], "GPU" if on_gpus else "process"
    if num == 1:
        return True, f"{together['units_per_s']:,.0f} {unit}/s on one {one}"
    ratio = together["units_per_s"] / alone["units_per_s"]
    numbers = f"{together['units_per_s']:,.0f} {unit}/s against {alone['units_per_s']:,.0f}"
    return ratio > 1 or not on_gpus, f"{num} ranks are {ratio:.2f} times as fast as one {one} alone: {numbers}"
