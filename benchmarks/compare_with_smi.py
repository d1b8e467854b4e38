"""Every field of a sample beside what nvidia-smi says in the same second, idle and under load, on all GPUs.

    python benchmarks/compare_with_smi.py OUT.json [--rounds 3] [--idle-only]

nvidia-smi is asked between two looks through NVML: its value has to lie between theirs, give or take what it rounds and
what a value moves within the second (TOLERANCES). What its XML lacks comes from other questions to it (NVLink counters)
or from other fields (energy against power times time). Ends with 1 where a field differs or only nvidia-smi has it.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from drumline.hardware.nvidia_smi import read_with_smi
from drumline.hardware.records import GpuSample, Snapshot
from drumline.hardware.sample import take
from drumline.hardware.session import Session, open_session
from drumline.hardware.topology import read_topology, rows

MIB = 1 << 20
# (share of the value, absolute) by which nvidia-smi's may lie outside of the two looks; the rest must be equal.
TOLERANCES = {
    "utilization": (0.0, 0.10),
    "memory_utilization": (0.0, 0.10),
    "memory_used_bytes": (0.0, 2 * MIB),
    "memory_free_bytes": (0.0, 2 * MIB),
    "temperature_c": (0.0, 2.0),
    "memory_temperature_c": (0.0, 2.0),
    "slowdown_temperature_c": (0.0, 1.0),
    "power_w": (0.05, 5.0),
    "power_limit_w": (0.0, 0.01),
    "fan": (0.0, 0.02),
    "sm_clock_mhz": (0.05, 15.0),
    "memory_clock_mhz": (0.01, 2.0),
    "nvlink_tx_bytes": (0.0, 1 << 20),
    "nvlink_rx_bytes": (0.0, 1 << 20),
    "energy_w": (0.15, 10.0),
}
ENERGY_S = 3.0
"""Over which energy is compared with power: the counter moves some ten times a second."""
# Windows of their own: shown side by side, and only held to be there.
SHOWN = ("pcie_tx_bytes_per_s", "pcie_rx_bytes_per_s")
LOAD = """
import sys, torch
pairs = []
for place in range(torch.cuda.device_count()):
    one = torch.randn(8192, 8192, device=f"cuda:{place}", dtype=torch.bfloat16)
    pairs.append((one, torch.empty_like(one)))
print("ready", flush=True)
while True:
    for _ in range(20):
        for one, out in pairs:
            torch.mm(one, one, out=out)
    for place in range(len(pairs)):
        torch.cuda.synchronize(place)
