"""What jobs have taken: one by one, and together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drumline.jobs.records import Job, Resources, Work
from drumline.service.usage import grouped, quantile, summed, usage_of

DAY = 86_400.0


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
        used_s=100.0,
        progress={"units_per_s": 500.0, "unit": "tokens", "mfu": 0.4, "elapsed_s": 80.0},
        result={"training_time": 80.0, "gpu_stats": {"gpu_seconds": 200.0, "energy_j": 5e4, "cost": 0.0}},
    )
    return replace(made, **changes)


def test_an_ended_job() -> None:
    used = usage_of(job(), now=5000.0, price_per_gpu_hour=3.6)
    assert (used.queue_s, used.run_s, used.device_s, used.gpu_s, used.energy_j) == (10, 100, 200, 200, 5e4)
    assert used.goodput == pytest.approx(0.8)
    assert used.cost == pytest.approx(0.2)  # 200 GPU seconds at 0.001 a second
    assert used.day == "1970-01-01"


def test_without_a_price_the_cost_is_what_the_run_recorded() -> None:
    stats = {"gpu_seconds": 200.0, "energy_j": 5e4, "cost": 7.5}
    assert usage_of(job(result={"gpu_stats": stats}), 5000.0).cost == 7.5
    assert usage_of(job(result={"gpu_stats": stats}), 5000.0, price_per_gpu_hour=3.6).cost == pytest.approx(0.2)


def test_accounts_of_an_ended_job_count_before_its_gpu_stats() -> None:
    usage = {"gpu_seconds": 150.0, "energy_j": 7e4, "cost": 1.0}
    used = usage_of(job(result={"usage": usage, "gpu_stats": {"gpu_seconds": 1.0}}), 5000.0)
    assert (used.gpu_s, used.energy_j, used.cost) == (150.0, 7e4, 1.0)


def test_a_running_job_counts_up_to_now() -> None:
    running = job(state="running", ended=None, used_s=30.0, attempt_began=2000.0, result={}, progress={})
    used = usage_of(running, now=2020.0)
    assert (used.run_s, used.device_s, used.gpu_s) == (50, 100, 100)
    assert used.goodput is None
    assert used.energy_j is None


def test_a_job_that_was_resized_has_taken_what_each_attempt_had() -> None:
    told = {"device_seconds": 320.0}  # 100 s: 60 on four, and 40 on its last two
    used = usage_of(job(progress=told, result={}), 5000.0, price_per_gpu_hour=3.6)
    assert (used.device_s, used.gpu_s, used.cost) == pytest.approx((320, 320, 0.32))
    running = job(state="running", ended=None, used_s=60.0, attempt_began=2000.0, result={}, progress=told)
    assert usage_of(running, now=2010.0).device_s == 340
    waiting = job(state="queued", ended=None, used_s=60.0, result={}, progress=told)
    assert usage_of(waiting, now=2010.0).device_s == 320


def test_a_queued_job_waits_up_to_now_and_has_taken_nothing() -> None:
    queued = job(state="queued", started=None, ended=None, used_s=0.0, devices=(), result={}, progress={})
    used = usage_of(queued, now=1000.0 + DAY)
    assert (used.queue_s, used.run_s, used.device_s, used.cost) == (DAY, 0, 0, 0)
    assert used.day == "1970-01-02"


def test_slots_of_a_machine_without_gpu_are_devices_and_no_gpus() -> None:
    stats = {"gpu_seconds": 0.0, "energy_j": 0.0, "cost": 0.0}
    used = usage_of(job(devices=("cpu:0", "cpu:1"), result={"gpu_stats": stats}), 5000.0, price_per_gpu_hour=3.6)
    assert (used.device_s, used.gpu_s, used.energy_j, used.cost) == (200, 0, None, 0)


def test_what_is_no_number_is_not_known() -> None:
    used = usage_of(job(progress={"units_per_s": float("nan"), "mfu": None, "unit": "tokens"}, result={}), 5000.0)
    assert (used.units_per_s, used.mfu, used.trained_s) == (None, None, None)


def test_sums_weigh_by_time_and_leave_out_what_is_not_known() -> None:
    short = job(2, used_s=50.0, progress={"units_per_s": 200.0, "unit": "tokens", "mfu": 0.1})
    silent = job(3, owner="bob", state="failed", progress={}, result={}, devices=())
    sums = summed(usage_of(each, 5000.0) for each in (job(), short, silent))
    assert sums.by_state == {"failed": 1, "succeeded": 2}
    assert sums.units_per_s == {"tokens": pytest.approx((500 * 100 + 200 * 50) / 150)}
    assert sums.mfu == pytest.approx((0.4 * 100 + 0.1 * 50) / 150)
    assert sums.energy_j == 1e5
    assert sums.queue_mean_s == 10


def test_nothing_comes_to_nothing_known() -> None:
    sums = summed([])
    assert (sums.jobs, sums.goodput, sums.queue_p95_s, sums.energy_j, sums.units_per_s) == (0, None, None, None, {})


def test_groups_by_owner_and_day() -> None:
    used = [usage_of(each, 5000.0) for each in (job(), job(2, owner="bob"), job(3, ended=1110.0 + DAY))]
    assert {name: sums.jobs for name, sums in grouped(used, lambda each: each.owner).items()} == {"ann": 2, "bob": 1}
    assert list(grouped(used, lambda each: each.day)) == ["1970-01-01", "1970-01-02"]


@pytest.mark.parametrize(("share", "found"), [(0.5, 2.0), (0.95, 4.0), (0.01, 1.0), (1.0, 4.0)])
def test_quantiles_are_values_that_were_seen(share: float, found: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], share) == found
