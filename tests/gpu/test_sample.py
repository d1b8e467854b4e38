"""What a look tells of a real GPU: beside nvidia-smi's figures, and moving as work does. It must be ours alone."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from drumline.hardware.records import GpuSample, Snapshot
from drumline.hardware.sample import COUNTERS_EVERY_S, read_snapshot, take
from drumline.hardware.session import Session, open_session

pytestmark = pytest.mark.gpu

# nvidia-smi's name, how ours is had in its unit, and by how much the two may differ, being asked at different moments.
COMPARED: dict[str, tuple[Callable[[GpuSample], Any], float]] = {
    "memory.used": (lambda it: (it.memory_used_bytes or 0) / 2**20, 16.0),
    "memory.free": (lambda it: (it.memory_free_bytes or 0) / 2**20, 16.0),
    "temperature.gpu": (lambda it: it.temperature_c, 2.0),
    "power.draw": (lambda it: it.power_w, 40.0),
    "enforced.power.limit": (lambda it: it.power_limit_w, 0.01),
    "clocks.max.sm": (lambda it: it.max_sm_clock_mhz, 0.0),
    "clocks.mem": (lambda it: it.memory_clock_mhz, 0.0),
    "pcie.link.gen.max": (lambda it: it.max_pcie_generation, 0.0),
    "pcie.link.width.current": (lambda it: it.pcie_width, 0.0),
    "pcie.link.width.max": (lambda it: it.max_pcie_width, 0.0),
}


def on_first_gpu(snapshot: Snapshot) -> GpuSample:
    uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    (found,) = (sample for sample in snapshot.gpus if sample.gpu.uuid == uuid)
    return found


def test_fields_are_nvidia_smis() -> None:
    torch.zeros(1, device="cuda")
    query = ",".join(["uuid", "name", "pci.bus_id", *COMPARED])
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    with open_session() as session:
        told = {sample.gpu.uuid: sample for sample in take(session).gpus if sample.gpu.parent is None}
        lines = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.splitlines()
    assert len(lines) == len(told) > 0
    for line in lines:
        uuid, name, address, *values = line.split(", ")
        sample = told[uuid]
        assert sample.gpu.name == name
        assert address.lower().endswith(str(sample.gpu.pci_address))
        for (field, (ours, tolerance)), value in zip(COMPARED.items(), values, strict=True):
            if value != "[N/A]":
                assert ours(sample) == pytest.approx(float(value), abs=tolerance), (field, sample)


def window(session: Session, work: Callable[[], object] | None, seconds: float = 0.8) -> GpuSample:
    """What is told of the first GPU after a window of this work alone."""
    for length in (0.3, seconds):  # the first holds the change to this work
        end = time.monotonic() + length
        while time.monotonic() < end:
            if work is None:
                time.sleep(0.05)
            else:
                for _ in range(4):
                    work()
                torch.cuda.synchronize()
        sample = on_first_gpu(take(session))
    return sample


def test_units_move_as_the_work_does() -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        assert "GPM" in on_first_gpu(read_snapshot(window_s=0.2)).refused["pipes"]
        return
    left = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    pinned = torch.empty(1 << 28, dtype=torch.uint8, pin_memory=True)
    with open_session() as session:
        assert on_first_gpu(take(session)).refused["pipes"] == "needs two looks"
        idle = window(session, None)
        product = window(session, lambda: torch.mm(left, left))
        copy = window(session, lambda: target.copy_(source))
        upload = window(session, lambda: target[: 1 << 28].copy_(pinned, non_blocking=True))
    for sample in (idle, product, copy, upload):
        assert sample.pipes is not None and None not in vars(sample.pipes).values(), sample.refused
    assert idle.pipes.sm_active < 0.02 and idle.pipes.dram_active < 0.02  # type: ignore[union-attr, operator]
    assert product.pipes.sm_active > 0.8 and product.pipes.tensor_active > 0.4  # type: ignore[union-attr, operator]
    assert copy.pipes.dram_active > 0.4 and copy.pipes.tensor_active < 0.01  # type: ignore[union-attr, operator]
    assert upload.pcie_rx_bytes_per_s is not None and upload.pcie_rx_bytes_per_s > 5e9
    assert product.power_w is not None and idle.power_w is not None and product.power_w > 2 * idle.power_w
    assert product.energy_j is not None and idle.energy_j is not None and product.energy_j > idle.energy_j


def test_our_own_process_is_on_the_gpu_and_is_ours() -> None:
    keep = torch.zeros(1 << 28, device="cuda")
    sample = on_first_gpu(read_snapshot())
    assert sample.processes is not None and keep.numel() > 0
    mine = [process for process in sample.processes if process.pid == os.getpid()]
    # In a pid namespace that the driver does not know, the numbers are the host's.
    assert not mine or (mine[0].ours and mine[0].kind == "compute")
    assert any((process.memory_bytes or 0) >= 1 << 30 for process in sample.processes)


def test_a_look_costs_little() -> None:
    with open_session() as session:
        take(session)
        spent = []
        for _ in range(10):
            time.sleep(0.11)
            began = time.process_time()
            take(session, counters_every_s=COUNTERS_EVERY_S)
            spent.append(time.process_time() - began)
    assert sorted(spent)[5] < 0.01, "1% of a core at one look a second"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_what_goes_over_nvlink_is_told_by_rates_as_by_counters() -> None:
    """GPM's window ends up to a tenth of a second before a look, so that what is copied just then comes later."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda:0")
    target = source.to("cuda:1")

    def sent(session: Session, every_s: float) -> float:
        return on_first_gpu(take(session, counters_every_s=every_s)).nvlink_tx_bytes or 0.0

    with open_session() as rare, open_session() as each:
        if on_first_gpu(take(each)).nvlink_tx_bytes is None:
            pytest.skip("the first GPU has no NVLink")
        before = sent(rare, 60.0), sent(each, 0.0)
        time.sleep(0.3)
        sent(rare, 60.0)  # GPM tells from its second look on
        copied, end = 0, time.monotonic() + 3.0
        while time.monotonic() < end:
            for _ in range(8):
                target.copy_(source)
            torch.cuda.synchronize(0)
            torch.cuda.synchronize(1)
            copied += 8 << 30
        told = sent(rare, 60.0) - before[0], sent(each, 0.0) - before[1]
    assert told == pytest.approx((copied, copied), rel=0.06)
