"""Which alerts could never be raised, or never be sent: told before a run starts, not when something happens in it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from drumline.config.monitor import AlertsConfig
from drumline.config.problem import Problem


def alert_problems(alerts: AlertsConfig) -> Iterator[Problem]:
    """Rules without a limit."""
    for index, rule in enumerate(alerts.rules):
        if rule.above is None and rule.below is None:
            key = ("monitor", "alerts", "rules", index)
            yield Problem(None, key, f"{rule.name} has no limit and would never fire", "give it above or below")


def password_problems(alerts: AlertsConfig, environ: Mapping[str, str] = os.environ) -> Iterator[Problem]:
    """A mail server's password that is not where the settings say."""
    name = None if alerts.email is None else alerts.email.password_env
    if name is not None and name not in environ:
        key = ("monitor", "alerts", "email", "password_env")
        yield Problem(
            None, key, f"the variable {name} is not set", "export it where the run is started, or leave it out"
        )
