from __future__ import annotations

import json
import re
import sys
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from drumline.cli import gpus, monitor
from drumline.errors import ConfigError
from drumline.hardware.active_verdicts import TestResult
from drumline.hardware.nvml import INIT_LIMIT_S
from drumline.monitor.machine_watch import MachineWatch
from tests.cli.simulated_command import two_gpus
from tests.cli.terminal import Terminal
from tests.simulated_nvml import NO_PERMISSION, SimulatedGpu, SimulatedInstance, SimulatedNvml


def run(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.callback()(lambda: None)
    for module in (gpus, monitor):
        module.register(app)
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "160"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> SimulatedNvml:
    """What the commands take for this machine's driver."""
    simulated = two_gpus()
    monkeypatch.setitem(sys.modules, "pynvml", simulated)
    return simulated


@pytest.mark.parametrize("arguments", [("gpus",), ("gpus", "--watch"), ("gpus", "--test"), ("monitor", "--once")])
def test_without_a_driver_every_command_says_so_in_one_line(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", SimulatedNvml([], {"nvmlInit": 12}))
    status, text = run(*arguments)
    assert status == 0
    said = [line for line in text.splitlines() if "GPU" in line]
    assert len(said) == 1 and said[0].startswith("no GPU: no NVIDIA driver")


@pytest.mark.parametrize("arguments", [("gpus", "--watch"), ("monitor", "--once")])
def test_gpus_may_take_their_time_to_start(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []
    wait = MachineWatch.wait

    def spy(watch: MachineWatch, *, rates: bool = False, limit_s: float = 0.0) -> None:
        limits.append(limit_s)
        wait(watch, rates=rates, limit_s=limit_s)

    monkeypatch.setattr(MachineWatch, "wait", spy)
    monkeypatch.setitem(sys.modules, "pynvml", SimulatedNvml([], {"nvmlInit": 12}))
    run(*arguments)
    assert limits == [INIT_LIMIT_S]


def test_the_table_has_what_one_wants_to_know(nvml: SimulatedNvml) -> None:
    status, text = run("gpus")
    lines = text.splitlines()
    assert status == 0
    assert "2 x H100 80GB HBM3" in lines[0] and "682 W" in lines[0] and "nvml 580.159.04" in lines[0]
    for title in ("GPU", "use", "SM", "tensor", "memory GiB", "power", "heat", "PCIe", "NVLink", "health", "who"):
        assert title in lines[1]
    assert re.search(r"^0 .* 92% .* 61.0/80.0 +612/700 W +61 C .* ok ", lines[2])
    assert re.search(r"^1 .* fail +nobody", lines[3])
    assert "GPU 1 fail: 2 uncorrectable ECC error(s)" in text and "nvidia-smi --gpu-reset" in text
    assert "4000000" in text


def test_json_holds_snapshot_verdicts_and_topology(nvml: SimulatedNvml) -> None:
    status, text = run("gpus", "--json")
    found = json.loads(text)
    assert status == 0
    first = found["snapshot"]["gpus"][0]
    assert (first["gpu"]["uuid"], first["gpu"]["compute_capability"], first["power_w"]) == ("GPU-aaaa", [9, 0], 612.0)
    assert first["pipes"]["sm_active"] == 0.0 and first["processes"][0]["pid"] == 4_000_000
    assert first["refused"]["fan"] == "not supported"
    assert found["verdicts"]["GPU-bbbb"]["status"] == "fail"
    assert found["verdicts"]["GPU-bbbb"]["findings"][0]["code"] == "ecc_uncorrected"
    assert [place["uuid"] for place in found["topology"]["places"]] == ["GPU-aaaa", "GPU-bbbb"]


def test_a_driver_that_refuses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", SimulatedNvml([SimulatedGpu("GPU-a")], {"nvmlInit": NO_PERMISSION}))
    assert "no permission" in run("gpus")[1]


def test_tests_tell_what_failed_and_end_with_1(nvml: SimulatedNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.gpus[1].instances = {0: SimulatedInstance("MIG-a", 1)}
    asked: list[str] = []

    def tests(uuids: list[str], on_result: Any) -> list[TestResult]:
        asked.extend(uuids)
        good = TestResult("memory", uuids[0], "ok", 70.5, "GiB", None, "written and read back")
        bad = TestResult("peer_copy", uuids[0], "fail", None, "", None, "values differ", "look at NVLink", ("MIG-a",))
        on_result(good)
        on_result(bad)
        return [good, bad]

    monkeypatch.setattr("drumline.hardware.active_tests.run_tests", tests)
    status, text = run("gpus", "--test")
    assert status == 1
    assert asked == ["GPU-aaaa", "MIG-a"]  # a GPU with MIG on is used through its instances
    assert "GPU 0 memory: ok" in text and "70.5 GiB" in text
    assert "GPU 0, 1:0 peer_copy: look at NVLink" in text
    status, text = run("gpus", "--test", "--json")
    assert status == 1 and '"others": [' in text


@pytest.mark.parametrize(
    "arguments",
    [
        ("gpus", "--watch", "--json"),
        ("gpus", "--every", "2"),
        ("monitor", "--once", "--serve", ":0"),
        ("monitor", "--once", "--every", "2"),
    ],
)
def test_what_does_not_go_together_is_refused(arguments: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError):
        run(*arguments)


def test_only_settings_of_the_monitor_are_taken() -> None:
    config = monitor.monitor_config(None, ["monitor.price_per_kwh=0.3", "monitor.every_s=0.5"])
    assert (config.price_per_kwh, config.every_s) == (0.3, 0.5)
    with pytest.raises(ConfigError, match="only the section monitor counts here"):
        monitor.monitor_config(None, ["train.lr=1"])


def test_once_shows_prices_and_units_at_work(nvml: SimulatedNvml) -> None:
    status, text = run("monitor", "--once", "--set", "monitor.price_per_gpu_hour=2.5")
    assert status == 0
    assert "5.00 an hour" in text and "tensor" in text
    assert "GPU 1 fail" in text and "Alerts" not in text


def test_watching_draws_again_until_q() -> None:
    with Terminal("two_gpus", "gpus", "--watch", "--every", "0.2") as terminal:
        terminal.shows(lambda lines: len(lines) == 24 and "92%" in lines[2])
        terminal.type("q")
        assert terminal.ends() == 0
        assert terminal.is_given_back()
