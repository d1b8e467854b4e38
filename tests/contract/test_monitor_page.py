"""The page about monitoring lists every value that an alert can look at, and every rule that is shipped."""

from __future__ import annotations

from pathlib import Path

import yaml

from drumline.config.load import config_from_mapping
from drumline.config.monitor import MonitorConfig
from drumline.monitor.alert_rules import METRICS, rules_of
from tests.contract.doc_blocks import find_blocks

PAGE = (Path(__file__).parents[2] / "docs" / "monitor.md").read_text(encoding="utf-8")
SETTINGS = {"no_step": "`overdue_s` above `monitor.no_step_s` (900)", "over_budget": "`cost` above `monitor.budget`"}


def test_every_value_is_described_as_the_code_describes_it() -> None:
    subjects = {"gpu": "GPU", "run": "run", "host": "machine"}
    rows = [f"| `{name}` | {subjects[metric.scope]} | {metric.help} |" for name, metric in METRICS.items()]
    assert [row for row in rows if row not in PAGE] == []


def test_its_settings_can_be_meant() -> None:
    blocks = [block.text for block in find_blocks(PAGE) if block.language == "yaml"]
    configs = [config_from_mapping(yaml.safe_load(block), "docs/monitor.md") for block in blocks]
    assert configs[0].hardware.count == 4 and configs[1].monitor.budget == 500
    assert {rule.name for rule in rules_of(configs[1].monitor)} >= {"hot_memory", "idle", "over_budget"}


def test_every_rule_is_there_with_its_limit() -> None:
    rows = []
    for rule in rules_of(MonitorConfig(budget=1.0)):
        condition = SETTINGS.get(rule.name, f"`{rule.metric}` {rule.limit()}")
        rows.append(f"| `{rule.name}` | {condition} | {rule.severity} |")
    assert [row for row in rows if row not in PAGE] == []
