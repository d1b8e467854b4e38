from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from drumline.config.schema import FaultsConfig, HardwareConfig, RunConfig
from drumline.hardware.health import Finding, Verdict
from drumline.hardware.nvml import Reading, read_gpus
from drumline.launcher.failures import Failure, record_failure
from drumline.launcher.lost_gpus import sick_gpus
from drumline.launcher.restarts import (
    LOOK_S,
    RECIPE_RESTARTS,
    Attempt,
    Policy,
    Restart,
    Stop,
    decide,
    is_fault,
    of_spec,
    run_with_restarts,
    step_of,
)
from drumline.launcher.spec import LaunchSpec
from drumline.launcher.start import Result
from drumline.rundir import LineWriter, RunDir, read_lines, write_json
from tests.simulated_nvml import GPU_IS_LOST, SimulatedGpu, SimulatedInstance, SimulatedNvml

KILLED = Failure(1, 10.0, "signal", 1, "killed by signal 9, SIGKILL (out of memory killer?)")
REASON = f"rank 1 failed: {KILLED.message}"
OWN = Failure(0, 10.0, "error", 1, "ValueError: boom (train.py:3)")
BAD = Failure(0, 10.0, "config", 2, "lr is negative")
NEEDED = Failure(0, 10.0, "restart", 1, "micro-batch 4 was too large")
ECC = Failure(1, 10.0, "error", 1, "AcceleratorError: CUDA error: uncorrectable ECC error encountered (x.py:1)")
THREE = Policy(3)


def attempts(*steps: int | None, failure: Failure = KILLED) -> list[Attempt]:
    return [Attempt(failure, step) for step in steps]


@pytest.mark.parametrize(
    "failure",
    [
        KILLED,
        ECC,
        Failure(None, 0, "launch", 1, "its agent ended early: killed by signal 9, SIGKILL"),
        Failure(0, 0, "peer_failed", 1, "RuntimeError: Connection closed by peer"),
        Failure(0, 0, "hang", 1, "rank 1 did not come"),
        Failure(0, 0, "group", 1, "rank 0 waited 900 s at 'update' for rank 1"),
        Failure(0, 0, "loader_killed", 1, "a loader process ended before its work was done"),
        Failure(0, 0, "error", 1, "DistBackendError: NCCL error in ProcessGroupNCCL.cpp: unhandled system error"),
        Failure(0, 0, "error", 1, "AcceleratorError: CUDA error: unknown error"),
    ],
)
def test_what_comes_from_outside_is_a_fault(failure: Failure) -> None:
    assert is_fault(failure)
    assert isinstance(decide([], Attempt(failure, 5), THREE), Restart)


@pytest.mark.parametrize(
    "failure",
    [
        OWN,
        Failure(0, 0, "non_finite", 1, "the gradient of update 3 is NaN"),
        Failure(0, 0, "exit", 1, "exit with status 1 (train.py:9)"),
        Failure(0, 0, "error", 1, "AcceleratorError: CUDA error: device-side assert triggered"),
        Failure(0, 0, "group", 1, "the ranks are at different places: rank 0 at 'x'; rank 1 at 'y'"),
    ],
)
def test_the_programs_own_errors_are_restarted_only_when_asked(failure: Failure) -> None:
    last = Attempt(failure, 5)
    assert decide([], last, THREE) == Stop("")
    assert isinstance(decide([], last, Policy(3, "any")), Restart)


def test_a_bad_request_is_never_tried_again() -> None:
    assert decide([], Attempt(BAD, 0), Policy(3, "any")) == Stop("")


def test_the_number_of_restarts_is_limited_and_said() -> None:
    assert isinstance(decide(attempts(10, 20), Attempt(KILLED, 30), THREE), Restart)
    assert decide(attempts(10, 20, 30), Attempt(KILLED, 40), THREE) == Stop(
        "the workers have been restarted 3 times (faults.max_restarts)"
    )
    assert decide([], Attempt(KILLED, 10), Policy(0)) == Stop("")


def test_the_same_step_and_the_same_error_three_times_stops() -> None:
    many = Policy(100)
    other = Failure(0, 99.0, "signal", 1, "killed by signal 11, SIGSEGV (a crash in native code)")
    stopped = decide(attempts(7, 7), Attempt(KILLED, 7), many)
    assert stopped == Stop("3 attempts in a row ended after update 7 with this error")
    assert isinstance(decide(attempts(7, 7), Attempt(KILLED, 8), many), Restart)
    assert isinstance(decide(attempts(7, 7), Attempt(other, 7), many), Restart)
    assert isinstance(decide([*attempts(7, 7), *attempts(8)], Attempt(KILLED, 7), many), Restart)
    # Nobody knows whether a script that is no run of ours got further.
    assert isinstance(decide(attempts(None, None), Attempt(KILLED, None), many), Restart)


