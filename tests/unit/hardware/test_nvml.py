from __future__ import annotations

import sys
import threading

import pynvml
import pytest

from drumline.hardware.nvml import Unavailable, ask, pci_address, read_gpus
from tests.simulated_nvml import (
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    GPU_IS_LOST,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    NOT_SUPPORTED,
    VERSION_MISMATCH,
    SimulatedGpu,
    SimulatedInstance,
    SimulatedNvml,
)


def test_reads_every_field_in_nvmls_order() -> None:
    nvml = SimulatedNvml([SimulatedGpu("GPU-b", "NVIDIA L4", 24 << 30, (8, 9)), SimulatedGpu("GPU-a")])
    reading = read_gpus(nvml)
    first, second = (device.gpu for device in reading.devices)
    assert (first.uuid, first.name, first.index) == ("GPU-b", "NVIDIA L4", 0)
    assert (first.memory_bytes, first.compute_capability) == (24 << 30, (8, 9))
    assert (second.uuid, second.index) == ("GPU-a", 1)
    assert (reading.source, reading.driver, reading.problems) == ("nvml 580.159.04", "580.159.04", ())
    assert reading.fault is None


def test_is_shut_down_after_reading_and_after_a_refusal() -> None:
    for errors in ({}, {"nvmlDeviceGetCount": NO_PERMISSION}):
        nvml = SimulatedNvml([SimulatedGpu("GPU-a")], errors)
        read_gpus(nvml)
        assert nvml.initialised == 0


@pytest.mark.parametrize(
    ("function", "code", "words"),
    [
        ("nvmlInit", DRIVER_NOT_LOADED, "no NVIDIA driver is loaded"),
        ("nvmlInit", LIBRARY_NOT_FOUND, "libnvidia-ml is not installed"),
        ("nvmlInit", VERSION_MISMATCH, "different versions"),
        ("nvmlInit", NO_PERMISSION, "no permission"),
        ("nvmlInit", 999, "NVML error 999"),
        ("nvmlDeviceGetCount", NO_PERMISSION, "no permission"),
    ],
)
def test_a_refusal_of_the_whole_is_a_value(function: str, code: int, words: str) -> None:
    reading = read_gpus(SimulatedNvml([SimulatedGpu("GPU-a")], {function: code}))
    assert reading.devices == ()
    assert words in reading.source
    assert reading.fault is not None and reading.fault.code == code


def test_a_missing_python_package_is_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_gpus().source == "the package nvidia-ml-py is not installed"


def test_no_gpu_at_all_is_said() -> None:
    assert read_gpus(SimulatedNvml([])).source == "nvml 580.159.04: no GPU"


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"])
@pytest.mark.parametrize(("code", "words"), [(GPU_IS_LOST, "is lost"), (NO_PERMISSION, "no permission")])
def test_a_gpu_that_cannot_be_named_is_left_out_with_the_reason(function: str, code: int, words: str) -> None:
    gpus = [SimulatedGpu("GPU-a"), SimulatedGpu("GPU-b", errors={function: code}), SimulatedGpu("GPU-c")]
    reading = read_gpus(SimulatedNvml(gpus))
    assert [(device.gpu.uuid, device.gpu.index) for device in reading.devices] == [("GPU-a", 0), ("GPU-c", 2)]
    assert len(reading.problems) == 1
    assert reading.problems[0].startswith("GPU 1 left out") and words in reading.problems[0]


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetCudaComputeCapability"]
)
def test_a_gpu_that_is_lost_between_two_questions_is_left_out(function: str) -> None:
    reading = read_gpus(SimulatedNvml([SimulatedGpu("GPU-a", errors={function: GPU_IS_LOST})]))
    assert reading.devices == ()
    assert "is lost" in reading.problems[0]


def test_fields_that_are_not_supported_stay_unknown() -> None:
    errors = {
        "nvmlDeviceGetName": NOT_SUPPORTED,
        "nvmlDeviceGetMemoryInfo": NOT_SUPPORTED,
        "nvmlDeviceGetCudaComputeCapability": FUNCTION_NOT_FOUND,
        "nvmlDeviceGetMigMode": NOT_SUPPORTED,
    }
    (device,) = read_gpus(SimulatedNvml([SimulatedGpu("GPU-a", errors=errors)])).devices
    assert (device.gpu.name, device.gpu.memory_bytes, device.gpu.compute_capability) == ("unknown", None, None)
    assert device.instances is None


