"""Alerts that could never be raised or sent are refused before a run starts."""

from __future__ import annotations

from drumline.config.monitor import AlertsConfig
from drumline.config.schema import RunConfig
from drumline.plan.rules import config_problems
from drumline.plan.rules_monitor import password_problems

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
    alerts = AlertsConfig.model_validate({"email": EMAIL})
    [problem] = password_problems(alerts, {})
    assert str(problem) == "monitor.alerts.email.password_env: the variable MAIL_PASSWORD is not set"
    assert list(password_problems(alerts, {"MAIL_PASSWORD": "x"})) == []
    assert list(password_problems(AlertsConfig(), {})) == []
