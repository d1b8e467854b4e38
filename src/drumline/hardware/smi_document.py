"""The XML of `nvidia-smi -q -x` in the same form as NVML's own answers: pure but for the names of processes."""

from __future__ import annotations

import html
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace

from drumline.hardware.nvml import Unavailable, pci_address
from drumline.hardware.processes import describe
from drumline.hardware.records import Gpu, GpuProcess, GpuSample, Snapshot

MIB = 1 << 20
_KINDS = {"C": "compute", "G": "graphics", "C+G": "compute+graphics", "M+C": "compute"}
_NOT_TOLD = "nvidia-smi -q -x does not tell"
# Fields that its document never holds, and those that it holds for whole GPUs only.
_ABSENT = ("energy_j", "nvlink_tx_bytes", "nvlink_rx_bytes", "pipes")
_OF_INSTANCES = ("gpu", "time", "memory_used_bytes", "memory_free_bytes", "processes", "refused")
_OF_WHOLE_GPUS = tuple(item.name for item in fields(GpuSample) if item.name not in _OF_INSTANCES)
_SILENT = {
    "N/A": "not supported",
    "Not Supported": "not supported",
    "Not Available": "not available",
    "Insufficient Permissions": "no permission",
    "Not Found": "not found",
    "Unknown Error": "unknown error",
    "ERR!": "unknown error",
    "GPU requires reset": "the GPU needs a reset",
    "Function Not Found": "the driver is too old for this question",
}
THROTTLES = {
    "sw_power_cap": "power limit",
    "hw_slowdown": "hardware slowdown",
    "sw_thermal_slowdown": "heat (software)",
    "hw_thermal_slowdown": "heat (hardware)",
    "hw_power_brake_slowdown": "power brake",
}
"""Its names for what slows a GPU down, in the words of hardware.sample.THROTTLES and in their order."""


def parse(document: str, now: float, *, capabilities: str = "", listing: str = "") -> Snapshot | Unavailable:
    """Pure: the XML of `nvidia-smi -q -x` (its DTDs v10 to v13) in the neutral form.

    capabilities: lines "UUID, 9.0"; listing: the output of -L. Processes get owner and name from this system. Returns
    Unavailable where the text is no such document.
    """
    try:
        root = ET.fromstring(_mended(document))
    except ET.ParseError:
        return Unavailable(f"nvidia-smi wrote no XML: {first_line(document)}")
    driver = (root.findtext("driver_version") or "").strip()
    source = f"nvidia-smi {driver}".strip()
    known = dict(_capabilities(capabilities))
    instances = _listed_instances(listing)
    samples: list[GpuSample] = []
    problems: list[str] = []
    for index, element in enumerate(root.findall("gpu")):
        uuid = _text(element, "uuid")
        if isinstance(uuid, Unavailable):
            problems.append(f"GPU {index} left out: {uuid.reason}")
            continue
        sample = _sample(element, index, known.get(uuid), now)
        samples.append(sample)
        samples.extend(_instances(element, sample, instances.get(uuid, {}), problems))
    if not samples and not problems:
        return Snapshot(now, f"{source}: no GPU", no_gpu=True)
    return Snapshot(now, source, tuple(samples), tuple(problems))


def first_line(text: str) -> str:
    """Pure: how a program's output begins, for a message."""
    return (text.strip().splitlines() or ["no message"])[0][:200]


def _mended(document: str) -> str:
    """Well-formed XML: its messages of lost GPUs come before the document, and names of processes stand in it raw.

    cwltool's pull request 1910 saw bytes of any kind in process_name. The long lists of clocks are not needed.
    """
    start = document.find("<?xml")
    text = document[max(0, start) :]
    text = re.sub(r"<(supported_clocks|accounted_processes)>.*?</\1>", "", text, flags=re.DOTALL)
    text = re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", "", text)
    return re.sub(r"(?<=<process_name>).*?(?=</process_name>)", _escaped, text, flags=re.DOTALL)


def _escaped(name: re.Match[str]) -> str:
    text = name.group()
    return text if re.search(r"&(amp|lt|gt|quot|apos);", text) else html.escape(text, quote=False)