def test_numbers_in_an_error_do_not_make_it_another_one() -> None:
    def error(address: str) -> Failure:
        return Failure(0, 0, "error", 1, f"RuntimeError: bad value at {address} (train.py:3)")

    earlier = [Attempt(error("0x7f00"), 3), Attempt(error("0x7f01"), 3)]
    assert isinstance(decide(earlier, Attempt(error("12"), 3), Policy(100, "any")), Stop)


def test_a_restart_that_the_run_asked_for_is_not_counted() -> None:
    earlier = attempts(1, 2, 3, failure=NEEDED)
    assert decide(earlier, Attempt(NEEDED, 4), Policy(0)) == Restart(f"rank 0 failed: {NEEDED.message}", counts=False)
    assert isinstance(decide(earlier, Attempt(KILLED, 4), Policy(1)), Restart)
    # Not for ever: the smaller micro-batch must bring the run further.
    assert isinstance(decide(attempts(4, 4, failure=NEEDED), Attempt(NEEDED, 4), Policy(0)), Stop)


def test_recipes_have_restarts_and_scripts_have_none_unless_said() -> None:
    assert Policy.of(RunConfig(), RECIPE_RESTARTS) == Policy(3)
    assert Policy.of(RunConfig(faults=FaultsConfig(max_restarts=0)), RECIPE_RESTARTS).max_restarts == 0
    faults = FaultsConfig(lost_gpu="wait", restart_on="any")
    assert Policy.of(RunConfig(faults=faults), 0) == Policy(0, "any", "wait")


def test_whoever_wants_sick_gpus_or_does_not_look_keeps_them() -> None:
    assert not Policy.of(RunConfig(faults=FaultsConfig(sick_gpu="ignore")), 0).leaves_out_sick
    assert not Policy.of(RunConfig(hardware=HardwareConfig(sick="use")), 0).leaves_out_sick
    assert Policy.of(RunConfig(faults=FaultsConfig(sick_gpu="at_once")), 0).leaves_out_sick


