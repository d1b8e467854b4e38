"""Gradients of all parameters without a Python instruction for each: the host's part of a step must not grow with them.

Everything here iterates in C. What is left for each is torch's own access to its gradient, some tens of nanoseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import repeat
from operator import attrgetter, is_

from torch import Tensor

_gradient = attrgetter("grad")


def gradients_of(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The gradients of those parameters that have one, in their order."""
    found: list[Tensor] = list(map(_gradient, parameters))
    return [gradient for gradient in found if gradient is not None] if lacks_some(found) else found


def lacks_gradients(parameters: Iterable[Tensor]) -> bool:
    """Whether a parameter has no gradient."""
    return lacks_some(map(_gradient, parameters))


def lacks_some(values: Iterable[Tensor | None]) -> bool:
    """Whether one of them is None."""
    return any(map(is_, values, repeat(None)))


def drop_gradients(parameters: Sequence[Tensor]) -> None:
    """Let no parameter have a gradient; as zero_grad does, without the profiler's record of it."""
    deque(map(setattr, parameters, repeat("grad"), repeat(None)), maxlen=0)