def test_a_driver_version_that_is_refused_leaves_the_gpus() -> None:
    reading = read_gpus(SimulatedNvml([SimulatedGpu("GPU-a")], {"nvmlSystemGetDriverVersion": NOT_SUPPORTED}))
    assert (reading.source, reading.driver, len(reading.devices)) == ("nvml", None, 1)


def test_mig_instances_are_read_with_gaps_and_refusals_between_them() -> None:
    instances = {
        0: SimulatedInstance("MIG-a", 1),
        2: SimulatedInstance("MIG-b", 5, 1),
        3: SimulatedInstance("MIG-c", 6, errors={"nvmlDeviceGetUUID": GPU_IS_LOST}),
        4: SimulatedInstance("MIG-d", 7, errors={"nvmlDeviceGetGpuInstanceId": NOT_SUPPORTED}),
    }
    nvml = SimulatedNvml([SimulatedGpu("GPU-x"), SimulatedGpu("GPU-a", capability=(8, 0), instances=instances)])
    _, device = read_gpus(nvml).devices
    assert device.instances is not None
    assert [(i.gpu.uuid, i.gpu_instance, i.compute_instance) for i in device.instances] == [
        ("MIG-a", 1, 0),
        ("MIG-b", 5, 1),
    ]
    first = device.instances[0].gpu
    assert (first.index, first.memory_bytes, first.compute_capability) == (1, 5 << 30, (8, 0))


def test_mig_that_cannot_be_counted_has_no_instances() -> None:
    gpu = SimulatedGpu("GPU-a", instances={}, errors={"nvmlDeviceGetMaxMigDeviceCount": NO_PERMISSION})
    (device,) = read_gpus(SimulatedNvml([gpu])).devices
    assert device.instances == ()


def test_a_function_that_the_binding_lacks_is_a_value() -> None:
    answer = ask(SimulatedNvml([]), "nvmlOfTheFuture")
    assert isinstance(answer, Unavailable)
    assert answer.code is None


def test_an_older_drivers_missing_versions_and_broken_texts_are_values() -> None:
    def mismatch(*_: object) -> None:
        raise pynvml.NVMLLibraryMismatchError("pyNVML version does not match")

    nvml = SimulatedNvml([SimulatedGpu("GPU-a")])
    nvml.values = {"nvmlSystemGetProcessName": lambda pid: b"\xff".decode(), "nvmlSystemGetHicVersion": mismatch}
    nvml.nvmlInit()
    missing = ask(nvml, "nvmlSystemGetHicVersion")
    assert missing == Unavailable("the driver is too old for this question", FUNCTION_NOT_FOUND)
    broken = ask(nvml, "nvmlSystemGetProcessName", 1)
    assert isinstance(broken, Unavailable) and "no text" in broken.reason


def test_addresses_are_the_kernels() -> None:
    assert pci_address("00000000:3B:00.0") == "0000:3b:00.0"
    assert pci_address("00010000:C1:00.0") == "10000:c1:00.0"
    gpu = SimulatedGpu("GPU-a", pci="00000001:AB:1F.0", instances={0: SimulatedInstance("MIG-a", 1)})
    (device,) = read_gpus(SimulatedNvml([gpu])).devices
    assert device.gpu.pci_address == "0001:ab:1f.0" and device.gpu.parent is None
    assert device.instances is not None
    assert [(one.gpu.pci_address, one.gpu.parent) for one in device.instances] == [("0001:ab:1f.0", "GPU-a")]


def test_a_gpu_without_an_address_is_still_a_gpu_and_one_that_is_lost_at_that_question_is_not() -> None:
    refused = SimulatedGpu("GPU-a", errors={"nvmlDeviceGetPciInfo": NOT_SUPPORTED})
    lost = SimulatedGpu("GPU-b", errors={"nvmlDeviceGetPciInfo": GPU_IS_LOST})
    reading = read_gpus(SimulatedNvml([refused, lost]))
    assert [(device.gpu.uuid, device.gpu.pci_address) for device in reading.devices] == [("GPU-a", None)]
    assert "GPU 1 left out" in reading.problems[0]


def test_a_driver_that_hangs_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drumline.hardware.nvml.INIT_LIMIT_S", 0.05)
    nvml = SimulatedNvml([SimulatedGpu("GPU-a")])
    nvml.hangs.add("nvmlDeviceGetCount")
    reading = read_gpus(nvml)
    assert (reading.devices, reading.source) == ((), "the driver did not answer within 0.05 s")
    assert reading.fault is not None
    nvml.release()
    for thread in threading.enumerate():
        if thread.name == "drumline-driver":
            thread.join(5.0)
    assert nvml.initialised == 0
