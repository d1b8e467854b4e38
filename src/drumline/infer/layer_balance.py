"""Cuts a row of layers into one piece a device, so that the slowest device is as fast as can be."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import inf, isfinite

from drumline.errors import HardwareError
from drumline.plan.memory import GIB

_ROUNDING = 1 + 1e-12


def balanced(
    costs: Sequence[float], num_devices: int, sizes: Sequence[int] = (), capacities: Sequence[float] = ()
) -> list[int]:
    """The device of each layer, ascending; pure.

    costs: of each layer, in any unit. sizes: bytes of each layer, and capacities: bytes of each device; empty: memory
    does not matter. Of all ways in which the slowest device does least, the one that is most even over all (least sum
    of squares). A device may stay empty. Raises HardwareError where the layers do not fit in their order.
    """
    sizes = list(sizes) or [0] * len(costs)
    capacities = list(capacities) or [inf] * num_devices
    slowest = _cuts(costs, sizes, capacities, inf, evenly=False)
    if slowest is None:
        raise HardwareError(
            f"{sum(sizes) / GIB:,.2f} GiB of layers do not fit on {num_devices} devices with room for "
            f"{' + '.join(f'{capacity / GIB:,.2f}' for capacity in capacities)} GiB of weights",
            "set split.gpus to more, or quantise the model (model.quantise)",
        )
    most = max((sum(costs[begin:end]) for begin, end in pairwise(slowest)), default=0.0)
    cuts = _cuts(costs, sizes, capacities, most * _ROUNDING, evenly=True) or slowest
    return [device for device, (begin, end) in enumerate(pairwise(cuts)) for _ in range(begin, end)]


def _cuts(
    costs: Sequence[float], sizes: Sequence[int], capacities: Sequence[float], most: float, *, evenly: bool
) -> list[int] | None:
    """Where each device's piece begins, and the end; None where there is no way.

    By dynamic programming over (devices used, layers placed). evenly: make the sum of squares least, else the maximum;
    most: what a device may cost.
    """
    count = len(costs)
    cost, size = [0.0, *accumulate(costs)], [0, *accumulate(sizes)]
    best = [0.0] + [inf] * count
    origins: list[list[int]] = []
    for capacity in capacities:
        after, origin = [inf] * (count + 1), [0] * (count + 1)
        for end in range(count + 1):
            for begin in range(end, -1, -1):
                piece = cost[end] - cost[begin]
                if size[end] - size[begin] > capacity or piece > most:
                    break  # a longer piece costs and weighs no less
                total = best[begin] + piece**2 if evenly else max(best[begin], piece)
                if total < after[end]:
                    after[end], origin[end] = total, begin
        best = after
        origins.append(origin)
    if not isfinite(best[count]):
        return None
    cuts = [count]
    for origin in reversed(origins):
        cuts.append(origin[cuts[-1]])
    return cuts[::-1]
