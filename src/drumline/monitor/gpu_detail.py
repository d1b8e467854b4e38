"""Everything about one GPU: curves of the last minutes, clocks, links, health, and who is on it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from drumline.hardware.records import GpuSample
from drumline.monitor import words
from drumline.monitor.bars import chart, resample
from drumline.monitor.gpu_table import STATUS_STYLES
from drumline.monitor.run_table import process_table
from drumline.monitor.scene import Look, Scene, labels

SPAN_S = 300.0
"""How far back the curves go."""

CHART_HEIGHT = 4
TWO_CHARTS = 76
"""Width from which on two curves stand beside each other."""


def gpu_detail(scene: Scene, sample: GpuSample, look: Look) -> Iterator[RenderableType]:
    """One GPU on a screen, the most wanted first, since the rest may be cut off."""
    gpu = sample.gpu
    name = labels(scene.snapshot.gpus)[gpu.uuid]
    yield Text(
        f"GPU {name}  {gpu.name}  {gpu.uuid}  {gpu.pci_address or ''}", style="bold", no_wrap=True, overflow="ellipsis"
    )
    yield from _charts(scene, sample, look)
    for line in facts(scene, sample):
        yield Text(line)
    verdict = scene.verdicts.get(gpu.uuid)
    if verdict is not None:
        yield Text.assemble("health ", (verdict.status, STATUS_STYLES.get(verdict.status, "")))
        for finding in verdict.findings:
            yield Text(f"  {finding.status}: {finding.message}; {finding.action} ({finding.source})")
    yield process_table(scene, [sample], look)
    for field, reason in sample.refused.items():
        yield Text(f"{field}: {reason}", style="dim")


def _charts(scene: Scene, sample: GpuSample, look: Look) -> Iterator[RenderableType]:
    memory, power = sample.gpu.memory_bytes, sample.power_limit_w
    curves: tuple[tuple[str, str, float | None, Callable[[float | None], str]], ...] = (
        ("use", "utilization", 1.0, words.percent),
        ("SM active", "sm_active", 1.0, words.percent),
        ("tensor active", "tensor_active", 1.0, words.percent),
        (
            "memory",
            "memory_used_bytes",
            None if memory is None else float(memory),
            lambda used: f"{words.gib(used)} GiB",
        ),
        ("power", "power_w", power, words.watts),
        ("heat", "temperature_c", sample.slowdown_temperature_c, words.celsius),
    )
    across = 2 if look.width >= TWO_CHARTS else 1
    width = (look.width - 2 * (across - 1)) // across
    grid = Table.grid(padding=(0, 2, 0, 0))
    row: list[Text] = []
    for title, field, top, write in curves:
        points = [(-age, value) for age, value in scene.series(sample.gpu.uuid, field)]
        if not points:
            continue
        highest = top or max(value for _, value in points) or 1.0
        lines = chart(resample(points, 0.0, SPAN_S, width), CHART_HEIGHT, highest, look.ascii_only)
        caption = f"{title} {write(points[-1][1])}, of {write(highest)}, last {words.span(SPAN_S)}"
        row.append(Text.assemble((caption[:width], "bold"), "\n", ("\n".join(lines), "cyan")))
        if len(row) == across:
            grid.add_row(*row)
            row = []
    if row:
        grid.add_row(*row)
    if grid.row_count:
        yield grid


def facts(scene: Scene, sample: GpuSample) -> Iterator[str]:
    """Numbers of one GPU in lines; values that nobody gave are left out."""
    of_slot = f", of {sample.max_pcie_generation} x{sample.max_pcie_width}" if sample.max_pcie_width else ""
    width = "" if sample.pcie_width is None else f"{sample.pcie_generation} x{sample.pcie_width}{of_slot}"
    nvlink = {way: _last(scene, sample, f"nvlink_{way}_bytes_per_s") for way in ("tx", "rx")}
    pipes = sample.pipes
    lines = (
        (
            ("memory traffic", words.percent(sample.memory_utilization)),
            (
                "SM clock",
                "" if sample.sm_clock_mhz is None else f"{sample.sm_clock_mhz} of {sample.max_sm_clock_mhz} MHz",
            ),
            ("memory clock", "" if sample.memory_clock_mhz is None else f"{sample.memory_clock_mhz} MHz"),
            ("slowed down by", ", ".join(sample.throttled_by or ())),
        ),
        (
            ("SM occupancy", words.percent(None if pipes is None else pipes.sm_occupancy)),
            ("memory active", words.percent(None if pipes is None else pipes.dram_active)),
            ("fp16", words.percent(None if pipes is None else pipes.fp16_active)),
            ("fp32", words.percent(None if pipes is None else pipes.fp32_active)),
            ("fp64", words.percent(None if pipes is None else pipes.fp64_active)),
        ),
        (
            ("PCIe", width),
            ("to the host", words.speed(sample.pcie_tx_bytes_per_s)),
            ("from it", words.speed(sample.pcie_rx_bytes_per_s)),
            ("NVLink out", words.speed(nvlink["tx"])),
            ("in", words.speed(nvlink["rx"])),
        ),
        (
            ("memory at", words.celsius(sample.memory_temperature_c)),
            ("slows down at", words.celsius(sample.slowdown_temperature_c)),
            ("fan", words.percent(sample.fan)),
            (
                "energy since the driver was loaded",
                "" if sample.energy_j is None else f"{sample.energy_j / 3.6e6:.2f} kWh",
            ),
        ),
    )
    for line in lines:
        known = [f"{name} {value}" for name, value in line if value not in ("", words.UNKNOWN)]
        if known:
            yield ", ".join(known)


def _last(scene: Scene, sample: GpuSample, field: str) -> float | None:
    points = list(scene.series(sample.gpu.uuid, field))
    return points[-1][1] if points else None