class _Values:
    """Fields of one GPU's element, with the reason for each that has no value."""

    def __init__(self, element: ET.Element) -> None:
        self.element = element
        self.refused: dict[str, str] = dict.fromkeys(_ABSENT, _NOT_TOLD)

    def number(self, field: str, *paths: str, scale: float = 1.0) -> float | None:
        """The first of these paths that holds a number, in base units; None with its reason kept."""
        reason = _NOT_TOLD
        for path in paths:
            text = _text(self.element, path)
            if isinstance(text, Unavailable):
                reason = reason if reason != _NOT_TOLD else text.reason
                continue
            found = re.match(r"-?\d+(\.\d+)?", text)
            if found:
                return float(found.group()) * scale
            reason = text
        self.refused[field] = reason
        return None

    def whole(self, field: str, *paths: str, scale: int = 1) -> int | None:
        """The same for a count."""
        value = self.number(field, *paths, scale=scale)
        return None if value is None else round(value)


def _sample(element: ET.Element, index: int, capability: tuple[int, int] | None, now: float) -> GpuSample:
    values = _Values(element)
    number, whole = values.number, values.whole
    link, power = "pci/pci_gpu_link_info/", "gpu_power_readings/"
    # v10 and v11 have one reading of the power. The others' average is over the last second, as NVML's usage is.
    powers = [power + "average_power_draw", power + "power_draw", "power_readings/power_draw"]
    limits = [power + "current_power_limit", "power_readings/enforced_power_limit"]
    return GpuSample(
        gpu=_gpu(element, index, capability),
        time=now,
        utilization=number("utilization", "utilization/gpu_util", scale=0.01),
        memory_utilization=number("memory_utilization", "utilization/memory_util", scale=0.01),
        memory_used_bytes=whole("memory_used_bytes", "fb_memory_usage/used", scale=MIB),
        memory_free_bytes=whole("memory_free_bytes", "fb_memory_usage/free", scale=MIB),
        temperature_c=number("temperature_c", "temperature/gpu_temp"),
        memory_temperature_c=number("memory_temperature_c", "temperature/memory_temp"),
        slowdown_temperature_c=_slowdown(values),
        power_w=number("power_w", *powers, power + "instant_power_draw"),
        power_limit_w=number("power_limit_w", *limits),
        fan=number("fan", "fan_speed", scale=0.01),
        sm_clock_mhz=whole("sm_clock_mhz", "clocks/sm_clock"),
        max_sm_clock_mhz=whole("max_sm_clock_mhz", "max_clocks/sm_clock"),
        memory_clock_mhz=whole("memory_clock_mhz", "clocks/mem_clock"),
        throttled_by=_throttled(values),
        pcie_tx_bytes_per_s=number("pcie_tx_bytes_per_s", "pci/tx_util", scale=1000),
        pcie_rx_bytes_per_s=number("pcie_rx_bytes_per_s", "pci/rx_util", scale=1000),
        pcie_generation=whole("pcie_generation", link + "pcie_gen/current_link_gen"),
        max_pcie_generation=whole("max_pcie_generation", link + "pcie_gen/max_link_gen"),
        pcie_width=whole("pcie_width", link + "link_widths/current_link_width"),
        max_pcie_width=whole("max_pcie_width", link + "link_widths/max_link_width"),
        processes=_processes(values),
        refused=values.refused,  # filled by the lines above, and by nothing after them
    )


def _gpu(element: ET.Element, index: int, capability: tuple[int, int] | None) -> Gpu:
    uuid, name, address = (_text(element, path) for path in ("uuid", "product_name", "pci/pci_bus_id"))
    memory = _Values(element).whole("memory_bytes", "fb_memory_usage/total", scale=MIB)
    return Gpu(
        uuid=str(uuid),
        name="unknown" if isinstance(name, Unavailable) else name,
        index=index,
        memory_bytes=memory,
        compute_capability=capability,
        pci_address=None if isinstance(address, Unavailable) else pci_address(address),
    )


def _slowdown(values: _Values) -> float | None:
    """Where the hardware slows down; newer GPUs tell it as a distance from the same limit as their own temperature.

    T.Limit (nvidia-smi's manual, "Temperature"): degrees that are left until the limit; the slowdown begins at another
    number of degrees left, below zero.
    """
    direct = values.number("slowdown_temperature_c", "temperature/gpu_temp_slow_threshold")
    if direct is not None:
        return direct
    now = values.number("slowdown_temperature_c", "temperature/gpu_temp")
    left = values.number("slowdown_temperature_c", "temperature/gpu_temp_tlimit")
    begins = values.number("slowdown_temperature_c", "temperature/gpu_temp_slow_tlimit_threshold")
    if now is None or left is None or begins is None:
        return None
    values.refused.pop("slowdown_temperature_c")
    return now + left - begins


