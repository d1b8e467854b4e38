from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from drumline.hardware.occupants import GIB, num_own_users, occupants, without_own
from drumline.hardware.records import Gpu, GpuProcess, GpuSample

GPU = Gpu("GPU-a", "NVIDIA H100", 0, 80 * GIB, (9, 0))
STRANGER = GpuProcess(4242, "compute", 3 * GIB, "python train.py", "anna")
OURS = replace(STRANGER, ours=True)


def sample(processes: tuple[GpuProcess, ...] | None = (), used: int = GIB // 2, gpu: Gpu = GPU) -> GpuSample:
    """A GPU with these processes, and so many bytes in use."""
    return GpuSample(gpu, 0.0, memory_used_bytes=used, processes=processes)


def test_a_process_that_only_shows_something_or_is_ours_takes_nothing() -> None:
    graphics = replace(STRANGER, kind="graphics", memory_bytes=9 * GIB)
    assert occupants(sample((graphics, OURS), 12 * GIB)) is None
    assert occupants(sample(None, 70 * GIB)) is None
    both = replace(STRANGER, kind="compute+graphics")
    assert "4242" in (occupants(sample((both,))) or "")


def test_of_many_strangers_a_few_are_named() -> None:
    unseen = [GpuProcess(pid, "compute", None) for pid in range(1, 6)]
    text = occupants(sample(tuple(unseen)))
    assert text is not None and text.count("process") == 3 and text.endswith("; and 2 more")
    assert "process 1, which cannot be seen from here, computes on it;" in text


@pytest.mark.parametrize(("used", "words"), [(7 * GIB, None), (9 * GIB, "9.0 GiB of it are in use, by nobody")])
def test_memory_that_nobody_seen_holds_is_somebodys(used: int, words: str | None) -> None:
    text = occupants(sample(used=used))
    assert text is None if words is None else text is not None and words in text


def test_what_a_display_takes_of_a_small_gpu_is_nobodys() -> None:
    small = replace(GPU, memory_bytes=8 * GIB)
    assert occupants(sample(used=GIB + GIB // 2, gpu=small)) is None
    assert occupants(sample(used=3 * GIB, gpu=small)) is not None


def test_unseen_processes_are_ours_as_far_as_we_use_gpus_ourselves() -> None:
    unseen = GpuProcess(91, "compute", GIB)
    two = sample((unseen, replace(unseen, pid=92)))
    assert occupants(without_own(two, 2)) is None
    left = occupants(without_own(two, 1))
    assert left is not None and "process 92" in left and "process 91" not in left
    assert without_own(two, 0) == two
    # One that is seen is who he is.
    assert "anna" in (occupants(without_own(sample((STRANGER,)), 3)) or "")
    # A driver that shows a container no process at all.
    hidden = sample(used=60 * GIB)
    assert occupants(without_own(hidden, 1)) is None and occupants(hidden) is not None


def test_only_processes_with_a_gpus_device_file_use_one(tmp_path: Path) -> None:
    own = tmp_path / str(os.getpid()) / "fd"
    own.mkdir(parents=True)
    (own / "3").symlink_to("/dev/nvidiactl")
    assert num_own_users({"torch": object()}, tmp_path) == 0
    (own / "4").symlink_to("/dev/nvidia0")
    assert num_own_users({"torch": object()}, tmp_path) == 1
    assert num_own_users({}, tmp_path) == 0
