"""What watching the GPUs costs, and whether what is seen moves as it should.

Usage: python benchmarks/sampling.py OUT_FILE [--parts questions looks units steps] [--tiny]. Prints tables and writes
its figures as JSON. Needs a GPU; --tiny is a small shape on the CPU: does the script itself work?
  questions: time and CPU time of each question that a look asks of one GPU, and of others that it could ask instead.
  looks: CPU time of a look at all GPUs as a run's sampler takes them, one a second, and of each question in it.
  units: what GPM, use and power say of an idle GPU, a matrix product, a copy on the GPU and one from the host.
  steps: recipe gpt2_124m without sampling, with a sampler on a thread of the same process, and in a child process;
         blocks of updates in turn, at one look a second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from timed_steps import advance, synchronise, timed

from drumline.hardware.nvml import Unavailable, load
from drumline.hardware.records import GpuSample
from drumline.hardware.sample import COUNTERS_EVERY_S, take
from drumline.hardware.session import Session, open_session

CHILD = """
import sys
from drumline.monitor.sampler import Sampler
with Sampler(1.0) as sampler:
    sampler.look_within(60.0)
    print(flush=True)
    sys.stdin.read()
"""
QUESTIONS: dict[str, tuple[Any, ...]] = {
    "nvmlDeviceGetUtilizationRates": (),
    "nvmlDeviceGetMemoryInfo": (0x02000028,),
    "nvmlDeviceGetTemperature": (0,),
    "nvmlDeviceGetPowerUsage": (),
    "nvmlDeviceGetEnforcedPowerLimit": (),
    "nvmlDeviceGetFanSpeed": (),
    "nvmlDeviceGetClockInfo": (1,),
    "nvmlDeviceGetMaxClockInfo": (1,),
    "nvmlDeviceGetCurrentClocksEventReasons": (),
    "nvmlDeviceGetCurrPcieLinkGeneration": (),
    "nvmlDeviceGetCurrPcieLinkWidth": (),
    "nvmlDeviceGetComputeRunningProcesses": (),
    "nvmlDeviceGetGraphicsRunningProcesses": (),
    "nvmlDeviceGetTemperatureThreshold": (1,),
    "nvmlDeviceGetMarginTemperature": (),
    "nvmlDeviceGetTotalEnergyConsumption": (),
    "nvmlDeviceGetPcieThroughput": (0,),
}
LINKS = 0xFFFFFFFF
FIELDS = {
    "memory temperature": [82],
    "energy": [83],
    "power, mean of a second": [185],
    "power, now": [186],
    "NVLink, both ways": [(138, LINKS), (139, LINKS)],
    "PCIe counters, both ways": [197, 198],
    "a look's batch": [82, 83, (138, LINKS), (139, LINKS)],
}


def timed_call(call: Callable[[], Any], count: int) -> tuple[float, float]:
    """Medians of wall and CPU microseconds."""
    walls, cpus = [], []
    for _ in range(count):
        wall, cpu = time.perf_counter(), time.thread_time()
        call()
        cpus.append(time.thread_time() - cpu)
        walls.append(time.perf_counter() - wall)
    return 1e6 * statistics.median(walls), 1e6 * statistics.median(cpus)


def questions(session: Session) -> list[dict[str, Any]]:
    """Each question alone, of the first GPU."""
    one = session.found()[0]
    nvml, rows = session.nvml, []
    asked: list[tuple[str, Callable[[], Any]]] = [
        (name, lambda name=name, args=args: session.ask(name, one.handle, *args)) for name, args in QUESTIONS.items()
    ]
    for name, numbers in FIELDS.items():
        asked.append(
            (f"fields: {name}", lambda numbers=numbers: session.ask("nvmlDeviceGetFieldValues", one.handle, numbers))
        )
    sample = session.ask("nvmlGpmSampleAlloc")
    asked.append(("nvmlGpmSampleGet", lambda: session.ask("nvmlGpmSampleGet", one.handle, sample)))
    for name, call in asked:
        answer = call()
        wall, cpu = timed_call(call, 5 if "PcieThroughput" in name else 50)
        told = [value.nvmlReturn for value in answer] if name.startswith("fields") else str(answer)[:60]
        rows.append({"question": name, "wall_us": round(wall, 1), "cpu_us": round(cpu, 1), "answer": told})
        print(f"| {name} | {wall:,.0f} | {cpu:,.0f} | {told} |")
    nvml.nvmlGpmSampleFree(sample)
    return rows


class Timed:
    """NVML's module, in which the CPU time of each function is added up by its name."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self.seconds: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._nvml, name)
        if not name.startswith("nvml") or not callable(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            began = time.thread_time()
            try:
                return found(*args, **options)
            finally:
                self.seconds[name] += time.thread_time() - began

        return call


def looks(period_s: float, count: int) -> dict[str, Any]:
    """Looks as a run's sampler takes them: at its rate, with its rare questions as rare."""
    nvml = load()
    timed_nvml = None if isinstance(nvml, Unavailable) else Timed(nvml)
    walls, cpus, process = [], [], []
    with open_session(timed_nvml) as session:
        for _ in range(2):  # what is asked once, and the first window of GPM
            take(session, counters_every_s=COUNTERS_EVERY_S)
            time.sleep(period_s)
        if timed_nvml is not None:
            timed_nvml.seconds.clear()
        for _ in range(count):
            wall, cpu, whole = time.perf_counter(), time.thread_time(), time.process_time()
            snapshot = take(session, counters_every_s=COUNTERS_EVERY_S)
            process.append(time.process_time() - whole)
            cpus.append(time.thread_time() - cpu)
            walls.append(time.perf_counter() - wall)
            time.sleep(period_s)
    by_question = {} if timed_nvml is None else dict(timed_nvml.seconds.most_common())
    figures = {
        "gpus": len(snapshot.gpus),
        "looks": count,
        "period_s": period_s,
        "wall_ms": 1e3 * statistics.median(walls),
        "cpu_ms": 1e3 * statistics.median(cpus),
        "cpu_ms_mean": 1e3 * statistics.mean(cpus),
        "process_cpu_ms_mean": 1e3 * statistics.mean(process),
        "share_of_a_core_at_1_hz": statistics.mean(process),
        "cpu_ms_a_look_by_question": {name: 1e3 * seconds / count for name, seconds in by_question.items()},
        "source": snapshot.source,
        "refused": {sample.gpu.index: dict(sample.refused) for sample in snapshot.gpus},
    }
    print(
        f"a look at {figures['gpus']} GPU(s): {figures['wall_ms']:.2f} ms, of which {figures['cpu_ms']:.2f} ms CPU; "
        f"at 1 Hz {100 * figures['share_of_a_core_at_1_hz']:.2f}% of a core (bar: 1% for all)"
    )
    for name, seconds in list(by_question.items())[:12]:
        print(f"| {name} | {1e3 * seconds / count:.3f} ms a look |")
    return figures


def work(name: str, size: int, device: torch.device) -> Callable[[], Any]:
    """One piece of work of this kind, given to the GPU without waiting."""
    if name == "matrix product":
        left = torch.randn(size, size, device=device, dtype=torch.bfloat16)
        out = torch.empty_like(left)
        return lambda: torch.mm(left, left, out=out)
    bytes_each = size * size * 16
    source = torch.ones(bytes_each, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    if name == "copy on the GPU":
        return lambda: target.copy_(source)
    pinned = torch.ones(bytes_each, dtype=torch.uint8, pin_memory=device.type == "cuda")
    return lambda: target.copy_(pinned, non_blocking=True)


EXPECTED: dict[str, Callable[[GpuSample], bool]] = {
    "idle": lambda it: it.pipes is not None and max(it.pipes.sm_active or 0, it.pipes.dram_active or 0) < 0.02,
    "matrix product": lambda it: (
        it.pipes is not None and (it.pipes.sm_active or 0) > 0.8 and (it.pipes.tensor_active or 0) > 0.4
    ),
    "copy on the GPU": lambda it: (
        it.pipes is not None and (it.pipes.dram_active or 0) > 0.5 and (it.pipes.tensor_active or 0) < 0.01
    ),
    "copy from the host": lambda it: (it.pcie_rx_bytes_per_s or 0) > 5e9 and (it.utilization or 0) >= 0,
}


def units(session: Session, seconds: float, size: int, device: torch.device) -> list[dict[str, Any]]:
    """What a look says after some seconds of each kind of work."""
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}" if device.type == "cuda" else ""
    rows = []
    for name, expected in EXPECTED.items():
        piece = None if name == "idle" else work(name, size, device)
        for _ in range(2):  # the first window holds the change from one work to the next
            take(session)
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                if piece is None:
                    time.sleep(0.05)
                    continue
                for _ in range(4):
                    piece()
                synchronise()
            samples = [sample for sample in take(session).gpus if sample.gpu.uuid == uuid]
        for sample in samples:
            row = {
                "work": name,
                "as_expected": expected(sample),
                "pipes": None if sample.pipes is None else vars(sample.pipes),
                "utilization": sample.utilization,
                "memory_utilization": sample.memory_utilization,
                "power_w": sample.power_w,
                "sm_clock_mhz": sample.sm_clock_mhz,
                "throttled_by": sample.throttled_by,
                "pcie_tx_bytes_per_s": sample.pcie_tx_bytes_per_s,
                "pcie_rx_bytes_per_s": sample.pcie_rx_bytes_per_s,
            }
            rows.append(row)
            print(f"{name}: {'as expected' if row['as_expected'] else 'NOT AS EXPECTED'}: {row}")
    return rows


@contextmanager
def on_a_thread() -> Iterator[None]:
    from drumline.monitor.sampler import Sampler

    with Sampler(1.0):
        yield


@contextmanager
def in_a_child() -> Iterator[None]:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=pipe, stdout=pipe, text=True) as child:
        try:
            assert child.stdout is not None
            if child.stdout.readline() != "\n":  # a line once it has looked for the first time
                raise SystemExit("the sampling child did not start")
            yield
        finally:
            child.kill()


