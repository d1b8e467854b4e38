"""Whether failed workers are started again: a pure decision, and the loop around `start_workers` that follows it."""

from __future__ import annotations

import logging
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from drumline.config.schema import RunConfig
from drumline.errors import BackendError, GroupError, HangError, LoaderKilled, PeerFailed, RestartNeeded
from drumline.hardware.health import Verdict, read_verdicts
from drumline.hardware.inventory import read_machine
from drumline.hardware.nvml import Reading
from drumline.launcher.failures import FIX_MARK, Failure
from drumline.launcher.lost_gpus import SICK, lost_gpus, on_gpus, present, sick_gpus
from drumline.launcher.notices import handled
from drumline.launcher.recording import GPU_SICK
from drumline.launcher.spec import LaunchSpec
from drumline.launcher.start import INTERRUPTED, Result, start_workers
from drumline.rundir import LineWriter, RunDir, read_json, read_lines

logger = logging.getLogger("drumline")

RECIPE_RESTARTS = 3
"""Of a recipe, unless faults.max_restarts says otherwise; a script or function, which may not resume, has none."""
SAME_END = 3
"""Attempts that end at the same step with the same error before nothing else is expected of another one."""
LOOK_S = 5.0
"""Between two looks for a GPU that is waited for."""
_PAUSE_S = 0.25

FAULTS = frozenset(
    {"signal", "launch"} | {kind.code for kind in (PeerFailed, HangError, GroupError, BackendError, LoaderKilled)}
)
"""Codes of failures that come from outside of the training code: the same code may well work the next time."""

COMMUNICATION = ("DistBackendError:", "DistNetworkError:", "DistStoreError:")
"""Beginnings of the messages of torch's errors of a process group or store (torch.distributed, DistError)."""
DEVICE = (
    "cuda error: unknown error",
    "no cuda-capable device is detected",
    "cuda-capable device(s) is/are busy or unavailable",
    "invalid access of peer gpu memory over nvlink or a hardware error",
)
"""What cudaGetErrorString says, in lower case, of a device that is gone, or not back yet, or a peer's fault:
cudaErrorUnknown, NoDevice, DevicesUnavailable, Contained. Which GPU it was shows the new look at the machine."""
WRONG_PLACE = "the ranks are at different places"
"""In the GroupError of a program that calls something on some ranks only: it would do so again."""


@dataclass(frozen=True)
class Policy:
    """When failed workers are started again."""

    max_restarts: int
    restart_on: Literal["faults", "any"] = "faults"
    lost_gpu: Literal["leave_out", "wait"] = "leave_out"
    leaves_out_sick: bool = True
    """Whether a GPU whose health has turned to fail is left out."""

    @classmethod
    def of(cls, config: RunConfig, unless_said: int) -> Policy:
        """As the config says; `unless_said` restarts where it leaves the number open."""
        faults = config.faults
        number = unless_said if faults.max_restarts is None else faults.max_restarts
        leaves_out = faults.sick_gpu != "ignore" and config.hardware.sick == "leave_out"
        return cls(number, faults.restart_on, faults.lost_gpu, leaves_out)


@dataclass(frozen=True)
class Attempt:
    """An attempt that failed."""

    failure: Failure
    step: int | None
    """Updates that were done by then; None where nobody knows."""


@dataclass(frozen=True)
class Restart:
    """All workers are started again."""

    reason: str
    counts: bool = True
    """Whether it is one of max_restarts."""


@dataclass(frozen=True)
class Stop:
    """The launch has failed."""

    reason: str
    """Why there is no further attempt; empty where none was ever meant."""


