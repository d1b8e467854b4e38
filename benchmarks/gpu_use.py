"""What NVML's performance monitor says of one GPU between two moments (Hopper and later); nothing where it cannot."""

from __future__ import annotations

from typing import Any

import torch


class GpuUse:
    """`begin`, work, `end`: shares of the time, from 0 to 1, by name; empty where NVML has no such counters.

    sm_active: an SM had work; sm_occupancy: warps of the most there can be; tensor_active: tensor cores worked;
    memory_active: of the memory's bandwidth. Means over all SMs and over the time between the two calls.
    """

    def __init__(self, device: int = 0) -> None:
        self.samples: list[Any] = []
        self.nvml: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
            uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
            self.handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
            if pynvml.nvmlGpmQueryDeviceSupport(self.handle).isSupportedDevice:
                self.nvml = pynvml
        except Exception as error:  # whatever is missing, the benchmark goes on without these figures
            print(f"no GPU performance counters: {error!r}")

    def begin(self) -> None:
        self._take()

    def end(self) -> dict[str, float]:
        self._take()
        if self.nvml is None or len(self.samples) != 2:
            return {}
        nvml = self.nvml
        wanted = {
            "sm_active": nvml.NVML_GPM_METRIC_SM_UTIL,
            "sm_occupancy": nvml.NVML_GPM_METRIC_SM_OCCUPANCY,
            "tensor_active": nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
            "memory_active": nvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
        }
        question = nvml.c_nvmlGpmMetricsGet_t()
        question.version = nvml.NVML_GPM_METRICS_GET_VERSION
        question.numMetrics = len(wanted)
        question.sample1, question.sample2 = self.samples
        for place, metric in enumerate(wanted.values()):
            question.metrics[place].metricId = metric
        try:
            nvml.nvmlGpmMetricsGet(question)
        except nvml.NVMLError as error:
            print(f"no GPU performance counters: {error!r}")
            return {}
        answers = [question.metrics[place] for place in range(len(wanted))]
        for sample in self.samples:
            nvml.nvmlGpmSampleFree(sample)
        pairs = zip(wanted, answers, strict=True)
        return {name: answer.value / 100 for name, answer in pairs if answer.nvmlReturn == nvml.NVML_SUCCESS}

    def _take(self) -> None:
        if self.nvml is None:
            return
        try:
            sample = self.nvml.nvmlGpmSampleAlloc()
            self.nvml.nvmlGpmSampleGet(self.handle, sample)
            self.samples.append(sample)
        except self.nvml.NVMLError as error:
            print(f"no GPU performance counters: {error!r}")
            self.nvml = None
