"""What every GPU does at one moment: one look at all of them, cheap enough for each second of a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from drumline.hardware.field_values import Field, Fields
from drumline.hardware.gpm import FIRST_LOOK, Gpm, GpmReading
from drumline.hardware.nvml import GONE, INIT_LIMIT_S, Found, Unavailable
from drumline.hardware.processes import processes_of
from drumline.hardware.records import GpuSample, Snapshot
from drumline.hardware.session import Session, open_session, within

POWER_LIMIT = "power limit"
# nvml.h, nvmlClocksEventReasons, in words for people. A GPU that idles, or whose clocks somebody has set, is not slowed
# down by these.
THROTTLES = {
    0x4: POWER_LIMIT,
    0x8: "hardware slowdown",
    0x20: "heat (software)",
    0x40: "heat (hardware)",
    0x80: "power brake",
}
HARMLESS = frozenset({POWER_LIMIT})
"""What slows a GPU down without anything being wrong: large GPUs run at their power limit under full load."""

PCIE_EVERY_S = 10.0
"""How often PCIe traffic is asked where only the slow question is there: it takes 20 ms for each direction (NVML)."""

COUNTERS_EVERY_S = 30.0
"""How often the counters of energy and NVLink are read where looks come each second: both together take some 5 ms of a
core for each GPU, everything else in a look 0.8 (H200, NVML)."""

# Arguments of nvml.h: NVML_TEMPERATURE_GPU, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN, NVML_CLOCK_SM, NVML_CLOCK_MEM,
# nvmlMemory_v2 (which counts what the driver reserves apart), NVML_PCIE_UTIL_TX_BYTES and _RX_BYTES.
_GPU_SENSOR, _SLOWDOWN, _SM, _MEMORY, _MEMORY_V2, _TX, _RX = 0, 1, 1, 2, 0x02000028, 0, 1
_ALL_LINKS = 0xFFFFFFFF
_MEMORY_TEMPERATURE = Field(82)
_COUNTERS = {
    "energy_j": (Field(83), lambda mj: mj / 1000),
    "nvlink_tx_bytes": (Field(138, _ALL_LINKS), lambda kib: kib * 1024),
    "nvlink_rx_bytes": (Field(139, _ALL_LINKS), lambda kib: kib * 1024),
}
"""Counters that are dear to read, by the sample's field: NVML's, and how its unit becomes ours."""
_PCIE = (Field(197), Field(198))
_SLOWDOWN_MARGIN = Field(194)
# A smaller number may be a counter of 32 bits, which full traffic takes round more often than once a look.
_WIDE = 1 << 32
_WENT_BACK = Unavailable("its counter went back")


def take(session: Session, *, counters_every_s: float = 0.0) -> Snapshot:
    """All GPUs and MIG instances now; waits as long as the driver takes.

    A GPU that is lost in the middle of it is left out with the reason. Pipes and PCIe rates are means since the
    session's look before, and None at its first. counters_every_s: between two readings of the counters of energy and
    NVLink the power drawn and GPM's rates are added up.
    """
    samples: list[GpuSample] = []
    for one in session.found():
        if (one.gpu.parent or one.gpu.uuid) in session.lost:
            continue
        sample = _look(session, one, counters_every_s)
        if isinstance(sample, Unavailable):
            session.lose(one, sample)
            gone = one.gpu.parent or one.gpu.uuid
            samples = [other for other in samples if gone not in (other.gpu.uuid, other.gpu.parent)]
        else:
            samples.append(sample)
    return Snapshot(time.time(), session.source, tuple(samples), session.problems, session.no_gpu)


def read_snapshot(nvml: Any = None, limit_s: float = INIT_LIMIT_S, window_s: float = 0.0) -> Snapshot:
    """All GPUs once, in a session of its own; empty with the reason in `source` where the driver is late.

    Without NVML other sources are asked (see hardware.sources), which `source` then names. window_s: seconds between
    two looks, of which the second is given: with some (0.2) pipes and PCIe rates are told.
    """

    def look() -> Snapshot:
        with open_session(nvml) as session:
            snapshot = take(session)
            if window_s and snapshot.gpus:
                time.sleep(window_s)
                snapshot = take(session)
            return snapshot

    answer = within(limit_s + window_s, look, nvml)
    if isinstance(answer, Unavailable):  # a driver that hangs would take every other source with it
        return Snapshot(time.time(), answer.reason)
    if nvml is not None or answer.gpus or answer.problems:
        return answer
    from drumline.hardware.sources import ask_others

    return ask_others(answer, limit_s)


class _Counter:
    """One that is dear to read: its own number every so often, in between that and what came since by its rate."""

    def __init__(self) -> None:
        self._read: tuple[float, float] | None = None
        """When it was read, s, and its number."""
        self._told: tuple[float, float] | None = None
        """The same of what was told last."""

    def is_due(self, now: float, every_s: float) -> bool:
        """Whether the counter itself must be read."""
        return self._read is None or now - self._read[0] >= every_s

    def read(self, now: float, number: float) -> float:
        """The counter's number. It never goes back where it only ran slower than the rates that were added up."""
        if self._read is not None and self._told is not None and number >= self._read[1]:
            self._told = (now, max(number, self._told[1]))
        else:  # the first reading, or a counter that began anew
            self._told = (now, number)
        self._read = (now, number)
        return self._told[1]

    def add(self, now: float, rate: float) -> float:
        """What was told last, and what came since."""
        assert self._told is not None
        then, number = self._told
        self._told = (now, number + rate * max(0.0, now - then))
        return self._told[1]


