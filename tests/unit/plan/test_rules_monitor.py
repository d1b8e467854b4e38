"""Alerts that could never be raised or sent are refused before a run starts."""

from __future__ import annotations

from typing import Any

import pytest

from drumline.config.monitor import MonitorConfig
from drumline.config.schema import RunConfig
from drumline.plan.rules import config_problems
from drumline.plan.rules_monitor import secret_problems

EMAIL = {"host": "mail", "sender": "a@b.c", "recipients": ["d@e.f"], "password_env": "MAIL_PASSWORD"}


def test_a_rule_without_a_limit() -> None:
    rules = [{"name": "fine", "metric": "cost", "above": 1}, {"name": "empty", "metric": "cost"}]
    config = RunConfig.model_validate(
        {"train": {"global_batch": 4, "epochs": 1}, "monitor": {"alerts": {"rules": rules}}}
    )
    [problem] = [each for each in config_problems(config) if each.key[0] == "monitor"]
    assert str(problem) == "monitor.alerts.rules.1: empty has no limit and would never fire"
    assert problem.fix == "give it above or below"


def test_a_password_that_is_nowhere() -> None:
    alerts = {"email": EMAIL, "webhook_env": "HOOK"}
    monitor = MonitorConfig.model_validate({"alerts": alerts})
    assert [str(problem) for problem in secret_problems(monitor, "cuda", {})] == [
        "monitor.alerts.webhook_env: the variable HOOK is not set",
        "monitor.alerts.email.password_env: the variable MAIL_PASSWORD is not set",
    ]
    assert list(secret_problems(monitor, "cuda", {"MAIL_PASSWORD": "x", "HOOK": "http://h/"})) == []
    assert list(secret_problems(MonitorConfig(), "cuda", {})) == []


@pytest.mark.parametrize("settings", [{}, {"record": False}, {"record": True, "alerts": {"enabled": False}}])
def test_nobody_asks_for_what_nobody_will_use(settings: dict[str, Any]) -> None:
    alerts = {"webhook_env": "HOOK", **settings.get("alerts", {})}
    assert list(secret_problems(MonitorConfig.model_validate({**settings, "alerts": alerts}), "cpu", {})) == []


def test_a_budget_without_a_price() -> None:
    config = {"train": {"global_batch": 4, "epochs": 1}, "monitor": {"budget": 5.0}}
    [problem] = [each for each in config_problems(RunConfig.model_validate(config)) if each.key[0] == "monitor"]
    assert str(problem) == "monitor.budget: is never reached: nothing has a price"
    config["monitor"] = {"budget": 5.0, "price_per_kwh": 0.3}
    assert not [each for each in config_problems(RunConfig.model_validate(config)) if each.key[0] == "monitor"]
