from __future__ import annotations

from dataclasses import replace

from drumline.hardware.nvml import Unavailable
from drumline.hardware.records import Gpu, GpuSample, Snapshot
from drumline.hardware.sources import ask_others

EMPTY = Snapshot(1.0, "the package nvidia-ml-py is not installed")
FOUND = Snapshot(2.0, "nvidia-smi 580.1", (GpuSample(Gpu("GPU-a", "H100", 0, None, None), 2.0),))


def never() -> Snapshot:
    raise AssertionError("it was asked")


def test_the_first_that_tells_of_gpus_is_taken_and_nvmls_reason_kept() -> None:
    sources = (lambda: Unavailable("there is no nvidia-smi"), lambda: FOUND, never)
    told = ask_others(EMPTY, 1.0, devices=lambda: True, sources=sources)
    assert told.gpus == FOUND.gpus
    assert told.source == "nvidia-smi 580.1 (the package nvidia-ml-py is not installed)"


def test_a_machine_without_a_device_file_is_not_asked_again() -> None:
    empty = replace(EMPTY, no_gpu=True)
    assert ask_others(empty, 1.0, devices=lambda: False, sources=(never,)) is empty


def test_where_nobody_tells_every_reason_is_given() -> None:
    empty = Snapshot(1.0, "no NVIDIA driver", no_gpu=True)
    sources = (lambda: Unavailable("there is no nvidia-smi"), lambda: Snapshot(1.0, "nvidia-smi 580.1: no GPU"))
    told = ask_others(empty, 1.0, devices=lambda: True, sources=sources)
    assert told.source == "no NVIDIA driver; there is no nvidia-smi; nvidia-smi 580.1: no GPU"
    assert (told.gpus, told.no_gpu) == ((), False)
