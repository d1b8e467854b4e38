"""The shipped rules: a good hour raises no alarm, each planted fault exactly its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from drumline.config.monitor import AlertMetric, MonitorConfig, ShippedAlert
from drumline.errors import ConfigError
from drumline.hardware.health import Finding
from drumline.hardware.records import Gpu, GpuSample, Pipes
from drumline.hardware.xids import Xid
from drumline.monitor.alert_facts import gpu_facts, health_facts, run_facts
from drumline.monitor.alert_rules import METRICS, rules_of
from drumline.monitor.alerts import begin, step
from drumline.monitor.runs import RunFacts
from tests.unit.hardware.test_health import RECORDED, recorded

GPU = Gpu("GPU-a", "H100", 0, 80 << 30, (9, 0))
EVERY_S = 20.0
HOUR = range(int(3600 / EVERY_S))
PLANTED = 600.0
"""When a fault begins, in seconds."""
PAGE = (Path(__file__).parents[3] / "docs" / "monitor.md").read_text(encoding="utf-8")
CONFIG = MonitorConfig(price_per_gpu_hour=2.0, budget=10.0)

Facts = Mapping[str, Mapping[str, float]]


def sample_at(now: float) -> GpuSample:
    """A GPU that trains: every fifth look meets an evaluation's end or a save."""
    resting = int(now / EVERY_S) % 5 == 4
    return GpuSample(
        GPU,
        now,
        utilization=0.05 if resting else 0.98,
        memory_used_bytes=72 << 30,
        memory_free_bytes=7 << 30,
        temperature_c=64.0,
        slowdown_temperature_c=87.0,
        power_w=200.0 if resting else 690.0,
        throttled_by=() if resting else ("power limit",),
        pipes=Pipes(1.0, sm_active=0.03 if resting else 0.9),
    )


def run_at(now: float) -> RunFacts:
    """A run that writes a line each ten seconds."""
    return RunFacts(
        Path("runs/a"), "a", "running", step=int(now), step_age_s=9.0, overdue_s=0.0, loss=2.0, loss_rise=0.0, cost=4.0
    )


def facts_at(now: float) -> Facts:
    samples = [sample_at(now - back) for back in (60.0, 40.0, 20.0, 0.0)]
    return {
        "GPU-a": gpu_facts(samples, has_work=True),
        "runs/a": run_facts(run_at(now), 500 << 30, 10 << 30),
        "node": {"driver_age_s": 0.5},
    }


def alarms(facts: Callable[[float], Facts], config: MonitorConfig = CONFIG) -> list[tuple[str, str]]:
    """(rule, subject) of everything that fires within an hour, in order."""
    states, fired = begin(rules_of(config)), []
    for tick in HOUR:
        states, told = step(states, facts(tick * EVERY_S), tick * EVERY_S)
        fired += [(alert.rule, alert.subject) for alert in told if alert.state == "firing"]
    return fired


@pytest.mark.parametrize(
    "path", [None, *sorted(RECORDED.glob("*.jsonl"))], ids=lambda path: path.name if path else "made up"
)
def test_a_good_trace_raises_no_alarm(path: Path | None) -> None:
    """A made-up hour, and what benchmarks/record_health.py has recorded of real GPUs."""
    if path is None:
        assert alarms(facts_at) == []
        return
    recent: dict[str, deque[GpuSample]] = {}
    states = begin(rules_of(CONFIG))
    for _, samples in recorded(path):
        for sample in samples:
            recent.setdefault(sample.gpu.uuid, deque(maxlen=60)).append(sample)
        facts = {uuid: gpu_facts(list(looks), has_work=True) for uuid, looks in recent.items()}
        states, told = step(states, facts, samples[0].time)
        assert [alert.rule for alert in told if alert.state == "firing"] == []
    assert recent


def test_a_good_hour_of_a_card_that_tells_little_raises_no_alarm() -> None:
    def facts(now: float) -> Facts:
        bare = GpuSample(GPU, now, refused={"utilization": "not supported"})
        return {"GPU-a": gpu_facts([bare], has_work=True), "runs/a": run_facts(run_at(now))}

    assert alarms(facts) == []