def decide(earlier: Sequence[Attempt], last: Attempt, policy: Policy) -> Restart | Stop:
    """Pure: whether another attempt is made after `last`. `earlier`: those before it, the oldest first."""
    failure = last.failure
    if failure.exit_status == 2:
        return Stop("")  # a bad request stays one
    attempts = [*earlier, last]
    if len(attempts) >= SAME_END and last.step is not None and len({_end(each) for each in attempts[-SAME_END:]}) == 1:
        return Stop(f"{SAME_END} attempts in a row ended after update {last.step} with this error")
    reason = failure.to_error(Path()).problem.partition("\n")[0]
    if failure.code == RestartNeeded.code:
        return Restart(reason, counts=False)
    if policy.max_restarts == 0:
        return Stop("")
    if policy.restart_on == "faults" and not is_fault(failure):
        return Stop("")
    done = sum(each.failure.code != RestartNeeded.code for each in earlier)
    if done >= policy.max_restarts:
        return Stop(f"the workers have been restarted {done} times (faults.max_restarts)")
    return Restart(reason)


def is_fault(failure: Failure) -> bool:
    """Whether it came from outside of the training code: a killed process, a lost GPU, communication, a hang."""
    if WRONG_PLACE in failure.message:
        return False
    text = failure.message.lower()
    told = any(sign in text for sign in (*SICK, *DEVICE))
    return told or failure.code in FAULTS or failure.message.startswith(COMMUNICATION)


def _end(attempt: Attempt) -> tuple[int | None, str, str]:
    """What is the same of two attempts that ended alike; numbers in the text (addresses, times, ranks) may differ."""
    line = attempt.failure.message.partition("\n")[0]
    return attempt.step, attempt.failure.code, re.sub(r"0x[0-9a-fA-F]+|\d+", "#", line)


SpecOfAttempt = Callable[[tuple[str, ...] | None], LaunchSpec]
"""What is started: on these GPUs where some were lost, for None on those that were chosen at first."""


def run_with_restarts(
    spec_of_attempt: SpecOfAttempt,
    policy: Policy,
    *,
    start: Callable[[LaunchSpec], Result] = start_workers,
    look: Callable[[], Reading] = read_machine,
    judge: Callable[[], Mapping[str, Verdict]] = read_verdicts,
    pause: Callable[[float], None] = time.sleep,
) -> Result:
    """Start the workers, and start them again as `decide` says; returns how the last attempt ended.

    Each restart is one `restart` line in the run directory's events.jsonl (attempt, reason, step, GPUs left out) and
    one warning; what is started reads the newest checkpoint itself. `start`, `look`, `judge` and `pause` stand in for
    the machine in tests.
    """
    spec, earlier = spec_of_attempt(None), list[Attempt]()
    # Signals that come while no workers run would end this process between two attempts.
    asked: list[signal.Signals] = []
    with handled(spec.stop_signals, lambda number, frame: asked.append(signal.Signals(number))):
        while not asked:
            began = round(time.time(), 3)  # as lines are stamped
            result = start(spec)
            if result.leftovers:
                pids = ", ".join(map(str, result.leftovers))
                logger.warning("ended what had outlived the workers that started it: pid %s", pids)
            if result.failure is None or result.interrupted is not None:
                return result
            last = Attempt(result.failure, step_of(spec.run))
            decision = decide(earlier, last, policy)
            if isinstance(decision, Stop):
                return _given_up(spec, result, decision)
            earlier.append(last)
            lost, sick = _lost_and_sick(spec, policy, last.failure, began, look, judge) if spec.gpus else ({}, {})
            if lost and policy.lost_gpu == "wait":
                _tell(spec, "waiting_for_gpu", f"waiting for {_listed(lost)}", gpus=lost)
                _wait_for(spec, look, pause, asked)
                if asked:
                    break
                lost = {}
            lost |= sick
            if lost:
                left = tuple(uuid for uuid in spec.gpus or () if uuid not in lost)
                if not left:
                    return _given_up(spec, result, Stop(f"no GPU is left: {_listed(lost)}"))
                spec = spec_of_attempt(left)
            _tell_restart(spec, earlier, decision, lost)
    return Result(INTERRUPTED, None, asked[0])


