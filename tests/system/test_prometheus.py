"""A real Prometheus scrapes `drumline monitor --serve` on a simulated machine, by what deploy/monitoring/ ships."""

from __future__ import annotations

import gc
import json
import math
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from drumline.monitor.prometheus import expose
from drumline.rundir import LineWriter, RunDir, write_json
from tests.system.simulated_machine import SICK, SOUND
from tests.unit.monitor.snapshots import gpu, snapshot
from tests.unit.monitor.whole_machine import Machine, busy, run

pytestmark = pytest.mark.system

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "deploy" / "monitoring"
DASHBOARD = json.loads((SHIPPED / "grafana/dashboards/drumline.json").read_text(encoding="utf-8"))
VARIABLES = {"$instance": ".+", "$gpu": SICK, "$run": "small", "$__rate_interval": "10s", "$__range": "1m"}
PATIENCE_S = 60.0


def program(name: str) -> str:
    """Its path; Debian's package prometheus has both Prometheus and promtool."""
    found = shutil.which(name)
    assert found, f"{name} is missing. On Debian and Ubuntu: apt-get install --no-install-recommends prometheus"
    return found


def promtool(*arguments: str, text: str | None = None) -> str:
    """What it says; fails unless all is well with what it was given."""
    ended = subprocess.run(
        [program("promtool"), *arguments], input=text, capture_output=True, text=True, timeout=100, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def until(condition: Callable[[], Any], what: str) -> Any:
    """Its value as soon as it is true."""
    limit = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert time.monotonic() < limit, f"still not so after {PATIENCE_S} s: {what}"
        time.sleep(0.1)
    return value


def address_in(lines: IO[str], pattern: str) -> str:
    """What a program that has started says of where it listens."""
    seen = []
    for line in lines:
        seen.append(line)
        if found := re.search(pattern, line):
            return found[1]
    raise AssertionError("".join(seen))


@dataclass
class Site:
    """A machine that serves metrics and a Prometheus that scrapes them."""

    metrics: str
    prometheus: str
    changes: int

    def change(self, **wanted: Any) -> None:
        """Have something happen to the machine, see simulated_machine.change."""
        os.write(self.changes, json.dumps(wanted).encode() + b"\n")

    def api(self, path: str, **arguments: str) -> Any:
        """The data of an answer of Prometheus' HTTP API."""
        answer = json.loads(get(f"{self.prometheus}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"))
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that an expression comes to now."""
        series: list[dict[str, Any]] = self.api("query", query=expression)["result"]
        return series

    def alerts(self, name: str) -> dict[str, str]:
        """State by GPU of the alert of this name."""
        alerts = self.api("alerts")["alerts"]
        return {each["labels"]["gpu"]: each["state"] for each in alerts if each["labels"]["alertname"] == name}


def write_run(folder: Path) -> None:
    """The directory of a run that goes on: this process has it."""
    run = RunDir.create(folder / "small")
    write_json(run.plan, {"steps": 1000, "gpus": [SOUND, SICK], "world_size": 2})
    (run.logs / "run.lock").write_text(f"process {os.getpid()} on {socket.gethostname()}")
    write_json(run.logs / f"spent_{socket.gethostname()}.json", {"energy_j": 3e5, "gpu_s": 600.0, "cost": 1.25})
    metrics, events = LineWriter(run.metrics), LineWriter(run.events)
    for step in range(10, 310, 10):
        line = {"step": step, "epoch": 0, "elapsed_s": step / 2, "loss": 9 - step / 100, "mfu": 0.4}
        metrics.write({"kind": "train", **line, "units_per_s": 5e4, "unit": "tokens"})
    metrics.write({"kind": "eval", "step": 300, "epoch": 0, "elapsed_s": 150.0, "loss": 6.2})
    events.write({"event": "start", "world_size": 2})
    events.write({"event": "alert", "rule": "low_use", "subject": SICK, "state": "firing"})
    metrics.close()
    events.close()


def write_rules(folder: Path, target: str) -> None:
    """What is shipped, with this target, and minutes made seconds: what holds does so within the test's time."""
    for file in SHIPPED.glob("*.yml"):
        text = file.read_text(encoding="utf-8")
        text = re.sub(r"\b(for: |\[)(\d+)m\b", lambda found: f"{found[1]}{3 * int(found[2])}s", text)
        text = re.sub(r"(_interval: )15s", r"\g<1>1s", text)
        (folder / file.name).write_text(text.replace("127.0.0.1:9745", target), encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    (folder / "runs").mkdir()
    write_run(folder / "runs")
    read, write = os.pipe()
    arguments = ("monitor", "--serve", "127.0.0.1:0", "--runs", str(folder / "runs"), "--set", "monitor.every_s=0.5")
    serving = subprocess.Popen(
        [sys.executable, "-m", "tests.system.simulated_machine", str(read), *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        pass_fds=(read,),
    )
    os.close(read)
    scraping = None
    try:
        assert serving.stdout is not None
        metrics = address_in(serving.stdout, r"(http://\S+/metrics)")
        write_rules(folder, urllib.parse.urlsplit(metrics).netloc)
        storage = ("--storage.tsdb.path", str(folder / "data"), "--web.listen-address", "127.0.0.1:0")
        scraping = subprocess.Popen(
            [program("prometheus"), "--config.file", str(folder / "prometheus.yml"), *storage],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert scraping.stderr is not None
        address = address_in(scraping.stderr, r'"Listening on" address=(\S+)')
        address_in(scraping.stderr, "(Server is ready)")
        site = Site(metrics, f"http://{address}", write)
        until(lambda: site.query("count_over_time(up[1m]) > 2"), "three scrapes")
        site.change(xid=63)
        until(lambda: site.query("drumline_gpu_xids_by_code_total"), "the XID is counted")
        yield site
    finally:
        os.close(write)
        for process in (scraping, serving):
            if process is not None:
                process.terminate()
                process.communicate(timeout=20)


def test_promtool_finds_nothing_wrong_with_the_metrics(site: Site) -> None:
    assert promtool("check", "metrics", text=get(site.metrics)) == ""


def test_promtool_finds_nothing_wrong_with_rules_and_configuration() -> None:
    assert "FAILED" not in promtool("check", "config", str(SHIPPED / "prometheus.yml"))
    assert "SUCCESS" in promtool("test", "rules", str(SHIPPED / "rules_test.yml"))


def test_the_target_is_up_and_every_rule_is_evaluated(site: Site) -> None:
    (target,) = site.api("targets")["activeTargets"]
    assert (target["health"], target["lastError"]) == ("up", "")
    groups = site.api("rules")["groups"]
    wrong = [(rule["name"], rule["lastError"]) for group in groups for rule in group["rules"] if rule.get("lastError")]
    assert groups and not wrong


def expressions() -> dict[str, str]:
    """Every expression of the dashboard by panel and letter, its variables filled in."""
    found = {}
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"]
            for name, value in VARIABLES.items():
                text = text.replace(name, value)
            assert "$" not in text, text
            found[f"{panel['id']} {panel['title']} {target['refId']}"] = text
    return found


def test_every_expression_of_the_dashboard_returns_data(site: Site) -> None:
    def without_data() -> list[str]:
        answers = {name: site.query(text) for name, text in expressions().items()}
        return [
            name for name, series in answers.items() if not any(math.isfinite(float(s["value"][1])) for s in series)
        ]

    # Rates and shares of ranges need a few scrapes, and the alert that the first panels show needs to be firing.
    until(lambda: not without_data(), "all have data")
    for name in ("instance", "gpu", "run"):
        (variable,) = (each for each in DASHBOARD["templating"]["list"] if each["name"] == name)
        found = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
        assert found
        values = {each["metric"][found[2]] for each in site.query(found[1].replace("$instance", ".+"))}
        assert VARIABLES[f"${name}"] in values or name == "instance"
        assert values


def test_a_sick_gpu_fires_and_the_sound_one_does_not(site: Site) -> None:
    assert until(lambda: site.alerts("DrumlineHealthFailed"), "health alert") == {SICK: "firing"}
    assert until(lambda: site.alerts("DrumlineXidWarning"), "XID alert") == {SICK: "firing"}
    (alert,) = (each for each in site.api("alerts")["alerts"] if each["labels"]["alertname"] == "DrumlineHealthFailed")
    assert f"NVIDIA H100 80GB HBM3 {SICK} is not fit to be used" in alert["annotations"]["summary"]


def test_an_alert_goes_from_pending_to_firing_to_resolved(site: Site) -> None:
    name = "DrumlineTemperature"
    assert site.alerts(name) == {}
    site.change(temperature_c=120)
    until(lambda: site.alerts(name) == {SOUND: "firing"}, "it fires")
    site.change(temperature_c=40)
    until(lambda: not site.alerts(name), "it is resolved")
    first = {}
    for series in site.query(f'ALERTS{{alertname="{name}"}}[5m]'):
        first[series["metric"]["alertstate"]] = series["values"][0][0]
    assert sorted(first, key=lambda state: first[state]) == ["pending", "firing"]


def test_scrapes_are_answered_while_the_driver_hangs_with_a_growing_age(site: Site) -> None:
    """The last test of this machine: its driver never answers again."""
    site.change(hang=True)
    ages = until(lambda: site.query("drumline_sample_age_seconds > 6"), "the age grows")
    assert len(ages) == 1
    until(lambda: site.query("drumline_driver_stuck == 1"), "it is told as stuck")
    assert len(site.query("drumline_gpu_power_watts")) == 2, "the last values are still told"
    (target,) = site.api("targets")["activeTargets"]
    assert target["health"] == "up" and target["lastScrapeDuration"] < 5


def test_a_day_leaves_nothing_behind() -> None:
    """24 hours on a clock of its own: a look each 5 s, a scrape a minute, instances and runs that come and go."""
    machine = Machine()
    process = psutil.Process()

    def hours(number: int) -> tuple[int, int, int, int]:
        body = b""
        for second in range(0, number * 3600, 5):
            machine.now += 5
            if second % 3600 == 0:
                instance = replace(busy(1), gpu=replace(gpu(1), uuid=f"MIG-{machine.now}", parent="GPU-1"))
                machine.snapshot = snapshot(busy(0), instance)
                machine.runs = [run(f"run-{machine.now}")]
            machine.sampler.look()
            if second % 60 == 0:
                body, _ = expose(machine.collector)
        gc.collect()
        return process.memory_info().rss, process.num_fds(), process.num_threads(), body.count(b"\n")

    before = hours(6)
    after = hours(18)
    assert after[1:] == before[1:], "files, threads, lines"
    grown = after[0] - before[0]
    # The history keeps the newest 256 GPUs and instances whole; 18 more of them are 18 MB.
    assert grown < 25 << 20, f"{grown} bytes"
