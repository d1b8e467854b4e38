"""What is recorded of a run's GPUs, on an injected clock."""

from __future__ import annotations

import json
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from drumline.hardware.health import Finding, Verdict
from drumline.hardware.records import Pipes
from drumline.hardware.xids import Xid
from drumline.monitor.health_watch import Health
from drumline.monitor.recording import Recording
from drumline.rundir import RESTART_REQUEST, Lock, RunDir, read_json, read_lines
from tests.unit.monitor.recorded_machine import Machine, events, job_of, lines, passes, recording, trains


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir.create(tmp_path / "moby")


def test_a_line_an_interval_about_the_run_s_own_gpus(run: RunDir) -> None:
    machine = Machine()
    with recording(machine, job_of(run)) as recorded:
        passes(recorded, machine, 14)
        assert lines(run.metrics) == []
        machine.values[0] = {"utilization": 0.3}
        passes(recorded, machine, 16)
    first, second = lines(run.metrics)
    assert first.keys() == {
        *("time", "kind", "step", "elapsed_s", "node", "phase", "seconds", "gpus", "energy_j", "gpu_s", "cost"),
    }
    assert (first["step"], first["node"], list(first["gpus"])) == (0, "node0", ["GPU-0", "GPU-1"])
    assert first["elapsed_s"] == pytest.approx(45.0, abs=0.5)  # on the clock of the steps, that stood at 30
    assert second["elapsed_s"] - first["elapsed_s"] == pytest.approx(15.0)
    use = first["gpus"]["GPU-0"]["utilization"]
    assert (use["max"], use["min"], use["p95"]) == (0.9, 0.3, 0.9)
    assert use["mean"] == pytest.approx((14 * 0.9 + 0.3) / 15, abs=1e-4)
    assert second["gpus"]["GPU-0"]["utilization"]["mean"] == 0.3
    assert first["gpus"]["GPU-1"]["power_w"] == {"mean": 500.0, "min": 500.0, "max": 500.0, "p95": 500.0}
    assert "memory_used_bytes" not in first["gpus"]["GPU-0"]


def test_units_of_a_gpu_are_recorded_where_it_tells_of_them(run: RunDir) -> None:
    machine = Machine(values={0: {"pipes": Pipes(1.0, sm_active=0.8, tensor_active=0.5)}})
    with recording(machine, job_of(run)) as recorded:
        passes(recorded, machine, 15)
    gpus = lines(run.metrics)[0]["gpus"]
    assert gpus["GPU-0"]["tensor_active"]["mean"] == 0.5
    assert "tensor_active" not in gpus["GPU-1"]


def test_energy_time_and_cost_go_on_over_attempts(run: RunDir) -> None:
    machine = Machine()
    with recording(machine, job_of(run)) as recorded:
        passes(recorded, machine, 15)
    # 14 s between the first look and the last, two GPUs of 500 W; 15 s of two GPUs.
    last = lines(run.metrics)[-1]
    assert (last["energy_j"], last["gpu_s"]) == (14_000.0, 30.0)
    assert last["cost"] == pytest.approx(14_000 / 3.6e6 * 0.5 + 30 / 3600 * 3.6, rel=1e-4)
    run.metrics.unlink()  # a resume may drop the lines; what was taken was taken
    with recording(machine, job_of(run, step=7)) as again:
        passes(again, machine, 15)
    last = lines(run.metrics)[-1]
    assert (last["step"], last["energy_j"], last["gpu_s"]) == (7, 28_000.0, 60.0)


def test_a_run_between_two_looks_has_taken_energy_too(run: RunDir) -> None:
    """The sampler looks once an hour: when it starts, and for the last record."""
    machine = Machine()
    with recording(machine, job_of(run, monitor={"every_s": 3600.0})) as recorded:
        recorded.start()
        limit = time.monotonic() + 10
        while recorded.sampler.latest is None and time.monotonic() < limit:
            time.sleep(0.01)
        machine.clock += 3
    (only,) = lines(run.metrics)
    assert only["energy_j"] == pytest.approx(2 * 3 * 500.0)


