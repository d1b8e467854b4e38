"""What jobs have taken and what came of it: one by one, and together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline.jobs.records import Job, Resources, Work
from drumline.jobs.spending import SPENT_BEFORE
from drumline.jobs.store import Use
from drumline.service.usage import JobRates, grouped, quantile, rates_of, summed, with_running

DAY = 86_400.0
FIRST, SECOND = "1970-01-01", "1970-01-02"


def job(number: int = 1, **changes: Any) -> Job:
    """A job that waited for 10 s, and ran 100 s on two GPUs, 80 of them in training that was kept."""
    made = Job(
        f"job-{number}",
        "ann",
        Work("finetune", {}),
        Resources(2),
        created=1000.0,
        started=1010.0,
        ended=1110.0,
        state="succeeded",
        devices=("GPU-a", "GPU-b"),
        attempt=1,
        used_s=100.0,
        progress={"units_per_s": 500.0, "unit": "tokens", "mfu": 0.4, "elapsed_s": 80.0},
        result={"training_time": 80.0, "gpu_stats": {"gpu_seconds": 200.0, "energy_j": 5e4, "cost": 0.0}},
    )
    return replace(made, **changes)


def use(number: int = 1, day: str = FIRST, run_s: float = 100.0, **changes: Any) -> Use:
    """What that job's attempt has taken."""
    made = Use(f"job-{number}", "ann", day, "succeeded", 1000.0, 1010.0, 1, run_s, 2 * run_s, 2 * run_s, 5e4, 2 * run_s)
    return replace(made, **changes)


RATES = JobRates(goodput=0.8, units_per_s=500.0, unit="tokens", mfu=0.4, cost_per_device_s=0.0)


def test_rates_of_an_ended_job() -> None:
    assert rates_of(job(), now=5000.0) == RATES


def test_accounts_of_an_ended_job_count_before_what_its_run_said_last() -> None:
    told = {"useful_seconds": 60.0, "mfu": 0.35, "cost": 4.0}
    rates = rates_of(job(result={"usage": told, "training_time": 80.0, "gpu_stats": {"cost": 9.0}}), 5000.0)
    assert (rates.goodput, rates.mfu, rates.cost_per_device_s) == pytest.approx((0.6, 0.35, 0.02))


def test_a_job_that_trained_nothing_has_no_goodput() -> None:
    assert rates_of(job(result={"usage": {"useful_seconds": 0.0}}), 5000.0).goodput == 0.0


def test_a_running_job_is_rated_up_to_now() -> None:
    running = job(state="running", ended=None, used_s=30.0, attempt_began=2000.0, result={})
    assert rates_of(running, now=2070.0).goodput == pytest.approx(0.8)
    assert rates_of(replace(running, progress={}), now=2070.0).goodput is None


def test_what_a_resized_jobs_run_recorded_is_spread_over_what_each_attempt_had() -> None:
    result = {"usage": {"cost": 3.2}}
    rates = rates_of(job(progress={"device_seconds": 320.0}, result=result), 5000.0)
    assert rates.cost_per_device_s == pytest.approx(0.01)


def test_what_is_no_number_is_not_known() -> None:
    rates = rates_of(job(progress={"units_per_s": float("nan"), "mfu": None, "unit": "tokens"}, result={}), 5000.0)
    assert (rates.units_per_s, rates.unit, rates.mfu, rates.goodput) == (None, None, None, None)


def test_an_attempt_that_goes_on_is_split_at_midnight() -> None:
    progress = {"energy_j": 900.0, SPENT_BEFORE: 600.0}
    running = job(
        state="running", ended=None, attempt=2, attempt_began=DAY - 10, created=5.0, started=6.0, progress=progress
    )
    noted = [use(energy_j=None, measured_device_s=0.0)]
    first, before, after = with_running(noted, [running], 0.0, DAY + 20)
    assert first == noted[0]
    assert before == Use("job-1", "ann", FIRST, "running", 5.0, 6.0, 2, 10, 20, 20, 100.0, 20)
    assert after == Use("job-1", "ann", SECOND, "running", 5.0, 6.0, 2, 20, 40, 40, 200.0, 40)
    assert with_running([], [running], DAY, DAY + 20) == [after]
    assert with_running([], [running], 0.0, DAY - 60) == []  # its clock was set back
    assert summed([first, before, after], {}).jobs == 1
    assert summed([first, before, after], {}).by_state == {"running": 1}


