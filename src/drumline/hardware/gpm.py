"""How much of a GPU's units work, by NVML's GPU performance monitoring (GPM): Hopper and later, without root.

GPM counts in hardware: a value is the mean between two samples, so the first look has none. DCGM reads the same
counters; the two may disturb each other (public reports say so).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from drumline.hardware.nvml import Found, Unavailable, ask
from drumline.hardware.records import Pipes

MIN_WINDOW_S = 0.1
"""Shortest window with a meaning: on Hopper the counters are brought up to date ten times a second (DCGM issue 310)."""
# Numbers of nvml.h, nvmlGpmMetricId_t; all in percent.
_SHARES = {
    "sm_active": 2,
    "sm_occupancy": 3,
    "tensor_active": 5,
    "dram_active": 10,
    "fp64_active": 11,
    "fp32_active": 12,
    "fp16_active": 13,
}
# In MiB a second, over all links.
_RATES = {
    "pcie_tx_bytes_per_s": 20,
    "pcie_rx_bytes_per_s": 21,
    "nvlink_rx_bytes_per_s": 60,
    "nvlink_tx_bytes_per_s": 61,
}
_MIB = 1 << 20
_METRICS = (*_SHARES.values(), *_RATES.values())
FIRST_LOOK = Unavailable("needs two looks")


@dataclass(frozen=True)
class GpmReading:
    """Means over one window."""

    pipes: Pipes
    pcie_tx_bytes_per_s: float | None = None
    pcie_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None


class Gpm:
    """GPM of one GPU or MIG instance from look to look; holds two samples of NVML until drop()."""

    def __init__(self) -> None:
        self._samples: list[Any] = []
        self._request: Any = None
        self._taken_at: float | None = None
        self._last: GpmReading | Unavailable = FIRST_LOOK
        self._never: Unavailable | None = None

    def look(self, nvml: Any, one: Found, now: float) -> GpmReading | Unavailable:
        """Means since the look before; the ones before again where less than MIN_WINDOW_S has passed.

        now: seconds of any clock that only goes forward.
        """
        if self._never is None and self._request is None:
            self._never = self._prepare(nvml, one)
        if self._never is not None:
            return self._never
        if self._taken_at is not None and now - self._taken_at < MIN_WINDOW_S:
            return self._last
        older, newer = self._samples
        if one.parent is None:
            taken = ask(nvml, "nvmlGpmSampleGet", one.handle, newer)
        else:
            taken = ask(nvml, "nvmlGpmMigSampleGet", one.parent, one.gpu_instance, newer)
        if isinstance(taken, Unavailable):
            self._taken_at, self._last = None, FIRST_LOOK
            return taken
        if self._taken_at is None:
            self._last = FIRST_LOOK
        else:
            self._last = self._between(nvml, older, newer, now - self._taken_at)
        self._samples = [newer, older]
        self._taken_at = now
        return self._last

    def drop(self, nvml: Any) -> None:
        """Give the samples back to NVML."""
        for sample in self._samples:
            ask(nvml, "nvmlGpmSampleFree", sample)
        self._samples, self._request, self._taken_at, self._last = [], None, None, FIRST_LOOK

    def _prepare(self, nvml: Any, one: Found) -> Unavailable | None:
        support = ask(nvml, "nvmlGpmQueryDeviceSupport", one.parent or one.handle)
        if isinstance(support, Unavailable):
            return support
        if not support.isSupportedDevice:
            return Unavailable("this GPU has no GPM (Hopper and later have)")
        request = ask(nvml, "c_nvmlGpmMetricsGet_t")
        if isinstance(request, Unavailable):
            return request
        for _ in range(2):
            sample = ask(nvml, "nvmlGpmSampleAlloc")
            if isinstance(sample, Unavailable):
                self.drop(nvml)
                return sample
            self._samples.append(sample)
        request.version, request.numMetrics = 1, len(_METRICS)
        for metric, number in zip(request.metrics, _METRICS, strict=False):
            metric.metricId = number
        self._request = request
        return None

    def _between(self, nvml: Any, older: Any, newer: Any, window_s: float) -> GpmReading | Unavailable:
        self._request.sample1, self._request.sample2 = older, newer
        answer = ask(nvml, "nvmlGpmMetricsGet", self._request)
        if isinstance(answer, Unavailable):
            return answer
        values: dict[int, float] = {}
        for metric in self._request.metrics[: len(_METRICS)]:
            # A window in which a unit had no clock at all is divided by zero.
            if metric.nvmlReturn == 0 and math.isfinite(metric.value):
                values[metric.metricId] = metric.value
        shares = {name: min(values[number] / 100, 1.0) for name, number in _SHARES.items() if number in values}
        rates = {name: values[number] * _MIB for name, number in _RATES.items() if number in values}
        return GpmReading(Pipes(window_s, **shares), **rates)