def steps(rounds: int, tiny: bool) -> dict[str, Any]:
    """Milliseconds an update, in blocks that take turns."""
    from drumline.build.parts import build_trainer
    from drumline.config.load import load_config
    from drumline.rundir import RunDir

    context, batch, count = (32, 4, 3) if tiny else (1024, 32, 30)
    small = ["model={kind: decoder, num_layers: 1, width: 32, num_heads: 2}", "train.compile=none"]
    config = load_config(
        "gpt2_124m",
        [
            f"data={{kind: random_tokens, num_rows: 65536, context: {context}, vocab_size: 50257}}",
            f"train.global_batch={batch}",
            "train.max_steps=100000",
            f"loader.num_workers={0 if tiny else 2}",
            "evaluate.every=end",
            "checkpoint.at_end=false",
            "track={console: false, every: 1000}",
            "monitor.record=false",
            *(small if tiny else ()),
        ],
    )
    kinds: dict[str, Callable[[], Any]] = {"without": nullcontext, "thread": on_a_thread, "child": in_a_child}
    times: dict[str, list[float]] = {name: [] for name in kinds}
    with build_trainer(config, RunDir.create(Path(tempfile.mkdtemp()) / "run")) as trainer:
        running = trainer.steps()
        advance(running, 2 if tiny else 20)
        for number in range(rounds):
            order = list(kinds) if number % 2 == 0 else list(reversed(kinds))
            for name in order:
                with kinds[name]():
                    advance(running, 2)
                    times[name].append(1e3 * timed(running, count))
    found: dict[str, Any] = {"ms_by_block": times}
    for name, values in times.items():
        pairs = [100 * (value / base - 1) for value, base in zip(values, times["without"], strict=True)]
        found[name] = {"ms": statistics.median(values), "over_without_percent": statistics.median(pairs)}
        print(f"{name}: {found[name]['ms']:.3f} ms an update, {found[name]['over_without_percent']:+.2f}% (bar +0.5%)")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parts = ["questions", "looks", "units", "steps"]
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tiny", action="store_true")
    asked = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    figures: dict[str, Any] = {"torch": torch.__version__}
    if device.type == "cuda":
        figures["device"] = torch.cuda.get_device_name()
        torch.zeros(1, device=device)

    def keep(name: str, value: Any) -> None:
        figures[name] = value
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(figures, indent=1, default=str))

    began = time.perf_counter()
    with open_session() as session:
        snapshot = take(session)
        keep("open_and_first_look_ms", 1e3 * (time.perf_counter() - began))
        first = f"first look after {figures['open_and_first_look_ms']:.0f} ms"
        print(f"{snapshot.source}, {len(snapshot.gpus)} GPU(s); {first}")
        if "questions" in asked.parts and snapshot.gpus:
            keep("questions", questions(session))
        if "looks" in asked.parts:
            keep("looks", looks(0.1 if asked.tiny else 1.0, 5 if asked.tiny else 20))
        if "units" in asked.parts:
            keep("units", units(session, 0.3 if asked.tiny else 2.0, 64 if asked.tiny else 8192, device))
    if "steps" in asked.parts:
        keep("steps", steps(1 if asked.tiny else asked.rounds, asked.tiny))


if __name__ == "__main__":
    main()
