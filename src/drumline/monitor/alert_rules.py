"""What alerts can look at, and the rules that are shipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from drumline.config.monitor import AlertMetric, AlertsConfig, MonitorConfig
from drumline.errors import ConfigError
from drumline.monitor.alerts import Rule, Scope


@dataclass(frozen=True)
class Metric:
    """One value that a rule may be about."""

    scope: Scope
    help: str


METRICS: Mapping[AlertMetric, Metric] = {
    "temperature_c": Metric("gpu", "mean temperature over the last minute"),
    "heat_margin_c": Metric("gpu", "degrees left to where the hardware slows itself down, over the last minute"),
    "memory_temperature_c": Metric("gpu", "mean temperature of the memory over the last minute"),
    "memory_share": Metric("gpu", "share in use now of the memory that the driver does not keep for itself"),
    "utilization": Metric("gpu", "share of the last minute in which any kernel ran, one that only waits included"),
    "sm_active": Metric("gpu", "share of the last minute that multiprocessors were at work, where the card says it"),
    "use": Metric("gpu", "sm_active where the card says it, else utilization; only while a run is on it and not idle"),
    "idle": Metric("gpu", "1 where nothing ran in the last minute though a run is on it, else 0"),
    "throttled": Metric("gpu", "share of looks of the last minute that found it slowed by heat or a power brake"),
    "power_capped": Metric("gpu", "share of looks of the last minute that found it at its power limit; harmless"),
    "power_w": Metric("gpu", "mean power over the last minute"),
    "health_failures": Metric("gpu", "reasons for which its health is fail, XIDs aside"),
    "health_warnings": Metric("gpu", "reasons for which its health is warn, XIDs, throttling and lasting states aside"),
    "xid_failures": Metric("gpu", "XIDs of the last hour after which the GPU should not be used"),
    "xid_warnings": Metric("gpu", "XIDs of the last hour that the hardware has survived"),
    "step_age_s": Metric("run", "seconds since its last log line, while it runs"),
    "overdue_s": Metric("run", "the same, less the usual time between two log lines"),
    "loss_not_finite": Metric("run", "1 where the newest training loss is NaN or infinite, else 0"),
    "loss_rise": Metric("run", "by how much the training loss lies over its best, as a share of that; 0 within noise"),
    "failed": Metric("run", "1 where it has failed or was killed, else 0"),
    "disk_room": Metric("run", "free disk space, in checkpoints like its newest one, of 1 GiB at least each"),
    "energy_j": Metric("run", "energy that its GPUs have taken, over all attempts"),
    "cost": Metric("run", "what it has cost so far, by monitor.price_per_kwh and monitor.price_per_gpu_hour"),
    "driver_age_s": Metric("host", "seconds since the GPUs were last read"),
}
"""Values by name, as docs/monitor.md lists them."""

MINUTE_S = 60.0

# Limits that are no one else's number are chosen so that a run in good order stays well away from them.
HEAT_MARGIN_C = 3.0
"""NVML_TEMPERATURE_THRESHOLD_SLOWDOWN is where the hardware halves its clocks; cards are built to run near it."""
NEARLY_FULL = 0.985
"""Of a GPU's memory; train.out_of_memory.target fills it to 0.9, and what is left here is 1.2 GB of 80."""
LOW_USE = 0.15
LOSS_RISE = 0.5
DISK_ROOM = 2.0
"""Checkpoints: a new one is written before an old one is removed."""