def with_gpu(change: Callable[[GpuSample], GpuSample]) -> Callable[[float], Facts]:
    def facts(now: float) -> Facts:
        if now < PLANTED:
            return facts_at(now)
        samples = [change(sample_at(now - back)) for back in (60.0, 40.0, 20.0, 0.0)]
        return {**facts_at(now), "GPU-a": gpu_facts(samples, has_work=True)}

    return facts


def with_news(findings: tuple[Finding, ...] = (), xids: tuple[int, ...] = ()) -> Callable[[float], Facts]:
    def facts(now: float) -> Facts:
        found = [Xid("GPU-a", None, code, PLANTED, "", "event") for code in xids]
        news = gpu_facts([sample_at(now)], findings, found, has_work=True)
        return {**facts_at(now), "GPU-a": news} if now >= PLANTED else facts_at(now)

    return facts


def with_run(**change: object) -> Callable[[float], Facts]:
    def facts(now: float) -> Facts:
        changed = run_facts(replace(run_at(now), **change), 500 << 30, 10 << 30)  # type: ignore[arg-type]
        return {**facts_at(now), "runs/a": changed} if now >= PLANTED else facts_at(now)

    return facts


def finding(code: str, status: str) -> Finding:
    return Finding(code, status, "", "", "")  # type: ignore[arg-type]


GPU_FAULTS: dict[str, Callable[[float], Facts]] = {
    "temperature": with_gpu(lambda sample: replace(sample, temperature_c=86.0)),
    "throttling": with_gpu(lambda sample: replace(sample, throttled_by=("heat (software)",))),
    # What the driver keeps for itself is no room: of the whole this would be 97.5%.
    "memory_nearly_full": with_gpu(
        lambda sample: replace(sample, memory_used_bytes=78 << 30, memory_free_bytes=1 << 30)
    ),
    "idle": with_gpu(lambda sample: replace(sample, utilization=0.0, pipes=None, power_w=70.0, throttled_by=())),
    "low_use": with_gpu(lambda sample: replace(sample, utilization=0.5, pipes=Pipes(1.0, sm_active=0.05))),
    "health_failed": with_news((finding("rows_failed", "fail"), finding("throttled_heat", "warn"))),
    "health_warning": with_news((finding("rows_pending", "warn"),)),
    "xid_failed": with_news((finding("lost", "fail"), finding("xid_79", "fail")), (79,)),
    "xid_warning": with_news((finding("xid_63", "warn"),), (63,)),
}
FOLLOWING = ("ecc_uncorrected", "rows_failed", "nvlink_down", "nvlink_errors")
STANDING = ("ecc_uncorrected_ever", "pages_retired", "nvlink_down")
RUN_FAULTS: dict[str, Callable[[float], Facts]] = {
    "no_step": with_run(step_age_s=1000.0, overdue_s=990.0),
    "loss_not_finite": with_run(loss=float("nan")),
    "loss_rising": with_run(loss_rise=0.8),
    "run_failed": with_run(state="failed", step_age_s=None, overdue_s=None),
    "over_budget": with_run(cost=10.5),
}


@pytest.mark.parametrize("rule", GPU_FAULTS)
def test_a_fault_of_a_gpu_raises_its_alarm_alone(rule: str) -> None:
    assert alarms(GPU_FAULTS[rule]) == [(rule, "GPU-a")]


def test_what_an_xid_leaves_behind_is_no_second_alarm() -> None:
    found = tuple(finding(code, "fail") for code in FOLLOWING)
    assert alarms(with_news(found, (48, 74))) == [("xid_failed", "GPU-a")]
    assert alarms(with_news(found)) == [("health_failed", "GPU-a")]