def _throttled(values: _Values) -> tuple[str, ...] | None:
    """Causes in words; drivers before 535 call their list another name."""
    for prefix in ("clocks_event_reason", "clocks_throttle_reason"):
        group = values.element.find(f"{prefix}s")
        if group is not None and len(group):
            active = {name for name in THROTTLES if (group.findtext(f"{prefix}_{name}") or "").strip() == "Active"}
            return tuple(words for name, words in THROTTLES.items() if name in active)
    values.refused["throttled_by"] = _NOT_TOLD
    return None


def _processes(values: _Values) -> tuple[GpuProcess, ...] | None:
    group = values.element.find("processes")
    words = "" if group is None else (group.text or "").strip()
    if group is None or words not in ("", "None"):
        said = _said(words)
        values.refused["processes"] = said.reason if isinstance(said, Unavailable) else said
        return None
    return tuple(_process(entry) for entry in group.findall("process_info"))


def _process(entry: ET.Element) -> GpuProcess:
    kind, name = (_text(entry, path) for path in ("type", "process_name"))
    memory = _Values(entry).whole("memory", "used_memory", scale=MIB)
    # Newer drivers tell whole command lines, in which there may be secrets.
    told = None if isinstance(name, Unavailable) else name.partition(" -")[0]
    return describe(int(entry.findtext("pid") or 0), _KINDS.get(str(kind), "compute"), memory, told=told)


def _instances(
    element: ET.Element, whole: GpuSample, listed: Mapping[int, tuple[str, str]], problems: list[str]
) -> Iterator[GpuSample]:
    """The MIG instances of a GPU; the document has no names for them, so that `listed` must: (name, UUID) by place."""
    for entry in element.findall("mig_devices/mig_device"):
        place = int(entry.findtext("index") or 0)
        if place not in listed:
            problems.append(f"MIG instance {place} of GPU {whole.gpu.index} left out: nvidia-smi -L does not list it")
            continue
        name, uuid = listed[place]
        values = _Values(entry)
        gpu = replace(
            whole.gpu,
            uuid=uuid,
            name=f"{whole.gpu.name} {name}",
            memory_bytes=values.whole("memory_bytes", "fb_memory_usage/total", scale=MIB),
            parent=whole.gpu.uuid,
        )
        used, free = (f"fb_memory_usage/{what}" for what in ("used", "free"))
        yield GpuSample(
            gpu,
            whole.time,
            memory_used_bytes=values.whole("memory_used_bytes", used, scale=MIB),
            memory_free_bytes=values.whole("memory_free_bytes", free, scale=MIB),
            processes=_processes_of_instance(element, entry),
            refused={**dict.fromkeys(_OF_WHOLE_GPUS, "told of the whole GPU only"), **values.refused},
        )


def _processes_of_instance(element: ET.Element, instance: ET.Element) -> tuple[GpuProcess, ...]:
    ids = ("gpu_instance_id", "compute_instance_id")
    wanted = [(instance.findtext(name) or "").strip() for name in ids]
    entries = element.findall("processes/process_info")
    return tuple(_process(entry) for entry in entries if [(entry.findtext(n) or "").strip() for n in ids] == wanted)


def _text(element: ET.Element, path: str) -> str | Unavailable:
    """What the element at this path says, or its own words for saying nothing."""
    return _said(element.findtext(path))


def _said(words: str | None) -> str | Unavailable:
    text = (words or "").strip().strip("[]")
    if not text or text in _SILENT or text.endswith(("has been deprecated", "is lost")):
        return Unavailable(_SILENT.get(text, text) or _NOT_TOLD)
    return text


def _capabilities(lines: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """UUID and compute capability of each line 'GPU-..., 9.0'."""
    for line in lines.splitlines():
        found = re.fullmatch(r"\s*(GPU-\S+?)\s*,\s*(\d+)\.(\d+)\s*", line)
        if found:
            yield found[1], (int(found[2]), int(found[3]))


def _listed_instances(listing: str) -> dict[str, dict[int, tuple[str, str]]]:
    """By the GPU's UUID and the instance's place: the profile's name and the UUID that -L shows for it."""
    found: dict[str, dict[int, tuple[str, str]]] = {}
    parent = ""
    for line in listing.splitlines():
        if gpu := re.match(r"GPU \d+: .*\(UUID: (GPU-[^)]+)\)", line):
            parent = gpu[1]
        elif part := re.match(r"\s+(MIG \S+)\s+Device\s+(\d+): \(UUID: (MIG-[^)]+)\)", line):
            found.setdefault(parent, {})[int(part[2])] = (part[1], part[3])
    return found
