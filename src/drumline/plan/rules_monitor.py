"""Which alerts could never be raised, or never be sent: told before a run starts, not when something happens in it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from drumline.config.monitor import AlertsConfig, MonitorConfig
from drumline.config.problem import Problem


def alert_problems(alerts: AlertsConfig) -> Iterator[Problem]:
    """Rules without a limit."""
    for index, rule in enumerate(alerts.rules):
        if rule.above is None and rule.below is None:
            key = ("monitor", "alerts", "rules", index)
            yield Problem(None, key, f"{rule.name} has no limit and would never fire", "give it above or below")


def budget_problems(monitor: MonitorConfig) -> Iterator[Problem]:
    """A budget where nothing has a price."""
    if monitor.budget is not None and not (monitor.price_per_kwh or monitor.price_per_gpu_hour):
        fix = "set monitor.price_per_kwh or monitor.price_per_gpu_hour, or leave it out"
        yield Problem(None, ("monitor", "budget"), "is never reached: nothing has a price", fix)


def secret_problems(monitor: MonitorConfig, device: str, environ: Mapping[str, str] = os.environ) -> Iterator[Problem]:
    """A webhook or a mail server's password that is not where the settings say, if the run will look for alerts."""
    alerts, records = monitor.alerts, monitor.record is True or (monitor.record == "auto" and device == "cuda")
    if not (alerts.enabled and records):
        return
    password = None if alerts.email is None else alerts.email.password_env
    for name, key in ((alerts.webhook_env, ("webhook_env",)), (password, ("email", "password_env"))):
        if name is not None and name not in environ:
            what, fix = f"the variable {name} is not set", "export it where the run is started, or leave it out"
            yield Problem(None, ("monitor", "alerts", *key), what, fix)