_SHIPPED: tuple[Rule, ...] = (
    Rule(
        "temperature", "heat_margin_c", below=HEAT_MARGIN_C, for_s=MINUTE_S, action="look at fans, air flow and inlets"
    ),
    Rule(
        "throttling",
        "throttled",
        above=0.5,
        for_s=MINUTE_S,
        action="look at cooling and power supply; the GPU is slower than the others of the run until then",
    ),
    Rule(
        "memory_nearly_full",
        "memory_share",
        above=NEARLY_FULL,
        for_s=2 * MINUTE_S,
        action="see who is on it with drumline gpus; lower train.out_of_memory.target or train.micro_batch",
    ),
    Rule(
        "idle",
        "idle",
        above=0.5,
        for_s=10 * MINUTE_S,
        action="see what the run does in its log; the GPU is paid for and does nothing",
    ),
    Rule(
        "low_use",
        "use",
        below=LOW_USE,
        for_s=15 * MINUTE_S,
        severity="info",
        action="raise train.micro_batch or loader.num_workers; drumline bench train says what the step waits for",
    ),
    Rule(
        "health_failed",
        "health_failures",
        above=0,
        severity="critical",
        action="see drumline gpus for the reasons; the GPU is left out when the run is next started",
    ),
    Rule("health_warning", "health_warnings", above=0, for_s=MINUTE_S, action="see drumline gpus for the reasons"),
    Rule(
        "xid_failed",
        "xid_failures",
        above=0,
        severity="critical",
        action="see drumline doctor for what NVIDIA's catalogue says of it",
    ),
    Rule("xid_warning", "xid_warnings", above=0, action="see drumline doctor for what NVIDIA's catalogue says of it"),
    Rule(
        "no_step",
        "overdue_s",
        severity="critical",
        scope="run",
        action="see logs/ in the run directory; a hang ends by itself after faults.hang_timeout_s",
    ),
    Rule(
        "loss_not_finite",
        "loss_not_finite",
        above=0.5,
        severity="critical",
        scope="run",
        action="lower train.lr, look at the data, or go back to an earlier checkpoint",
    ),
    Rule("loss_rising", "loss_rise", above=LOSS_RISE, scope="run", action="lower train.lr, or set train.max_norm"),
    Rule(
        "run_failed", "failed", above=0.5, severity="critical", scope="run", action="see exit.json and logs/ of the run"
    ),
    Rule(
        "disk_filling",
        "disk_room",
        below=DISK_ROOM,
        for_s=MINUTE_S,
        severity="critical",
        scope="run",
        action="make room, or keep fewer checkpoints (checkpoint.keep)",
    ),
    Rule("over_budget", "cost", scope="run", action="stop the run, or raise monitor.budget"),
    Rule(
        "driver_silent",
        "driver_age_s",
        above=MINUTE_S,
        severity="critical",
        scope="host",
        action="see the kernel log for the driver's messages; the machine may need a restart",
    ),
)


_TEXTS: Mapping[str, str] = {
    "temperature": "{value:.0f} °C are left to where it slows itself down",
    "throttling": "slowed by heat or a power brake {value:.0%} of the time",
    "memory_nearly_full": "{value:.1%} of its memory is in use",
    "idle": "nothing has run on it though a run is on it",
    "low_use": "at work only {value:.0%} of the time",
    "health_failed": "its health is fail",
    "health_warning": "its health is warn",
    "xid_failed": "it reported an XID after which it should not be used",
    "xid_warning": "it reported an XID that it has survived",
    "no_step": "its next log line has been overdue for {value:.0f} s",
    "loss_not_finite": "the training loss is NaN or infinite",
    "loss_rising": "the training loss is {value:.0%} over its best",
    "run_failed": "it has failed or was killed",
    "disk_filling": "there is room for {value:.1f} more checkpoints",
    "over_budget": "it has cost {value:.2f}",
    "driver_silent": "the driver has not answered for {value:.0f} s",
}


def rules_of(config: MonitorConfig) -> tuple[Rule, ...]:
    """The shipped rules with the config's limits, less those it disables, and its own; none where alerts are off.

    Raises ConfigError for a rule without a limit, which would never fire.
    """
    alerts = config.alerts
    if not alerts.enabled:
        return ()
    limits = {"no_step": config.no_step_s, "over_budget": config.budget}
    rules = {
        rule.name: replace(rule, above=limits.get(rule.name, rule.above), text=_TEXTS[rule.name]) for rule in _SHIPPED
    }
    # Without a budget nothing can be over it.
    kept = {name: rule for name, rule in rules.items() if rule.above is not None or rule.below is not None}
    for name in alerts.disabled:
        kept.pop(name, None)
    return tuple((kept | _own(alerts, rules)).values())


def _own(alerts: AlertsConfig, shipped: Mapping[str, Rule]) -> dict[str, Rule]:
    """The config's rules; one with a shipped one's name keeps what that says to do."""
    own = {}
    for rule in alerts.rules:
        if rule.above is None and rule.below is None:
            raise ConfigError(f"the alert {rule.name} has no limit", "give it above or below, in monitor.alerts.rules")
        known = shipped.get(rule.name)
        action = "" if known is None else known.action
        text = known.text if known is not None and known.metric == rule.metric else ""
        scope = METRICS[rule.metric].scope
        own[rule.name] = Rule(**rule.model_dump(), scope=scope, action=action, text=text)
    return own