def test_the_step_is_that_of_the_last_log_line(run: RunDir) -> None:
    machine = Machine()
    with recording(machine, job_of(run)) as recorded:
        trains(run, 40)
        passes(recorded, machine, 15)
    assert lines(run.metrics)[0]["step"] == 40


def test_phases_of_some_length_have_records_of_their_own(run: RunDir) -> None:
    machine = Machine()
    with recording(machine, job_of(run)) as recorded:
        passes(recorded, machine, 8)
        recorded.enter("evaluation")
        machine.values[0] = {"utilization": 0.3}
        passes(recorded, machine, 20)
        recorded.enter("training")
        machine.values[0] = {"utilization": 0.9}
        passes(recorded, machine, 6)
        recorded.enter("checkpoint")
        passes(recorded, machine, 2)
        recorded.enter("training")
        passes(recorded, machine, 10)
    found = [
        (line["phase"], line["seconds"], line["gpus"]["GPU-0"]["utilization"]["mean"]) for line in lines(run.metrics)
    ]
    assert found == [
        ("training", 8.0, 0.9),
        ("evaluation", 15.0, 0.3),
        ("evaluation", 5.0, 0.3),
        ("training", 6.0, 0.9),
        ("training", 12.0, 0.9),
    ]


def test_another_machine_has_files_of_its_own(run: RunDir) -> None:
    machine = Machine()
    job = job_of(run, machine=1, node="node1")
    for step in (0, 40):
        with recording(machine, replace(job, step=step)) as recorded:
            machine.health = Health(
                {"GPU-0": Verdict("GPU-0", "ok")}, (Xid("GPU-0", None, 63, 1.0 + step, "", "event"),)
            )
            passes(recorded, machine, 15)
    assert not run.metrics.exists()
    assert not run.events.exists()
    path = run.logs / "gpus_node1.jsonl"
    assert [line["step"] for line in lines(path)] == [0, 40]
    assert [line["event"] for line in read_lines(run.logs / "events_node1.jsonl")] == ["xid", "alert"] * 2
    # What a resume makes again is dropped here too.
    recording_again = Recording(replace(job, step=20), machine.sources())
    assert [line["step"] for line in lines(path)] == [0]
    recording_again.close()


def test_a_gpu_that_is_lost_leaves_the_others_records(run: RunDir) -> None:
    machine = Machine()
    with recording(machine, job_of(run)) as recorded:
        passes(recorded, machine, 15)
        machine.gone.add(0)
        passes(recorded, machine, 15)
    assert [list(line["gpus"]) for line in lines(run.metrics)] == [["GPU-0", "GPU-1"], ["GPU-1"]]


def test_nothing_is_written_where_nobody_tells_anything(run: RunDir) -> None:
    machine = Machine(gone={0, 1, 2})
    with recording(machine, job_of(run)) as recorded:
        passes(recorded, machine, 40)
    assert lines(run.metrics) == []


def test_an_xid_is_an_event_once_and_an_alert(run: RunDir) -> None:
    machine = Machine()
    with recording(machine, job_of(run)) as recorded:
        passes(recorded, machine, 5)
        xids = (Xid("GPU-1", None, 79, 5.0, "fell off the bus", "event"), Xid("GPU-2", None, 79, 5.0, "", "event"))
        machine.health = Health({}, xids)
        passes(recorded, machine, 70)
    found = [record for record in events(run) if record["event"] == "xid"]
    assert [(record["gpu"], record["code"], record["status"]) for record in found] == [("GPU-1", 79, "fail")]
    alerts = [record for record in events(run) if record["event"] == "alert"]
    assert [(each["rule"], each["subject"], each["state"], each["node"]) for each in alerts] == [
        ("xid_failed", "GPU-1", "firing", "node0")
    ]
    assert abs(alerts[0]["since"] - time.time()) < 60  # of the wall, not of the injected clock


def sick(uuid: str) -> Verdict:
    return Verdict(uuid, "fail", (Finding("rows_failed", "fail", "a row could not be replaced", "", ""),))


