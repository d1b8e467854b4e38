"""Which GPUs of a launch are lost or sick: by what the ranks said, and by a new look at the machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from drumline.errors import RestartNeeded
from drumline.hardware.nvml import Reading
from drumline.launcher.failures import FIX_MARK, Failure
from drumline.launcher.spec import LaunchSpec

if TYPE_CHECKING:
    from drumline.hardware.health import Verdict

SICK = {
    "uncorrectable ecc error encountered": "its memory had an uncorrectable error (cudaErrorECCUncorrectable)",
    "uncorrectable nvlink error detected": "its NVLink had an uncorrectable error (cudaErrorNvlinkUncorrectable)",
    "gpu is lost": "it fell off the bus (NVML_ERROR_GPU_IS_LOST)",
    "gpu requires restart": "it needs a reset (NVML_ERROR_RESET_REQUIRED)",
}
"""What cudaGetErrorString and nvmlErrorString say, in lower case, where the device itself is at fault, and in words.

The conditions are those of cudaError_t (CUDA Runtime API, data types) and nvmlReturn_t (NVML API reference). A GPU that
is gone altogether mostly gives "unknown error", "unspecified launch failure" or "no CUDA-capable device", which
software causes too: those are left to the new look at the machine.
"""


def lost_gpus(spec: LaunchSpec, failures: Iterable[Failure], reading: Reading) -> dict[str, str]:
    """Pure: the GPUs of a launch that are lost, by UUID, each with the reason.

    Lost are those that the driver no longer answers for, and those of a rank whose error says that its GPU is sick.
    Where NVML as a whole does not answer, only the ranks' word counts.
    """
    gpus = spec.gpus or ()
    lost = {}
    if reading.fault is None:
        there = present(reading)
        why = "; ".join(reading.problems) or f"the driver no longer lists it ({reading.source})"
        lost = {uuid: why for uuid in gpus if uuid.lower() not in there}
    for failure in failures:
        # With several GPUs a process nobody knows which of them it was.
        if failure.rank is None or len(gpus) != spec.num_workers:
            continue
        reason = next((meaning for text, meaning in SICK.items() if text in failure.message.lower()), None)
        if reason is not None:
            lost.setdefault(gpus[failure.rank], reason)
    return lost


def sick_gpus(
    spec: LaunchSpec,
    failures: Iterable[Failure],
    reading: Reading,
    verdicts: Mapping[str, Verdict],
    told: Mapping[str, str],
) -> dict[str, str]:
    """Pure: the GPUs of a launch whose health has turned to fail, by UUID, each with the reason.

    By a new look (`verdicts`), by what the run's own recorder saw meanwhile (`told`, by UUID: what is an event leaves
    no other trace), and by what a rank said that ended because of one. A MIG instance is as sick as its GPU.
    """
    parents = {each.gpu.uuid: device.gpu.uuid for device in reading.devices for each in device.instances or ()}
    asked = [failure.message.partition(FIX_MARK)[0] for failure in failures if failure.code == RestartNeeded.code]
    sick = {}
    for uuid in spec.gpus or ():
        for name in (uuid, parents.get(uuid, uuid)):
            verdict = verdicts.get(name)
            if verdict is not None and verdict.status == "fail":
                sick[uuid] = f"sick: {verdict.reason}"
            elif name in told:
                sick[uuid] = told[name]
            elif reasons := [text for text in asked if name in text]:
                sick[uuid] = reasons[0]
            if uuid in sick:
                break
    return sick


def present(reading: Reading) -> frozenset[str]:
    """UUIDs, in lower case, of all GPUs and MIG instances of a reading."""
    instances = (instance.gpu for device in reading.devices for instance in device.instances or ())
    return frozenset(gpu.uuid.lower() for gpu in (*(device.gpu for device in reading.devices), *instances))


def on_gpus(spec: LaunchSpec, gpus: Sequence[str]) -> LaunchSpec:
    """The same launch on these GPUs: a worker each, where each had one before."""
    each = spec.gpus is not None and spec.num_workers == len(spec.gpus)
    return replace(spec, gpus=tuple(gpus), num_workers=len(gpus) if each else spec.num_workers)