class _Memory:
    """What is kept of one GPU between two looks."""

    def __init__(self) -> None:
        self.gpm = Gpm()
        self.fields = Fields()
        self.counters = {name: _Counter() for name in _COUNTERS}
        self.slowdown: float | None = None
        self.pcie: tuple[float, list[int]] | None = None
        """When PCIe's counters were read, and their bytes."""
        self.asked: tuple[float, tuple[Any, Any]] | None = None
        """When PCIe's traffic was asked the slow way, and the answers."""

    def drop(self, nvml: Any) -> None:
        """Give back to NVML what is held of it."""
        self.gpm.drop(nvml)


class _Answers:
    """Fields of one sample as they come in."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.refused: dict[str, str] = {}
        self.gone: Unavailable | None = None

    def add(self, answer: Any, **fields: Callable[[Any], Any]) -> None:
        """Fields that one answer gives, each with how it is taken from it."""
        for name, of in fields.items():
            if isinstance(answer, Unavailable):
                self.refused[name] = answer.reason
                if answer.code in GONE:
                    self.gone = answer
            else:
                self.values[name] = of(answer)


def _look(session: Session, one: Found, counters_every_s: float) -> GpuSample | Unavailable:
    """One GPU; Unavailable where it answers nothing any more: half a look is not handed on."""
    now = time.time()
    kept, answers = session.kept(one, _Memory), _Answers()
    for ask_some in (_ask_use, _ask_speed, _ask_link):
        ask_some(session, one, answers)
        if answers.gone is not None:
            return answers.gone
    _ask_counters(session, one, answers, kept, counters_every_s)
    answers.add(processes_of(session.nvml, one.handle), processes=tuple)
    if answers.gone is not None:
        return answers.gone
    return GpuSample(one.gpu, now, refused=answers.refused, **answers.values)


def _ask_use(session: Session, one: Found, answers: _Answers) -> None:
    use = session.live(one, "nvmlDeviceGetUtilizationRates")
    answers.add(use, utilization=lambda it: it.gpu / 100, memory_utilization=lambda it: it.memory / 100)
    memory = session.live(one, "nvmlDeviceGetMemoryInfo", _MEMORY_V2)
    if isinstance(memory, Unavailable) and memory.code not in GONE:
        memory = session.live(one, "nvmlDeviceGetMemoryInfo")  # drivers before 510
    answers.add(memory, memory_used_bytes=lambda it: int(it.used), memory_free_bytes=lambda it: int(it.free))
    answers.add(session.live(one, "nvmlDeviceGetTemperature", _GPU_SENSOR), temperature_c=float)
    answers.add(session.live(one, "nvmlDeviceGetPowerUsage"), power_w=_thousandth)
    answers.add(session.fixed(one, "nvmlDeviceGetEnforcedPowerLimit"), power_limit_w=_thousandth)
    answers.add(session.live(one, "nvmlDeviceGetFanSpeed"), fan=lambda percent: percent / 100)


def _ask_speed(session: Session, one: Found, answers: _Answers) -> None:
    answers.add(session.live(one, "nvmlDeviceGetClockInfo", _SM), sm_clock_mhz=int)
    answers.add(session.fixed(one, "nvmlDeviceGetMaxClockInfo", _SM), max_sm_clock_mhz=int)
    answers.add(session.live(one, "nvmlDeviceGetClockInfo", _MEMORY), memory_clock_mhz=int)
    reasons = session.live(one, "nvmlDeviceGetCurrentClocksEventReasons")
    if isinstance(reasons, Unavailable) and reasons.code not in GONE:
        reasons = session.live(one, "nvmlDeviceGetCurrentClocksThrottleReasons")  # its name before driver 535
    answers.add(reasons, throttled_by=throttles)


def _ask_link(session: Session, one: Found, answers: _Answers) -> None:
    answers.add(session.live(one, "nvmlDeviceGetCurrPcieLinkGeneration"), pcie_generation=int)
    answers.add(session.fixed(one, "nvmlDeviceGetMaxPcieLinkGeneration"), max_pcie_generation=int)
    answers.add(session.live(one, "nvmlDeviceGetCurrPcieLinkWidth"), pcie_width=int)
    answers.add(session.fixed(one, "nvmlDeviceGetMaxPcieLinkWidth"), max_pcie_width=int)


def _ask_counters(session: Session, one: Found, answers: _Answers, kept: _Memory, counters_every_s: float) -> None:
    """What counters tell: several in one question, and rates from two looks."""
    now = session.clock()
    gpm = kept.gpm.look(session.nvml, one, now)
    answers.add(gpm, pipes=lambda it: it.pipes)
    by_gpm = gpm is FIRST_LOOK or (isinstance(gpm, GpmReading) and gpm.pcie_tx_bytes_per_s is not None)
    rates = {"energy_j": answers.values.get("power_w")}
    if isinstance(gpm, GpmReading):
        rates |= {"nvlink_tx_bytes": gpm.nvlink_tx_bytes_per_s, "nvlink_rx_bytes": gpm.nvlink_rx_bytes_per_s}
    due: list[str] = []
    for name, counter in kept.counters.items():
        rate = rates.get(name)
        if rate is None or counter.is_due(now, counters_every_s):
            due.append(name)
        else:
            answers.values[name] = counter.add(now, rate)
    asked = (_MEMORY_TEMPERATURE, *(_COUNTERS[name][0] for name in due))
    told = kept.fields.read(session.nvml, one, asked if by_gpm else (*asked, *_PCIE))
    answers.add(told[_MEMORY_TEMPERATURE], memory_temperature_c=float)
    for name in due:
        field, ours = _COUNTERS[name]
        read = kept.counters[name].read
        answers.add(told[field], **{name: lambda it, read=read, ours=ours: read(now, ours(it))})
    if by_gpm:
        answers.add(gpm, pcie_tx_bytes_per_s=lambda it: it.pcie_tx_bytes_per_s)
        answers.add(gpm, pcie_rx_bytes_per_s=lambda it: it.pcie_rx_bytes_per_s)
    else:
        tx, rx = _pcie_rates(session, one, told, kept)
        answers.add(tx, pcie_tx_bytes_per_s=float)
        answers.add(rx, pcie_rx_bytes_per_s=float)
    answers.add(_slowdown(session, one, answers, kept), slowdown_temperature_c=float)


def throttles(reasons: int) -> tuple[str, ...]:
    """Pure: what slows a GPU down, in words, from NVML's bits."""
    return tuple(words for bit, words in THROTTLES.items() if reasons & bit)


