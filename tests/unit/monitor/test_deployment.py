"""What deploy/monitoring/ ships says what the package says: metrics that exist, alerts as a run raises them itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from drumline.config.monitor import MonitorConfig
from drumline.monitor import alert_facts
from drumline.monitor.alert_rules import rules_of
from drumline.monitor.alerts import Rule
from drumline.monitor.exporter import DEFAULT_PORT
from drumline.monitor.gpu_metrics import GPU_ROWS, HEALTH_ROWS, XID_ROWS
from drumline.monitor.metrics_table import SOURCE_ROWS, WATCH_ROWS, Row
from drumline.monitor.run_metrics import RUN_ROWS

FOLDER = Path(__file__).parents[3] / "deploy" / "monitoring"
ROWS: tuple[Row[Any], ...] = (*WATCH_ROWS, *SOURCE_ROWS, *GPU_ROWS, *HEALTH_ROWS, *XID_ROWS, *RUN_ROWS)
NAMES = {row.name + ("_total" if row.kind == "counter" else "") for row in ROWS}
STATES = {"loss_not_finite", "run_failed"}
"""Rules whose value Prometheus has as a state."""
OF_THE_RUN = {"disk_filling", "over_budget"}
"""Rules that only the run's own watcher can judge; Prometheus passes on what it says."""


def document(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def rules(name: str) -> list[dict[str, Any]]:
    return [rule for group in document(name)["groups"] for rule in group["rules"]]


ALERTS = {rule["labels"].get("rule", rule["alert"]): rule for rule in rules("alert_rules.yml")}
OWN = {rule.name: rule for rule in rules_of(MonitorConfig(budget=1.0))}
PANELS: list[dict[str, Any]] = json.loads((FOLDER / "grafana/dashboards/drumline.json").read_text())["panels"]


def seconds(duration: str) -> float:
    return float(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]


def expressions() -> Iterator[str]:
    for rule in (*rules("recording_rules.yml"), *rules("alert_rules.yml")):
        yield rule["expr"]
    for panel in PANELS:
        yield from (target["expr"] for target in panel.get("targets", ()))


def test_each_alert_of_a_run_is_there_under_its_name_and_the_rest_are_prometheus_own_matter() -> None:
    assert ALERTS.keys() - OWN.keys() == {
        "DrumlineExporterDown",
        "DrumlineGpuLeftOut",
        "DrumlineGpusUnreadable",
        "DrumlineSourceOld",
    }
    assert OWN.keys() <= ALERTS.keys()
    for name in OWN:
        assert ALERTS[name]["alert"] == "Drumline" + name.title().replace("_", "")


@pytest.mark.parametrize("rule", OWN.values(), ids=OWN.keys())
def test_both_mean_the_same(rule: Rule) -> None:
    alert = ALERTS[rule.name]
    assert alert["labels"]["severity"] == rule.severity
    assert alert["annotations"]["action"] == rule.action
    if rule.name in OF_THE_RUN:
        assert f'drumline_run_alert{{rule="{rule.name}"}}' in alert["expr"] and "for" not in alert
        return
    assert seconds(alert.get("for", "0s")) == rule.for_s
    if rule.name in STATES:
        return
    found = re.search(r" ([<>]) ([\d.]+)", alert["expr"])
    assert found
    limit = ("<", rule.below) if rule.above is None else (">", rule.above)
    # Prometheus looks at the use itself, of which the run's own rule looks at whether it is none.
    assert (found[1], float(found[2])) == (("<", alert_facts.IDLE_BELOW) if rule.name == "idle" else limit)


def test_findings_that_have_alerts_of_their_own_raise_no_second_one() -> None:
    watched = "|".join(f"{beginning}.*" for beginning in alert_facts._WATCHED_OTHERWISE)
    for name in ("health_failed", "health_warning"):
        assert f'code!~"{watched}|' in ALERTS[name]["expr"]
    assert f'code=~"{"|".join(alert_facts._FOLLOWS_XID)}"' in ALERTS["health_failed"]["expr"]
    assert f"|{'|'.join(alert_facts._STANDING)}|" in ALERTS["health_warning"]["expr"]
    of_warnings = [code for code in ("recovery_action", "nvlink_errors") if code in alert_facts._FOLLOWS_XID]
    assert f'code=~"{"|".join(of_warnings)}"' in ALERTS["health_warning"]["expr"]


def test_every_name_in_an_expression_is_a_metric_or_recorded() -> None:
    recorded = {rule["record"] for rule in rules("recording_rules.yml")}
    for text in expressions():
        bare = re.sub(r'"[^"]*"', "", text)
        used = set(re.findall(r"(?:\w+:)?drumline_\w+(?::\w+)?", bare))
        assert used <= NAMES | recorded, f"{used - NAMES - recorded} in {text}"


def test_the_dashboard_shows_every_metric_but_a_few() -> None:
    shown = " ".join(expressions())
    hidden = {name for name in NAMES if not re.search(rf"\b{name}\b", shown)}
    assert hidden == {
        "drumline_source_info",
        "drumline_run_info",
        "drumline_run_processes",
        "drumline_sample_overruns_total",
        "drumline_driver_stuck",
        "drumline_gpu_fan_speed_ratio",  # GPUs of servers have none
    }


def test_the_page_lists_every_metric_with_what_it_is() -> None:
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(drumline_\w+)` \| (.*) \| (.*) \|$", page, re.MULTILINE)
    told = [(row.name + ("_total" if row.kind == "counter" else ""), ", ".join(row.labels), row.help) for row in ROWS]
    assert listed == told


def test_panels_have_a_place_of_their_own() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    assert [panel["title"] for panel in PANELS if panel["type"] == "row"] == ["Fleet", "One GPU", "One run"]
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        x, y, w, h = (panel["gridPos"][key] for key in "xywh")
        cells = {(column, line) for column in range(x, x + w) for line in range(y, y + h)}
        assert x + w <= 24 and not cells & taken, panel["title"]
        taken |= cells


def test_the_target_is_where_drumline_serves() -> None:
    assert document("targets.yml") == [{"targets": [f"127.0.0.1:{DEFAULT_PORT}"]}]


def test_compose_mounts_what_is_there() -> None:
    services = document("compose.yaml")["services"]
    mounts = [volume.split(":") for service in services.values() for volume in service["volumes"]]
    ours = {source: target for source, target, *_ in mounts if source.startswith(".")}
    assert all((FOLDER / source).is_dir() for source in ours)
    (provider,) = document("grafana/provisioning/dashboards/drumline.yaml")["providers"]
    assert ours["./grafana/dashboards"] == provider["options"]["path"]
    (source,) = document("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert f"--web.listen-address={source['url'].removeprefix('http://')}" in services["prometheus"]["command"]
    assert source["jsonData"]["timeInterval"] == document("prometheus.yml")["global"]["scrape_interval"]