def test_a_gpu_that_turns_sick_is_told_once(run: RunDir) -> None:
    machine = Machine(health=Health({"GPU-0": Verdict("GPU-0", "ok"), "GPU-1": Verdict("GPU-1", "ok")}))
    with recording(machine, job_of(run, sick_gpu="at_restart")) as recorded:
        passes(recorded, machine, 5)
        machine.health = Health({"GPU-0": sick("GPU-0"), "GPU-1": Verdict("GPU-1", "ok"), "GPU-2": sick("GPU-2")})
        passes(recorded, machine, 100)
    found = [record for record in events(run) if record["event"] == "gpu_sick"]
    assert [(record["gpu"], record["message"]) for record in found] == [("GPU-0", "a row could not be replaced")]
    assert not (run.requests / RESTART_REQUEST).exists()


def test_at_once_asks_the_run_to_start_again(run: RunDir) -> None:
    machine = Machine(health=Health({"GPU-0": Verdict("GPU-0", "ok")}))
    with recording(machine, job_of(run, sick_gpu="at_once")) as recorded:
        passes(recorded, machine, 5)
        machine.health = Health({"GPU-0": sick("GPU-0")})
        passes(recorded, machine, 40)
    assert read_json(run.requests / RESTART_REQUEST) == {
        "reason": "GPU GPU-0 has turned sick: a row could not be replaced"
    }


def test_a_gpu_that_was_sick_before_has_not_turned(run: RunDir) -> None:
    """hardware.sick: use has taken it knowingly, and a restart would find it again, for ever."""
    machine = Machine(health=Health({"GPU-0": sick("GPU-0")}))
    with recording(machine, job_of(run, sick_gpu="at_once")) as recorded:
        passes(recorded, machine, 40)
    assert not (run.requests / RESTART_REQUEST).exists()
    assert [record["rule"] for record in events(run)] == ["health_failed"]


def test_a_driver_that_does_not_answer_does_not_make_a_gpu_well(run: RunDir) -> None:
    machine = Machine(health=Health({"GPU-0": sick("GPU-0")}))
    with recording(machine, job_of(run)) as recorded:
        for health in (machine.health, Health(late=True), machine.health):
            machine.health = health
            passes(recorded, machine, 20)
    alerts = [(record["rule"], record["state"]) for record in events(run) if record["event"] == "alert"]
    assert alerts == [("health_failed", "firing")]


def test_a_run_that_fails_is_an_alert_at_its_end(run: RunDir, tmp_path: Path) -> None:
    machine = Machine()
    alerts = {"file": str(tmp_path / "alerts.jsonl")}
    with recording(machine, job_of(run, gpus=(), monitor={"alerts": alerts})) as recorded:
        passes(recorded, machine, 5)
        run.exit.write_text(json.dumps({"exit_status": 1, "reason": "failed", "message": "", "steps": 3}))
    [alert] = events(run)
    assert (alert["rule"], alert["subject"], alert["state"]) == ("run_failed", str(run.path), "firing")
    [note] = read_lines(tmp_path / "alerts.jsonl")
    assert (note["rule"], note["run"]) == ("run_failed", str(run.path))


def test_what_a_gpu_had_is_told_where_a_run_fails(run: RunDir) -> None:
    machine = Machine()
    with recording(machine, job_of(run)) as recorded:
        passes(recorded, machine, 2)
        machine.health = Health({}, (Xid("GPU-1", None, 79, 5.0, "", "event"),))
        run.exit.write_text(json.dumps({"exit_status": 1, "reason": "failed"}))
    assert [record["event"] for record in events(run)] == ["xid", "alert", "alert"]


def test_the_launcher_of_a_killed_worker_has_the_last_word(run: RunDir) -> None:
    """It may start the workers again: then the run has not failed."""
    launch = Lock(run, "launch")
    (run.logs / "run.lock").write_text(f"process {2**30} on {socket.gethostname()}")
    machine = Machine()
    with recording(machine, job_of(run, gpus=())) as recorded:
        timer = threading.Timer(0.15, lambda: run.exit.write_text(json.dumps({"exit_status": 1, "reason": "failed"})))
        timer.start()
        recorded.await_verdict()
        timer.join()
    launch.release()
    assert [record["rule"] for record in events(run)] == ["run_failed"]