def _pcie_rates(session: Session, one: Found, told: Mapping[Field, Any], kept: _Memory) -> tuple[Any, Any]:
    """Bytes a second to and from the host: by counters that can be trusted, else as the driver measures them."""
    now = session.clock()
    counts = [told[field] for field in _PCIE]
    if all(isinstance(count, int) for count in counts) and max(counts) >= _WIDE:
        before, kept.pcie = kept.pcie, (now, counts)
        if before is None:
            return FIRST_LOOK, FIRST_LOOK
        tx, rx = ((count - old) / (now - before[0]) for count, old in zip(counts, before[1], strict=True))
        return tx if tx >= 0 else _WENT_BACK, rx if rx >= 0 else _WENT_BACK
    if kept.asked is None or now - kept.asked[0] >= PCIE_EVERY_S:
        tx, rx = (session.live(one, "nvmlDeviceGetPcieThroughput", way) for way in (_TX, _RX))
        kept.asked = (now, (_kilobytes(tx), _kilobytes(rx)))
    return kept.asked[1]


def _slowdown(session: Session, one: Found, answers: _Answers, kept: _Memory) -> Any:
    """Where the hardware begins to slow down; from Ada on drivers may tell only how many degrees are left until then.

    The margin is counted down to a limit, and the slowdown begins at another number of degrees left, below zero
    (nvidia-smi's manual, T.Limit).
    """
    threshold = session.fixed(one, "nvmlDeviceGetTemperatureThreshold", _SLOWDOWN)
    if not isinstance(threshold, Unavailable) or threshold.code in GONE or "temperature_c" not in answers.values:
        return threshold
    if kept.slowdown is None:
        left = session.live(one, "nvmlDeviceGetMarginTemperature")
        begins = kept.fields.read(session.nvml, one, [_SLOWDOWN_MARGIN])[_SLOWDOWN_MARGIN]
        if isinstance(left, Unavailable) or isinstance(begins, Unavailable):
            return threshold
        kept.slowdown = float(answers.values["temperature_c"] + left - begins)
    return kept.slowdown


def _thousandth(value: float) -> float:
    return value / 1000


def _kilobytes(value: int | Unavailable) -> int | Unavailable:
    return value if isinstance(value, Unavailable) else value * 1000
