"""The state machine of a job, event by event, and under any sequence of events."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline.jobs.records import ACTIVE_STATES, END_STATES, Job, Resources, Work
from drumline.jobs.states import (
    NO_CURE,
    NODE_SILENT,
    REASONS,
    SHORT_TRIES,
    Asked,
    AskToStop,
    Began,
    End,
    Ended,
    Event,
    GivenUp,
    Gone,
    Granted,
    Heard,
    Instruction,
    Kill,
    Missing,
    Overdue,
    Refused,
    Release,
    Restarted,
    Silent,
    Started,
    StartKeeper,
    TellResult,
    handle,
    with_the_clock,
)


def a_job(**changes: object) -> Job:
    job = Job("job-1", "ada", Work("train", {}), Resources(devices=2), created=1.0, queued_since=1.0)
    return replace(job, **changes)  # type: ignore[arg-type]


def after(*events: Event, job: Job | None = None) -> Job:
    job = a_job() if job is None else job
    for event in events:
        job = handle(job, event).job
    return job


GRANTED, STARTED, BEGAN = Granted(("GPU-a", "GPU-b"), 10.0), Started(77, 5.0, 11.0), Began(12.0)
RUNNING = (GRANTED, STARTED, BEGAN)


def ended(status: int | None, now: float = 100.0, **more: object) -> Ended:
    return Ended(End(status, **more), now)  # type: ignore[arg-type]


def test_a_job_that_nothing_happens_to_succeeds() -> None:
    step = handle(a_job(waits_for="waits for 2 GPUs"), GRANTED)
    assert (step.job.state, step.job.attempt, step.job.devices) == ("starting", 1, ("GPU-a", "GPU-b"))
    assert (step.job.started, step.job.waits_for, step.do) == (10.0, "", (StartKeeper(),))
    job = after(STARTED, BEGAN, job=step.job)
    assert (job.state, job.pid, job.pid_began) == ("running", 77, 5.0)
    step = handle(job, ended(0))
    assert (step.job.state, step.job.reason, step.job.ended, step.job.used_s) == ("succeeded", None, 100.0, 90.0)
    assert step.do == (Release(), TellResult())
    assert step.job.devices == ("GPU-a", "GPU-b") and step.job.pid is None


def test_a_queued_job_is_cancelled_at_once() -> None:
    step = handle(a_job(), Asked("cancel", 5.0, "ada"))
    assert (step.job.state, step.job.reason, step.job.message) == ("cancelled", "cancelled", "cancelled by ada")
    assert step.do == (TellResult(),)


def test_a_running_job_saves_before_it_is_cancelled() -> None:
    step = handle(after(*RUNNING), Asked("cancel", 50.0))
    assert (step.job.state, step.job.stop, step.job.stop_asked, step.do) == ("stopping", "cancel", 50.0, (AskToStop(),))
    again = handle(step.job, Asked("cancel", 51.0))
    assert again.do == () and again.job.stop_asked == 50.0, "a second signal would end it without a save"
    assert handle(step.job, ended(3)).job.state == "cancelled"
    assert handle(step.job, ended(1)).job.state == "cancelled"
    assert handle(step.job, ended(None, signal=9)).job.state == "cancelled"
    assert handle(step.job, ended(0)).job.state == "succeeded", "it was done before it could stop"


def test_a_cancel_before_the_process_is_known_reaches_it_once_it_is() -> None:
    step = handle(after(GRANTED), Asked("cancel", 10.5))
    assert (step.job.state, step.do) == ("stopping", ())
    step = handle(step.job, STARTED)
    assert (step.job.state, step.job.pid, step.do) == ("stopping", 77, (AskToStop(),))
    assert handle(step.job, BEGAN).job.state == "stopping"


@pytest.mark.parametrize(("stop", "reason"), [("preempt", "preempted"), ("resize", "resized")])
def test_a_job_that_makes_room_waits_again_at_its_old_place(stop: str, reason: str) -> None:
    job = after(*RUNNING, Asked(stop, 50.0))  # type: ignore[arg-type]
    for end in (ended(3), ended(None, signal=15), Gone(100.0)):
        step = handle(job, end)
        assert (step.job.state, step.job.reason, step.job.queued_since) == ("queued", reason, 1.0)
        assert (step.job.stop, step.job.devices, step.job.failures, step.job.used_s) == (None, (), 0, 90.0)
        assert step.do == (Release(),)
    again = after(Granted(("GPU-c",), 200.0), job=handle(job, ended(3)).job)
    assert (again.attempt, again.started, again.reason) == (2, 10.0, None)


def test_a_preempted_job_that_fails_by_itself_has_failed() -> None:
    job = after(*RUNNING, Asked("preempt", 50.0), ended(1, message="out of disk"))
    assert (job.state, job.message) == ("failed", "out of disk")


def test_cancel_is_stronger_than_time_limit_and_that_than_preempt() -> None:
    job = after(*RUNNING, Asked("preempt", 50.0), Asked("time_limit", 51.0), Asked("resize", 52.0))
    assert (job.stop, job.stop_asked) == ("time_limit", 50.0)
    job = after(Asked("cancel", 53.0), Asked("time_limit", 54.0), job=job)
    assert job.stop == "cancel"


def test_a_job_over_its_time_is_timed_out() -> None:
    job = after(*RUNNING, Asked("time_limit", 50.0))
    for end in (ended(3), ended(None, signal=9), ended(1), Gone(100.0), Restarted(100.0)):
        assert (handle(job, end).job.state, handle(job, end).job.reason) == ("timed_out", "time_limit")


def test_one_that_does_not_stop_in_time_is_killed() -> None:
    assert handle(after(*RUNNING), Overdue(500.0)).do == ()
    job = after(*RUNNING, Asked("preempt", 50.0))
    assert handle(job, Overdue(500.0)).do == (Kill(),)


def test_an_interruption_from_outside_is_no_failure_but_not_for_ever() -> None:
    job = after(*RUNNING, ended(3, now=1000.0))
    assert (job.state, job.reason, job.interruptions) == ("queued", "interrupted", 0)
    for attempt in range(SHORT_TRIES):
        job = after(*RUNNING, ended(3, now=11.0), job=job)
        assert (job.state, job.interruptions, job.failures) == ("queued", attempt + 1, 0)
    again = after(*RUNNING, ended(3, now=1000.0), job=job)
    assert (again.state, again.interruptions) == ("queued", 0), "those in a row count"
    job = after(*RUNNING, ended(3, now=11.0), job=job)
    assert (job.state, job.reason, job.failures) == ("failed", "interrupted_often", 0)


def test_interruptions_leave_the_retries_to_failures() -> None:
    job = a_job(resources=Resources(devices=2, retries=1))
    for _ in range(SHORT_TRIES):
        job = after(*RUNNING, ended(3, now=11.0), job=job)
    job = after(*RUNNING, ended(1), job=job)
    assert (job.state, job.reason, job.failures) == ("queued", "retrying", 1)


def test_a_job_that_takes_the_machine_down_is_not_started_for_ever() -> None:
    job = a_job()
    for attempt in range(SHORT_TRIES):
        job = after(*RUNNING, Restarted(9999.0, None, 5.0), job=job)
        assert (job.state, job.reason, job.interruptions) == ("queued", "restarted", attempt + 1)
    assert job.used_s == 15.0
    assert after(*RUNNING, Restarted(9999.0, None, 3600.0), job=job).interruptions == 0
    job = after(*RUNNING, Restarted(9999.0, None, 5.0), job=job)
    assert (job.state, job.reason) == ("failed", "interrupted_often")


def test_how_long_an_attempt_ran_is_not_told_by_a_clock_that_was_set() -> None:
    job = after(GRANTED, STARTED)  # granted at 10 by the clock, begun 5 s after the machine's start
    assert with_the_clock(job, 110.0, 104.0) == job
    assert with_the_clock(job, 110.0 + 86400.0, 104.0).attempt_began == 86400.0 + 11.0
    assert with_the_clock(job, 0.0, 104.0).attempt_began == -99.0
    assert with_the_clock(job, 500.0, 2.0) == job, "the machine was started again: nobody knows"
    assert with_the_clock(after(GRANTED), 1e9, 104.0) == after(GRANTED)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (End(1), "failed"),
        (End(2), "bad_request"),
        (End(None, signal=signal.SIGKILL), "killed"),
        (End(None, signal=64), "killed"),
        (End(1, code="hang"), "hang"),
        (End(1, code="out_of_memory"), "out_of_memory"),
        (End(1, code="non_finite"), "diverged"),
        (End(1, step="export"), "export_failed"),
        (End(None), "failed"),
    ],
)
def test_failures_are_tried_again_where_that_may_help(end: End, reason: str) -> None:
    once = after(*RUNNING, Ended(end, 100.0))
    assert (once.state, once.reason, once.failures) == ("failed", reason, 1)
    assert once.message and once.fix
    job = after(*RUNNING, Ended(end, 100.0), job=a_job(resources=Resources(devices=2, retries=1)))
    if reason in NO_CURE:
        assert (job.state, job.reason) == ("failed", reason)
        return
    assert (job.state, job.reason, job.failures, job.queued_since) == ("queued", "retrying", 1, 1.0)
    job = after(*RUNNING, Ended(end, 200.0), job=job)
    assert (job.state, job.reason, job.failures, job.attempt) == ("failed", reason, 2, 2)


def test_what_happens_without_a_word() -> None:
    gone = handle(after(*RUNNING), Gone(20.0))
    assert (gone.job.state, gone.job.reason, gone.do) == ("failed", "launcher_killed", (Release(), TellResult()))
    restarted = handle(after(*RUNNING), Restarted(9999.0))
    assert (restarted.job.state, restarted.job.reason, restarted.job.used_s) == ("queued", "restarted", 0.0)
    missing = handle(after(*RUNNING), Missing(20.0))
    assert (missing.job.state, missing.do) == ("lost", (Kill(), Release(), TellResult()))
    assert missing.job.pid == 77, "a process that is left is found by its number"
    assert handle(a_job(), Missing(20.0)).do == (TellResult(),)


def test_a_refused_start_is_a_failure_with_its_words() -> None:
    job = after(GRANTED, Refused("bad_request", "no such model", "correct the name", 11.0))
    assert (job.state, job.reason, job.message, job.fix) == (
        "failed",
        "bad_request",
        "no such model",
        "correct the name",
    )
    assert after(GRANTED, Refused("whatever", "m", "f", 11.0)).reason == "not_started"


def test_what_is_told_of_an_earlier_attempt_changes_nothing() -> None:
    job = after(*RUNNING, Asked("preempt", 50.0), ended(3), Granted(("GPU-c",), 200.0))
    for event in (Ended(End(0), 201.0, attempt=1), Gone(201.0, attempt=1), Started(77, 5.0, 201.0, attempt=1)):
        assert handle(job, event).job == job
    assert after(Started(88, 6.0, 201.0, attempt=2), job=job).pid == 88


def test_a_grant_without_devices_is_none() -> None:
    assert handle(a_job(), Granted((), 1.0)).job == a_job()


def test_a_job_whose_machine_is_silent_says_so_and_goes_on_as_it_was_once_it_is_heard() -> None:
    job = after(*RUNNING, job=a_job(node="n1"))
    silent = after(Silent(0.0, 90.0), job=job)
    assert (silent.state, silent.reason, silent.devices) == ("running", NODE_SILENT, job.devices)
    assert silent.message == "nobody has looked after it since 1970-01-01 00:00:00 UTC: node n1 does not answer"
    assert "cancel the job" in silent.fix
    assert after(Silent(50.0, 99.0), job=silent) == silent, "it is said once"
    assert after(Heard(99.0), job=silent) == job
    assert after(Heard(99.0), job=job) == job
    for unfit in (a_job(), after(*RUNNING, ended(0))):
        assert after(Silent(0.0, 90.0), job=unfit) == unfit, "it has no processes"


def test_who_stopped_a_job_is_known_after_its_machine_was_silent() -> None:
    stopping = after(*RUNNING, Asked("cancel", 80.0, "ann"), job=a_job(node="n1"))
    silent = after(Silent(0.0, 90.0), job=stopping)
    assert silent.message.startswith("cancelled by ann; nobody has looked after it since 1970-01-01 00:00:00 UTC")
    assert after(Heard(99.0), job=silent) == stopping
    asked = after(*RUNNING, Silent(0.0, 90.0), Asked("cancel", 95.0, "bob"), Heard(99.0))
    assert (asked.state, asked.reason, asked.message) == ("stopping", None, "cancelled by bob")


def test_only_a_job_whose_machine_is_silent_is_given_up_and_it_took_no_more_than_was_seen() -> None:
    running = after(*RUNNING)
    assert handle(running, GivenUp(40.0, 500.0, "ann")).job == running
    step = handle(after(Silent(30.0, 90.0), job=running), GivenUp(40.0, 500.0, "ann"))
    assert (step.job.state, step.job.reason, step.job.ended) == ("lost", "node_lost", 500.0)
    assert step.job.message.startswith("given up by ann; nobody has looked after it since ")
    assert step.job.used_s == 30.0
    assert Release() in step.do
    cancelled = after(Silent(30.0, 90.0), Asked("cancel", 91.0), job=running)
    assert (cancelled.state, after(GivenUp(40.0, 500.0, "ann"), job=cancelled).state) == ("stopping", "lost")


TIMES = st.floats(0, 1e6)
ENDS = st.builds(
    End,
    exit_status=st.sampled_from([None, 0, 1, 2, 3, 137]),
    signal=st.sampled_from([None, 9, 15, 64]),
    step=st.sampled_from(["train", "export"]),
    code=st.sampled_from([None, "hang", "config", "nobody knows"]),
)
EVENTS = st.one_of(
    st.builds(Granted, st.just(("GPU-a",)), TIMES),
    st.builds(Started, st.integers(1, 9), TIMES, TIMES),
    st.builds(Began, TIMES),
    st.builds(Asked, st.sampled_from(["cancel", "preempt", "resize", "time_limit"]), TIMES),
    st.builds(Overdue, TIMES),
    st.builds(Ended, ENDS, TIMES, st.sampled_from([None, 1, 2])),
    st.builds(Refused, st.sampled_from(["hang", "?"]), st.just("m"), st.just("f"), TIMES),
    st.builds(Gone, TIMES),
    st.builds(Restarted, TIMES),
    st.builds(Missing, TIMES),
    st.builds(Silent, TIMES, TIMES),
    st.builds(Heard, TIMES),
    st.builds(GivenUp, TIMES, TIMES, st.just("ann")),
)


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.lists(EVENTS, max_size=30), st.integers(0, 3))
def test_any_sequence_of_events_keeps_the_promises(events: list[Event], retries: int) -> None:
    job = a_job(resources=Resources(devices=1, retries=retries))
    asked = 0
    for event in events:
        before, step = job, handle(job, event)
        job = step.job
        if before.has_ended:
            assert step.job == before and step.do == (), "an end is final"
            continue
        held, holds = before.state in ACTIVE_STATES, job.state in ACTIVE_STATES
        assert (Release() in step.do) == (held and not holds), "leases go back exactly when it no longer runs"
        assert (StartKeeper() in step.do) == (holds and not held) == (job.attempt == before.attempt + 1)
        assert (TellResult() in step.do) == job.has_ended
        asked = 0 if job.attempt != before.attempt else asked + step.do.count(AskToStop())
        assert asked <= 1, "a second signal would end it without a save"
        assert job.failures <= retries + 1
        assert job.interruptions <= SHORT_TRIES + 1
        assert job.reason is None or job.reason in REASONS
        assert job.state == "succeeded" or not job.has_ended or job.reason is not None
        assert (job.ended is not None) == job.has_ended
        assert (job.stop is not None) == (job.state == "stopping")
        assert bool(job.devices) or not holds
        assert job.used_s >= before.used_s
    assert job.state in {"queued"} | ACTIVE_STATES | END_STATES


def test_each_reason_is_a_sentence() -> None:
    assert all(code.isidentifier() and len(sentence) > 10 for code, sentence in REASONS.items())


def test_instructions_are_values() -> None:
    kinds: list[Instruction] = [StartKeeper(), AskToStop(), Kill(), Release(), TellResult()]
    assert len(set(kinds)) == 5
