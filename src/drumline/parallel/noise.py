"""The gradient noise scale: how large a batch may grow before it stops paying (McCandlish et al. 2018)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from drumline.parallel.strategy import MAIN, MicroBatch, Scale, Sums

SIGNAL, TRACE = "noise_signal", "noise_trace"
"""Names of the two sums; a log line shows their quotient only."""


class Noise:
    """Compares one learner's squared gradient norm at two batch sizes of one window, as in appendix A.

    The smaller batch is a rank's first micro-batch, or all that it has where it runs only one; the larger one is the
    window of all ranks. Sizes are in samples. All of it stays on the device.
    """

    def __init__(self) -> None:
        self._small: tuple[Tensor, int, float] | None = None

    def begin(self) -> None:
        """Forget the window before."""
        self._small = None

    def take(self, square: Tensor, part: MicroBatch, scale: Scale, loss_scale: Tensor | None) -> None:
        """Take in the squared norm of the gradient that this part of the window gave, scaled as in `run_pass`."""
        if not part.weight or not part.units:
            return
        square = square.double() / (scale.total * part.units) ** 2
        if loss_scale is not None:
            square = square / loss_scale.double().square()
        self._small = (square, part.samples, 1 / scale.aux)

    def sums(self, norm: Tensor, name: str = MAIN) -> Sums:
        """Unbiased estimates of |G|^2 and of the trace of one sample's covariance; norm: the whole window's.

        Nothing where the smaller batch is the whole window.
        """
        if self._small is None:
            return {}
        small, size, whole = self._small
        if size >= round(whole):
            return {}
        large = norm.detach().double().square()
        signal = (whole * large - size * small) / (whole - size)
        trace = (small - large) / (1 / size - 1 / whole)
        after = "" if name == MAIN else f"/{name}"
        return {f"{SIGNAL}{after}": (signal, 1.0), f"{TRACE}{after}": (trace, 1.0)}


def squared_norm(gradients: Iterable[Tensor | None]) -> Tensor:
    """Of all gradients that there are, as one vector; a scalar on their device."""
    return torch.nn.utils.get_total_norm([g for g in gradients if g is not None], foreach=True).square()


def noise_scales(parts: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, float]:
    """`gradient_noise_scale` in samples, out of every rank's sums of an interval; with several learners one for each.

    Left out where the signal is lost in the noise, so that its estimate is not positive.
    """
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for part in parts for name in part if name.startswith(SIGNAL)):
        after = name.removeprefix(SIGNAL)
        signal = sum(part[name][0] for part in parts if name in part)
        trace = sum(part[TRACE + after][0] for part in parts if name in part)
        if signal > 0:
            found[f"{after[1:]}/gradient_noise_scale".lstrip("/")] = trace / signal
    return found
