from __future__ import annotations

import json
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import drumline
from drumline.cli.doctor import register
from drumline.hardware.doctor import environment_facts
from drumline.hardware.torch_child import ask_torch
from tests.simulated_nvml import SimulatedGpu, SimulatedNvml, SimulatedProcess


def run(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    result = CliRunner().invoke(app, ["doctor", *arguments])
    return result.exit_code, result.output


def simulate(monkeypatch: pytest.MonkeyPatch, second: SimulatedGpu | None = None, **torch: Any) -> None:
    """Let the command find two simulated GPUs, one of them hidden, and a torch that says what the test wants."""
    answer: dict[str, Any] = {
        "version": "2.11.0+cu130",
        "cuda": "13.0",
        "cudnn": 91900,
        "nccl": "2.28.9",
        "backends": ["nccl", "gloo"],
        "arch_list": ["sm_90"],
        "devices": [{"uuid": "bb", "name": "NVIDIA H100 80GB HBM3"}],
    } | torch
    nvml = SimulatedNvml([SimulatedGpu("GPU-aa"), second or SimulatedGpu("GPU-bb")])
    environ = {"CUDA_VISIBLE_DEVICES": "1", "SLURM_JOB_ID": "17", "HF_TOKEN": "hf_abcdefghijklmnop"}

    def found() -> dict[str, Any]:
        facts = environment_facts(environ=environ, nvml=nvml, torch_facts=lambda: answer)
        # This host's own installation and limits are no part of these tests.
        facts["packages"] = {"torch": "2.11.0+cu130", "transformers": None}
        facts["limits"]["open_files"] = {"soft": 256, "hard": 256}
        return facts

    monkeypatch.setattr("drumline.hardware.doctor.environment_facts", found)


def test_the_report_shows_facts_checks_and_fixes(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch)
    status, text = run()
    assert status == 0
    for words in (
        f"drumline {drumline.__version__}, Python",
        "torch 2.11.0+cu130",
        "torch's CUDA 13.0, cuDNN 91900, NCCL 2.28.9, backends: nccl, gloo",
        "CPU cores",
        "0: NVIDIA H100 80GB HBM3, 80.0 GiB, compute capability 9.0, GPU-aa (hidden)",
        "GPU-bb (cuda:0)",
        "CUDA_VISIBLE_DEVICES=1",
        "SLURM_JOB_ID=17",
        "ok   gpus: 1 usable (nvml 580.159.04; 1 of 2 GPUs by CUDA_VISIBLE_DEVICES)",
        "warn open files: at most 256",
        "fix: raise nofile",
    ):
        assert words in text
    assert "transformers" not in text
    assert "hf_abc" not in text and "HF_TOKEN" not in text


def test_health_links_and_processes_of_the_gpus_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    sick = SimulatedGpu("GPU-bb", ecc={(1, 0): 2, (1, 1): 2}, processes=[SimulatedProcess(4_000_001)])
    simulate(monkeypatch, sick)
    status, text = run()
    assert status == 1
    for words in (
        "Links between GPUs\n",
        "GPU 0  -           NVLink x18  0",
        "fail gpu health: GPU 1: 2 uncorrectable ECC error(s) since the driver was loaded",
        "fix: reset the GPU",
        "warn gpu processes: GPU 1 is taken: process 4000001, which cannot be seen from here, computes on it",
        "ok   peak rates: NVIDIA H100 80GB HBM3: NVIDIA H100",
    ):
        assert words in text


def test_a_failed_check_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch, devices={"error": "RuntimeError: The NVIDIA driver on your system is too old [12020]"})
    status, text = run()
    assert status == 1
    # Square brackets are text here, not the terminal's markup.
    assert "fail cuda: CUDA does not start: RuntimeError: The NVIDIA driver on your system is too old [12020]" in text


def test_json_holds_facts_and_checks_and_the_same_status(monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(monkeypatch, backends=["gloo"], cuda=None)
    status, text = run("--json")
    document = json.loads(text)
    assert status == 1
    assert document["facts"]["gpus"][1]["cuda_index"] == 0
    failed = [check for check in document["checks"] if check["status"] == "fail"]
    assert [check["name"] for check in failed] == ["torch build"]
    assert failed[0]["fix"]


def test_the_whole_command_on_this_machine() -> None:
    """The one test that asks the real torch, in its child."""
    status, text = run("--json")
    document = json.loads(text)
    torch = document["facts"]["torch"]
    assert torch["version"].startswith(document["facts"]["packages"]["torch"].split("+")[0])
    assert "gloo" in torch["backends"]
    assert isinstance(torch["arch_list"], list)
    assert status == int(any(check["status"] == "fail" for check in document["checks"]))


def test_the_childs_last_line_is_the_answer() -> None:
    assert ask_torch(script="print('a plugin says hello')\nprint('{\"version\": \"2.11.0\"}')") == {"version": "2.11.0"}


def test_a_child_that_fails_is_a_value_with_its_last_words() -> None:
    answer = ask_torch(script="raise ImportError('libcudart.so.13: cannot open shared object file')")
    assert "exit status 1" in answer["error"]
    assert "libcudart.so.13" in answer["error"]


def test_a_child_that_is_killed_without_a_word_is_a_value() -> None:
    answer = ask_torch(script="import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    assert answer == {"error": "torch does not start (exit status -11): no message"}


def test_a_child_that_hangs_is_ended_at_its_limit() -> None:
    answer = ask_torch(limit_s=0.1, script="import time; time.sleep(60)")
    assert answer == {"error": "torch gave no answer within 0.1 s"}


def test_an_answer_that_is_none_is_a_value() -> None:
    assert "wrote no answer" in ask_torch(script="print('hello')")["error"]
    assert "wrote no answer" in ask_torch(script="pass")["error"]