def test_of_a_job_of_a_silent_machine_what_was_seen_counts() -> None:
    silent = job(state="running", ended=None, attempt_began=0.0)
    assert [use.run_s for use in with_running([], [silent], 0.0, 3 * DAY, {"job-1": 50.0})] == [50.0]
    assert [use.run_s for use in with_running([], [silent], 0.0, 100.0, {"job-2": 50.0})] == [100.0]


def test_an_attempt_that_ended_meanwhile_is_not_counted_twice() -> None:
    running = job(state="running", ended=None, attempt_began=0.0)
    assert with_running([use(attempt=1)], [running], 0.0, 100.0) == [use(attempt=1)]


def test_slots_are_devices_and_no_gpus() -> None:
    (taken,) = with_running([], [job(state="running", attempt_began=0.0, devices=("cpu:0", "cpu:1"))], 0.0, 100.0)
    assert (taken.device_s, taken.gpu_s, taken.energy_j, taken.measured_device_s) == (200, 0, None, 0)


def test_only_time_of_gpus_has_a_price() -> None:
    on_slots = use(2, gpu_s=0.0)
    assert summed([use(), on_slots], {}, price_per_gpu_hour=3.6).cost == pytest.approx(0.2)
    recorded = replace(RATES, cost_per_device_s=0.02)
    assert summed([use(), use(2)], {"job-1": recorded}).cost == pytest.approx(4.0)
    assert summed([use()], {"job-1": recorded}, price_per_gpu_hour=3.6).cost == pytest.approx(0.2)


def test_sums_weigh_by_time_and_leave_out_what_is_not_known() -> None:
    short = replace(RATES, units_per_s=200.0, mfu=0.1, goodput=None)
    silent = use(3, owner="bob", state="failed", energy_j=None, measured_device_s=0.0)
    sums = summed([use(), use(2, run_s=50.0), silent], {"job-1": RATES, "job-2": short})
    assert (sums.jobs, sums.by_state) == (3, {"failed": 1, "succeeded": 2})
    assert sums.units_per_s == {"tokens": pytest.approx((500 * 100 + 200 * 50) / 150)}
    assert sums.mfu == pytest.approx((0.4 * 100 + 0.1 * 50) / 150)
    assert sums.goodput == pytest.approx(0.8)
    assert (sums.device_s, sums.energy_j, sums.measured_device_s) == (500, 1e5, 300)


def test_mfu_and_goodput_are_shares_of_the_time_of_devices() -> None:
    wide = use(2, device_s=600.0, gpu_s=600.0)
    sums = summed([use(), wide], {"job-1": RATES, "job-2": replace(RATES, mfu=0.2, goodput=0.4)})
    assert (sums.mfu, sums.goodput) == pytest.approx((0.25, 0.5))


def test_each_unit_has_a_mean_of_its_own() -> None:
    samples = replace(RATES, unit="samples", units_per_s=7.0)
    sums = summed([use(), use(2)], {"job-1": RATES, "job-2": samples})
    assert sums.units_per_s == {"samples": 7.0, "tokens": 500.0}


def test_a_wait_counts_on_the_day_on_which_it_was_over() -> None:
    uses = [use(), use(day=SECOND), use(2, SECOND, created=0.0, started=DAY + 40)]
    waits = {day: summed(of, {}).queue_mean_s for day, of in grouped(uses, lambda each: each.day).items()}
    assert waits == {FIRST: 10.0, SECOND: DAY + 40}
    sums = summed(uses, {})
    assert (sums.queue_p50_s, sums.queue_p95_s, sums.queue_max_s) == (10.0, DAY + 40, DAY + 40)
    assert summed([use(day=SECOND)], {}).queue_p50_s is None


def test_nothing_comes_to_nothing_known() -> None:
    sums = summed([], {})
    assert (sums.jobs, sums.goodput, sums.queue_p95_s, sums.energy_j, sums.units_per_s) == (0, None, None, None, {})


def test_groups_hold_each_use_once() -> None:
    uses = [use(), use(2, owner="bob"), use(3, SECOND)]
    assert {name: len(of) for name, of in grouped(uses, lambda each: each.owner).items()} == {"ann": 2, "bob": 1}


@pytest.mark.parametrize(("share", "found"), [(0.5, 2.0), (0.95, 4.0), (0.01, 1.0), (1.0, 4.0)])
def test_quantiles_are_values_that_were_seen(share: float, found: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], share) == found