def test_states_that_nothing_changes_are_no_alarm() -> None:
    assert alarms(with_news(tuple(finding(code, "warn") for code in STANDING))) == []
    assert alarms(with_news((finding("pages_retired", "fail"),))) == [("health_failed", "GPU-a")]


def test_findings_that_are_not_known_are_not_none() -> None:
    assert not {"health_failures", "health_warnings"} & health_facts(None, []).keys()


@pytest.mark.parametrize("rule", RUN_FAULTS)
def test_a_fault_of_a_run_raises_its_alarm_alone(rule: str) -> None:
    assert alarms(RUN_FAULTS[rule]) == [(rule, "runs/a")]


def test_a_disk_that_fills_up() -> None:
    def facts(now: float) -> Facts:
        free = (500 << 30) - int(now) * (150 << 20)
        return {**facts_at(now), "runs/a": run_facts(run_at(now), free, 10 << 30)}

    assert alarms(facts) == [("disk_filling", "runs/a")]
    first_run = {**facts_at(0), "runs/a": run_facts(run_at(0), 1 << 29)}
    assert alarms(lambda now: first_run) == [("disk_filling", "runs/a")]


def test_a_driver_that_hangs() -> None:
    def facts(now: float) -> Facts:
        age = max(0.5, now - PLANTED)
        gone = {"GPU-a": gpu_facts([sample_at(PLANTED)], has_work=True)} if age < 10 else {}
        return {"runs/a": facts_at(now)["runs/a"], "node": {"driver_age_s": age}, **gone}

    assert alarms(facts) == [("driver_silent", "node")]


def test_an_application_s_own_xid_is_no_alarm() -> None:
    assert alarms(with_news(xids=(31, 43, 45))) == []


def test_an_idle_gpu_without_a_run_is_no_alarm() -> None:
    def facts(now: float) -> Facts:
        return {"GPU-a": gpu_facts([replace(sample_at(now), utilization=0.0)], has_work=False)}

    assert alarms(facts) == []


def test_names_are_those_of_the_settings() -> None:
    assert set(METRICS) == set(get_args(AlertMetric))
    assert [rule.name for rule in rules_of(CONFIG)] == list(get_args(ShippedAlert))
    assert all(METRICS[rule.metric].scope == rule.scope for rule in rules_of(CONFIG))  # type: ignore[index]
    assert all(rule.action and rule.text.format(value=1.0) for rule in rules_of(CONFIG))


def test_the_page_has_all_rules_and_values_and_what_they_are() -> None:
    assert not {name for name, metric in METRICS.items() if f"| `{name}` |" not in PAGE or metric.help not in PAGE}
    rows = {rule.name: f"| `{rule.name}` | `{rule.metric}` " for rule in rules_of(CONFIG)}
    assert not {name for name, row in rows.items() if row not in PAGE}


def test_settings_change_the_rules() -> None:
    alerts = {
        "disabled": ["low_use"],
        "rules": [
            {"name": "temperature", "metric": "temperature_c", "above": 80, "severity": "critical"},
            {"name": "loud", "metric": "power_w", "above": 600, "for_s": 5},
            {"name": "costly", "metric": "cost", "above": 3},
        ],
    }
    config = MonitorConfig.model_validate({"no_step_s": 60, "alerts": alerts})
    rules = {rule.name: rule for rule in rules_of(config)}
    assert rules["no_step"].above == 60
    assert not rules.keys() & {"low_use", "over_budget"}
    assert (rules["temperature"].above, rules["temperature"].below) == (80, None)
    assert (rules["temperature"].action, rules["temperature"].text) == ("look at fans, air flow and inlets", "")
    assert (rules["loud"].scope, rules["costly"].scope) == ("gpu", "run")
    assert rules_of(MonitorConfig.model_validate({"alerts": {"enabled": False}})) == ()


def test_a_rule_without_a_limit_is_refused() -> None:
    config = MonitorConfig.model_validate({"alerts": {"rules": [{"name": "none", "metric": "cost"}]}})
    with pytest.raises(ConfigError, match="the alert none has no limit"):
        rules_of(config)