def test_without_a_launcher_a_killed_worker_is_a_failed_run_at_once(run: RunDir) -> None:
    (run.logs / "run.lock").write_text(f"process {2**30} on {socket.gethostname()}")
    began = time.monotonic()
    with recording(Machine(), job_of(run, gpus=())) as recorded:
        recorded.await_verdict()
    assert time.monotonic() - began < 1
    assert [record["rule"] for record in events(run)] == ["run_failed"]


def test_a_run_that_is_started_again_has_not_failed(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drumline.monitor.recording.VERDICT_S", 0.05)
    launch = Lock(run, "launch")
    (run.logs / "run.lock").write_text(f"process {2**30} on {socket.gethostname()}")
    with recording(Machine(), job_of(run, gpus=())) as recorded:
        recorded.await_verdict()
    launch.release()
    assert events(run) == []


def test_a_failed_worker_that_is_started_again_is_no_failed_run(run: RunDir) -> None:
    """Its launcher takes back what a rank that failed has said of the run's end."""
    launch = Lock(run, "launch")
    run.exit.write_text(json.dumps({"exit_status": 1, "reason": "failed"}))
    with recording(Machine(), job_of(run, gpus=())) as recorded:
        timer = threading.Timer(0.15, run.exit.unlink)
        timer.start()
        recorded.await_verdict()
    timer.join()
    launch.release()
    assert events(run) == []


def test_a_launcher_knows_of_a_sick_gpu_before_it_starts_again(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drumline.monitor.recording.VERDICT_S", 0.05)
    launch = Lock(run, "launch")
    machine = Machine(health=Health({"GPU-1": Verdict("GPU-1", "ok")}))
    with recording(machine, job_of(run, sick_gpu="at_once")) as recorded:
        passes(recorded, machine, 2)
        machine.health = Health({"GPU-1": sick("GPU-1")})
        recorded.await_verdict()
        assert [record["gpu"] for record in events(run) if record["event"] == "gpu_sick"] == ["GPU-1"]
    launch.release()
    # Nobody is left whom it could ask: the next attempt would take it for its own.
    assert not (run.requests / RESTART_REQUEST).exists()


def test_what_is_found_at_the_end_asks_for_no_restart(run: RunDir) -> None:
    machine = Machine(health=Health({"GPU-0": Verdict("GPU-0", "ok")}))
    with recording(machine, job_of(run, sick_gpu="at_once")) as recorded:
        passes(recorded, machine, 2)
        machine.health = Health({"GPU-0": sick("GPU-0")})
    assert "gpu_sick" in [record["event"] for record in events(run)]
    assert not (run.requests / RESTART_REQUEST).exists()


def test_a_run_that_is_over_takes_nothing_until_it_goes_on(run: RunDir) -> None:
    """As in a notebook, whose trainer stays."""
    machine = Machine()
    with recording(machine, job_of(run)) as recorded:
        passes(recorded, machine, 15)
        run.exit.write_text(json.dumps({"exit_status": 0, "reason": "done"}))
        passes(recorded, machine, 100)
        assert [line["seconds"] for line in lines(run.metrics)] == [15.0, 1.0]
        run.exit.unlink()
        passes(recorded, machine, 20)
    seconds = [line["seconds"] for line in lines(run.metrics)][2:]
    last = lines(run.metrics)[-1]
    assert 15.0 <= sum(seconds) <= 20.0
    assert last["gpu_s"] == 2 * (16.0 + sum(seconds))
    assert last["energy_j"] == pytest.approx(500.0 * last["gpu_s"], abs=1000.0)


def test_a_budget_is_kept_an_eye_on(run: RunDir) -> None:
    machine = Machine()
    monitor = {"budget": 0.05, "record_every_s": 5.0}
    with recording(machine, job_of(run, monitor=monitor)) as recorded:
        passes(recorded, machine, 40)
    assert [record["rule"] for record in events(run)] == ["over_budget"]


def test_without_gpus_nothing_is_looked_at(run: RunDir) -> None:
    machine = Machine()
    recorded = Recording(job_of(run, gpus=()), machine.sources())
    recorded.start()
    recorded.tick()
    assert recorded.sampler.latest is None
    recorded.close()
    assert not list(run.logs.glob("spent_*"))