def _lost_and_sick(
    spec: LaunchSpec,
    policy: Policy,
    failure: Failure,
    began: float,
    look: Callable[[], Reading],
    judge: Callable[[], Mapping[str, Verdict]],
) -> tuple[dict[str, str], dict[str, str]]:
    """GPUs that can only be waited for, and others that are left out whatever the policy says of lost ones."""
    failures, reading = [failure, *_recorded(spec)], look()
    lost = lost_gpus(spec, failures, reading)
    if not policy.leaves_out_sick:
        # But for what the run itself has ended for: it would do so again and again.
        sick = sick_gpus(spec, failures, reading, {}, {})
        return {uuid: why for uuid, why in lost.items() if uuid not in sick}, sick
    verdicts = judge()  # first: meanwhile the recorders of ranks that died have said what they saw
    # Of this attempt alone: what was told before has been left out.
    told = {
        str(line["gpu"]): f"sick: {line['message']}"
        for line in read_lines(spec.run.events)
        if line.get("event") == GPU_SICK and line["time"] >= began
    }
    sick = sick_gpus(spec, failures, reading, verdicts, told)
    if reading.fault is None:  # one that is gone may come back
        sick = {uuid: why for uuid, why in sick.items() if uuid.lower() in present(reading)}
    return {uuid: why for uuid, why in lost.items() if uuid not in sick}, sick


def _tell_restart(spec: LaunchSpec, earlier: Sequence[Attempt], decision: Restart, lost: Mapping[str, str]) -> None:
    """Say it, and take back the word of the attempt before that the run has ended."""
    number, without = len(earlier) + 1, f", without {_listed(lost)}" if lost else ""
    spec.run.exit.unlink(missing_ok=True)
    left_out = {"left_out": lost} if lost else {}
    text = f"starting all workers again (attempt {number}{without}): {decision.reason}"
    _tell(spec, "restart", text, attempt=number, reason=decision.reason, step=earlier[-1].step, **left_out)


def of_spec(spec: LaunchSpec) -> SpecOfAttempt:
    """For a launch that is the same every time, but for its GPUs."""
    return lambda gpus: spec if gpus is None else on_gpus(spec, gpus)


def step_of(run: RunDir) -> int | None:
    """How many updates a run has done: what its exit.json says, else its last log line; None without either."""
    if run.exit.exists():
        steps: int | None = read_json(run.exit).get("steps")
        return steps
    return max((record["step"] for record in read_lines(run.metrics) if "step" in record), default=None)


def _recorded(spec: LaunchSpec) -> Iterator[Failure]:
    """What the ranks themselves recorded, the first failure and its consequences."""
    for path in map(spec.run.error_of, range(spec.num_workers)):
        if path.exists():
            yield Failure(**read_json(path))


def _given_up(spec: LaunchSpec, result: Result, stop: Stop) -> Result:
    """The result, whose failure also says why there was no further attempt."""
    if not stop.reason or result.failure is None:
        return result
    _record(spec, "gave_up", reason=stop.reason)
    problem, mark, fix = result.failure.message.partition(FIX_MARK)
    message = f"{problem}; not restarted: {stop.reason}{mark}{fix}"
    return replace(result, failure=replace(result.failure, message=message))


def _wait_for(
    spec: LaunchSpec, look: Callable[[], Reading], pause: Callable[[float], None], asked: list[signal.Signals]
) -> None:
    """Come back once the driver answers for all GPUs of the launch, or a signal has come."""
    looked = -LOOK_S
    waited = 0.0
    while not asked:
        if waited - looked >= LOOK_S:
            looked, reading = waited, look()
            if reading.fault is None and {uuid.lower() for uuid in spec.gpus or ()} <= present(reading):
                return
        pause(_PAUSE_S)
        waited += _PAUSE_S


def _listed(lost: Mapping[str, str]) -> str:
    return "; ".join(f"{uuid}: {reason}" for uuid, reason in lost.items())


def _tell(spec: LaunchSpec, event: str, text: str, **facts: Any) -> None:
    logger.warning("%s", text)
    _record(spec, event, **facts)


def _record(spec: LaunchSpec, event: str, **facts: Any) -> None:
    events = LineWriter(spec.run.events)
    events.write({"event": event, **facts})
    events.close()