"""


@dataclass(frozen=True)
class Row:
    """One field of one GPU in one round."""

    phase: str
    round: int
    gpu: int
    field: str
    before: Any
    smi: Any
    after: Any
    verdict: str
    """same, shown, only NVML, neither, DIFFERS, or ONLY NVIDIA-SMI."""


def compare(phase: str, number: int, before: GpuSample, smi: GpuSample, after: GpuSample) -> Iterator[Row]:
    """A row a field of one GPU."""

    def row(field: str, one: Any, said: Any, two: Any, word: str) -> Row:
        return Row(phase, number, before.gpu.index, field, one, said, two, word)

    for item in fields(GpuSample):
        if item.name not in ("gpu", "time", "refused", "processes"):
            one, said, two = (getattr(sample, item.name) for sample in (before, smi, after))
            yield row(item.name, one, said, two, verdict(item.name, one, said, two))
    for item in fields(type(before.gpu)):
        one, said, two = (getattr(sample.gpu, item.name) for sample in (before, smi, after))
        same = abs(said - one) < MIB if item.name == "memory_bytes" and said and one else said == one
        yield row(f"gpu.{item.name}", one, said, two, "same" if same else "DIFFERS")
    one, said, two = (
        sorted((process.pid, (process.memory_bytes or 0) // MIB) for process in sample.processes or ())
        for sample in (before, smi, after)
    )
    yield row("processes", one, said, two, "same" if said in (one, two) else "DIFFERS")


def verdict(name: str, before: Any, smi: Any, after: Any) -> str:
    """Pure: what to say of one field."""
    told = after if before is None else before
    if smi is None:
        return "neither" if told is None else "only NVML"
    if told is None:
        return "ONLY NVIDIA-SMI"
    if name in SHOWN:
        return "shown"
    if name in TOLERANCES:
        return "same" if close(smi, told, told if after is None else after, *TOLERANCES[name]) else "DIFFERS"
    return "same" if smi in (before, after) else "DIFFERS"


def close(value: float, one: float, other: float, share: float, absolute: float) -> bool:
    """Whether a value lies between two others, give or take."""
    slack = absolute + share * abs(value)
    return min(one, other) - slack <= value <= max(one, other) + slack


def nvlink_counters() -> dict[str, tuple[int, int]]:
    """Bytes sent and received over all links by UUID, from `nvidia-smi nvlink`."""
    text = subprocess.run(["nvidia-smi", "nvlink", "-gt", "d"], capture_output=True, text=True, timeout=30).stdout
    found: dict[str, tuple[int, int]] = {}
    uuid = ""
    for line in text.splitlines():
        if gpu := re.search(r"UUID: (GPU-[^)]+)", line):
            uuid = gpu[1]
        elif data := re.search(r"Data (Tx|Rx): (\d+) KiB", line):
            tx, rx = found.get(uuid, (0, 0))
            amount = int(data[2]) * 1024
            found[uuid] = (tx + amount, rx) if data[1] == "Tx" else (tx, rx + amount)
    return found


def one_round(session: Session, phase: str, number: int) -> Iterator[Row]:
    """Two looks with nvidia-smi between them, and the energy up to a third."""
    before = take(session)
    smi = read_with_smi(30.0)
    if not isinstance(smi, Snapshot):
        raise SystemExit(smi.reason)
    wires = nvlink_counters()
    after = take(session)
    time.sleep(ENERGY_S)
    later = {each.gpu.uuid: each for each in take(session).gpus}
    for one, said, two in zip(before.gpus, smi.gpus, after.gpus, strict=True):
        yield from compare(phase, number, one, said, two)
        index = one.gpu.index
        for name, value in zip(("nvlink_tx_bytes", "nvlink_rx_bytes"), wires.get(one.gpu.uuid, ()), strict=False):
            old, new = getattr(one, name), getattr(two, name)
            yield Row(phase, number, index, f"{name} (nvlink)", old, value, new, verdict(name, old, value, new))
        last = later[one.gpu.uuid]
        if two.energy_j is not None and last.energy_j is not None:
            watts = (last.energy_j - two.energy_j) / (last.time - two.time)
            word = verdict("energy_w", two.power_w, watts, last.power_w)
            yield Row(phase, number, index, "energy by time, and power", two.power_w, watts, last.power_w, word)


@contextmanager
def load() -> Iterator[None]:
    """All GPUs at work inside."""
    child = subprocess.Popen([sys.executable, "-c", LOAD], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        if child.stdout.readline() != "ready\n":
            raise SystemExit("the load did not start")
        time.sleep(4.0)  # until power and clocks have settled
        yield
    finally:
        child.kill()
        child.communicate()


def shown(value: Any) -> str:
    """A value for a table."""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e6 else f"{value:.5e}"
    return "-" if value is None else str(value)[:36]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="file of all rows, as JSON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle-only", action="store_true")
    asked = parser.parse_args()
    table: list[Row] = []
    with open_session() as session:
        take(session)  # rates and pipes need a look before the first
        time.sleep(1.0)
        for number in range(asked.rounds):
            table += one_round(session, "idle", number)
        if not asked.idle_only:
            with load():
                for number in range(asked.rounds):
                    table += one_round(session, "load", number)
        topology = [list(row) for row in rows(read_topology(session))]
    for row in table:
        if row.round == 0 or row.verdict.isupper():
            values = "  ".join(f"{shown(value):>36}" for value in (row.before, row.smi, row.after))
            print(f"{row.phase} {row.round} GPU {row.gpu}  {row.field:<28} {values}  {row.verdict}")
    wrong = [row for row in table if row.verdict.isupper()]
    print("\ntopology, ours and nvidia-smi's:")
    for cells in topology:
        print("  ", "  ".join(cells))
    print(subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=30).stdout)
    print(f"{len(table)} values compared, {len(wrong)} differ")
    asked.out.write_text(json.dumps({"rows": [asdict(row) for row in table], "topology": topology}, default=str))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