def test_how_far_a_run_came_is_read_from_its_directory(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    assert step_of(run) is None
    lines = LineWriter(run.metrics)
    for step in (10, 20):
        lines.write({"step": step})
    lines.close()
    assert step_of(run) == 20
    write_json(run.exit, {"steps": 23})
    assert step_of(run) == 23


GPUS = ("GPU-a", "GPU-b", "GPU-c")


class SimulatedLaunch:
    """Simulated hardware and workers: each start takes the next end from a list, and may change the machine."""

    def __init__(self, folder: Path, ends: list[Failure | None], nvml: SimulatedNvml) -> None:
        self.run = RunDir.create(folder / "run")
        self.nvml = nvml
        self.ends = ends
        self.specs: list[LaunchSpec] = []
        self.pauses: list[float] = []
        self.verdicts: dict[str, Verdict] = {}
        self.on_start: Callable[[], None] = lambda: None
        self.on_pause: Callable[[], None] = lambda: None

    def start(self, spec: LaunchSpec) -> Result:
        self.specs.append(spec)
        self.on_start()
        failure = self.ends.pop(0)
        return Result(failure.exit_status if failure else 0, failure)

    def look(self) -> Reading:
        return read_gpus(self.nvml)

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.on_pause()

    def run_all(self, policy: Policy = THREE) -> Result:
        spec = LaunchSpec(self.run.path, len(GPUS), "module", "drumline.worker", gpus=GPUS)
        return run_with_restarts(
            of_spec(spec), policy, start=self.start, look=self.look, judge=lambda: self.verdicts, pause=self.pause
        )

    def events(self) -> list[dict[str, object]]:
        return [{key: value for key, value in line.items() if key != "time"} for line in read_lines(self.run.events)]


def simulated(folder: Path, *ends: Failure | None) -> SimulatedLaunch:
    return SimulatedLaunch(folder, list(ends), SimulatedNvml([SimulatedGpu(uuid) for uuid in GPUS]))


def test_each_restart_is_one_event_with_its_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    launch = simulated(tmp_path, KILLED, None)
    write_json(launch.run.exit, {"steps": 12})
    assert launch.run_all() == Result(0)
    assert launch.events() == [{"event": "restart", "attempt": 2, "reason": REASON, "step": 12}]
    assert caplog.messages == [f"starting all workers again (attempt 2): {REASON}"]
    assert not launch.run.exit.exists()  # the run goes on
    assert [spec.gpus for spec in launch.specs] == [GPUS, GPUS]


def test_giving_up_is_said_in_the_failure_and_the_events(tmp_path: Path) -> None:
    launch = simulated(tmp_path, KILLED, KILLED)
    failure = launch.run_all(Policy(1)).failure
    assert failure is not None
    reason = "the workers have been restarted 1 times (faults.max_restarts)"
    assert failure.message == f"{KILLED.message}; not restarted: {reason}"
    assert launch.events()[-1] == {"event": "gave_up", "reason": reason}


def test_a_gpu_that_fell_off_the_bus_is_left_out_by_uuid(tmp_path: Path) -> None:
    launch = simulated(tmp_path, KILLED, None)
    launch.on_start = lambda: launch.nvml.gpus[1].errors.update(nvmlDeviceGetUUID=GPU_IS_LOST)
    assert launch.run_all() == Result(0)
    first, second = launch.specs
    assert (first.gpus, first.num_workers) == (GPUS, 3)
    assert (second.gpus, second.num_workers) == (("GPU-a", "GPU-c"), 2)
    [event] = launch.events()
    assert event["left_out"] == {"GPU-b": "GPU 1 left out: the GPU is lost: it fell off the bus"}


def test_a_gpu_whose_rank_reports_a_hardware_error_is_left_out(tmp_path: Path) -> None:
    launch = simulated(tmp_path, KILLED, None)
    # Not the first failure, which is another rank's.
    record_failure(launch.run.error_of(2), 2, RuntimeError("CUDA error: uncorrectable ECC error encountered"))
    launch.run_all()
    assert launch.specs[1].gpus == ("GPU-a", "GPU-b")
    [event] = launch.events()
    assert event["left_out"] == {"GPU-c": "its memory had an uncorrectable error (cudaErrorECCUncorrectable)"}


def test_without_any_gpu_left_the_launch_ends(tmp_path: Path) -> None:
    launch = simulated(tmp_path, KILLED)
    launch.on_start = launch.nvml.gpus.clear
    failure = launch.run_all().failure
    assert (
        failure is not None and "not restarted: no GPU is left: GPU-a: the driver no longer lists it" in failure.message
    )


def test_where_the_driver_does_not_answer_nothing_counts_as_lost(tmp_path: Path) -> None:
    launch = simulated(tmp_path, KILLED, None)
    launch.on_start = lambda: launch.nvml.errors.update(nvmlInit=10)
    assert launch.run_all() == Result(0)
    assert launch.specs[1].gpus == GPUS


def test_a_lost_gpu_is_waited_for_where_the_policy_says_so(tmp_path: Path) -> None:
    launch = simulated(tmp_path, KILLED, None)
    launch.on_start = lambda: launch.nvml.gpus[0].errors.update(nvmlDeviceGetUUID=GPU_IS_LOST)

    def come_back() -> None:
        if sum(launch.pauses) > 2 * LOOK_S:
            launch.nvml.gpus[0].errors.clear()

    launch.on_pause = come_back
    assert launch.run_all(Policy(3, lost_gpu="wait")) == Result(0)
    assert [spec.gpus for spec in launch.specs] == [GPUS, GPUS]
    assert 2 * LOOK_S < sum(launch.pauses) <= 3 * LOOK_S + 1
    assert [event["event"] for event in launch.events()] == ["waiting_for_gpu", "restart"]


def test_a_signal_ends_the_wait_for_a_gpu(tmp_path: Path) -> None:
    launch = simulated(tmp_path, KILLED)
    launch.on_start = launch.nvml.gpus.clear
    launch.on_pause = lambda: signal.raise_signal(signal.SIGTERM)
    before = signal.getsignal(signal.SIGTERM)
    assert launch.run_all(Policy(3, lost_gpu="wait")) == Result(3, None, signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before
    assert len(launch.specs) == 1


ROWS = Finding("rows_failed", "fail", "a row could not be replaced", "replace the GPU", "NVIDIA")


def test_a_gpu_that_turned_sick_is_left_out_at_the_next_restart(tmp_path: Path) -> None:
    launch = simulated(tmp_path, KILLED, None)
    launch.verdicts = {"GPU-a": Verdict("GPU-a", "warn", (ROWS,)), "GPU-b": Verdict("GPU-b", "fail", (ROWS,))}
    assert launch.run_all(Policy(3, lost_gpu="wait")) == Result(0)  # it is there: nobody waits for it
    assert launch.specs[1].gpus == ("GPU-a", "GPU-c")
    [event] = launch.events()
    assert event["left_out"] == {"GPU-b": "sick: a row could not be replaced"}


def test_a_sick_gpu_that_is_to_be_used_stays(tmp_path: Path) -> None:
    launch = simulated(tmp_path, KILLED, None)
    launch.verdicts = {"GPU-b": Verdict("GPU-b", "fail", (ROWS,))}
    assert launch.run_all(Policy(3, leaves_out_sick=False)) == Result(0)
    assert launch.specs[1].gpus == GPUS


def test_what_the_recorder_told_of_this_attempt_counts(tmp_path: Path) -> None:
    launch = simulated(tmp_path, KILLED, None)
    lines = LineWriter(launch.run.events)
    lines.write({"time": 1.0, "event": "gpu_sick", "gpu": "GPU-a", "message": "long ago"})
    launch.on_start = lambda: lines.write({"event": "gpu_sick", "gpu": "GPU-c", "message": "XID 48"})
    assert launch.run_all() == Result(0)
    lines.close()
    assert launch.specs[1].gpus == ("GPU-a", "GPU-b")
    [event] = [line for line in launch.events() if line["event"] == "restart"]
    assert event["left_out"] == {"GPU-c": "sick: XID 48"}


def test_a_run_that_ended_because_of_a_sick_gpu_goes_on_without_it(tmp_path: Path) -> None:
    because = Failure(0, 10.0, "restart", 1, "GPU GPU-b has turned sick: XID 94\n  fix: start it again")
    launch = simulated(tmp_path, because, None)
    assert launch.run_all(Policy(0)) == Result(0)
    assert launch.specs[1].gpus == ("GPU-a", "GPU-c")
    assert launch.events()[-1]["left_out"] == {"GPU-b": "GPU GPU-b has turned sick: XID 94"}


def test_it_is_left_out_also_where_sick_ones_are_used_for_the_run_would_end_for_it_again(tmp_path: Path) -> None:
    because = Failure(0, 10.0, "restart", 1, "GPU GPU-b has turned sick: XID 94\n  fix: start it again")
    launch = simulated(tmp_path, because, None)
    launch.verdicts = {"GPU-a": Verdict("GPU-a", "fail", (ROWS,))}
    assert launch.run_all(Policy(0, leaves_out_sick=False)) == Result(0)
    assert launch.specs[1].gpus == ("GPU-a", "GPU-c")


def test_a_gpu_that_is_gone_is_waited_for_though_it_was_sick(tmp_path: Path) -> None:
    launch = simulated(tmp_path, KILLED, None)
    launch.verdicts = {"GPU-a": Verdict("GPU-a", "fail", (ROWS,))}
    launch.on_start = lambda: launch.nvml.gpus[0].errors.update(nvmlDeviceGetUUID=GPU_IS_LOST)
    launch.on_pause = lambda: launch.nvml.gpus[0].errors.clear()
    assert launch.run_all(Policy(3, lost_gpu="wait")) == Result(0)
    assert launch.specs[1].gpus == GPUS


def test_an_instance_is_left_out_with_its_gpu(tmp_path: Path) -> None:
    nvml = SimulatedNvml([SimulatedGpu("GPU-a", instances={0: SimulatedInstance("MIG-1", 7)}), SimulatedGpu("GPU-b")])
    spec = LaunchSpec(tmp_path, 2, "module", "x", gpus=("MIG-1", "GPU-b"))
    reading, verdicts = read_gpus(nvml), {"GPU-a": Verdict("GPU-a", "fail", (ROWS,))}
    assert sick_gpus(spec, [], reading, verdicts, {}) == {"MIG-1": "sick: a row could not be replaced"}
    assert sick_gpus(spec, [], reading, {}, {"GPU-a": "sick: x"}) == {"MIG-1": "sick: x"}
    assert sick_gpus(spec, [KILLED, OWN], reading, {}, {}) == {}
