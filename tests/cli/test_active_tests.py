"""Active tests as `drumline gpus --test` runs them, in children; on the CPU, with its values compared for real."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from drumline.hardware import claims
from drumline.hardware.active_tests import EACH_GPU, Setup, run_tests
from drumline.hardware.active_verdicts import TestResult
from drumline.hardware.claims import Claims
from tests.simulated_nvml import SimulatedGpu, SimulatedNvml, SimulatedProcess

SMALL = {"memory_bytes": 1 << 20, "copy_bytes": 1 << 16, "product": 64, "seconds": 0.001}


def test_two_devices() -> None:
    seen: list[TestResult] = []
    results = run_tests(["GPU-a", "GPU-b"], 120, on_result=seen.append, setup=Setup("cpu", SMALL))
    assert len(seen) == len(results) == 2 * 3 + 2 * 2 + 2 + 1
    assert not [result for result in results if result.status == "fail"]
    assert {result.uuid for result in results} == {"GPU-a", "GPU-b"}
    last = results[-1]
    assert (last.name, last.uuid, last.others) == ("all_reduce", "GPU-a", ("GPU-b",))


def scripted(*lines: str) -> Setup:
    """A child that does this in the tests' place."""
    start = "import json, os, sys, time\nspec = json.loads(sys.argv[1])\n"
    write = "def write(**record): print(json.dumps(record), flush=True)\n"
    return Setup("cpu", program=("-c", start + write + "\n".join(lines)))


def told(results: list[TestResult]) -> list[tuple[str, str, str]]:
    return [(result.name, result.status, result.message) for result in results]


def test_a_test_that_hangs_is_a_failed_one_and_its_process_is_gone(tmp_path: Path) -> None:
    setup = scripted(
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid()))",
        "write(begin='memory', gpus=[0])",
        "write(test='memory', gpus=[0], facts={'bytes': 8 << 30, 'wrong': {}})",
        "write(begin='device_copy', gpus=[0])",
        "time.sleep(60)",
    )
    began = time.monotonic()
    results = run_tests(["GPU-a"], 1.0, setup=setup)
    assert time.monotonic() - began < 10
    assert told(results) == [
        ("memory", "ok", "8.0 GiB written and read back"),
        ("device_copy", "fail", "gave no answer in time"),
        ("product", "warn", "not run: device_copy did not end"),
    ]
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


def test_a_test_that_crashes_is_a_failed_one_with_the_last_words() -> None:
    setup = scripted(
        "write(begin='memory', gpus=[0])", "print('Xid 79', file=sys.stderr, flush=True)", "os.kill(os.getpid(), 11)"
    )
    results = run_tests(["GPU-a"], 60, setup=setup)
    assert told(results)[0] == ("memory", "fail", "its process ended with status -11: Xid 79")
    assert [result.status for result in results] == ["fail"] + ["warn"] * (len(EACH_GPU) - 1)


def test_a_gpu_that_failed_alone_is_left_out_of_the_tests_of_several() -> None:
    setup = scripted(
        "if spec['tests'][0] == 'memory':",
        "    sys.exit('no CUDA' if os.environ['CUDA_VISIBLE_DEVICES'] == 'GPU-a' else 0)",
        "write(test='host_copy', gpus=[0], error=f'{spec[\"num_gpus\"]} GPU')",
    )
    # The CPU hides GPUs from a child; a kind that no program knows does not.
    setup = Setup("scripted", program=setup.program, nvml=SimulatedNvml([]))
    results = run_tests(["GPU-a", "GPU-b"], 60, setup=setup)
    assert told(results)[0] == ("start", "fail", "its process ended with status 1: no CUDA")
    assert (results[-1].name, results[-1].uuid, results[-1].message) == ("host_copy", "GPU-b", "1 GPU")


def test_mig_instances_are_tested_in_processes_of_their_own(tmp_path: Path) -> None:
    setup = scripted(
        f"with open({str(tmp_path / 'seen')!r}, 'a') as file:",
        "    file.write(f\"{spec['tests'][0]} {os.environ['CUDA_VISIBLE_DEVICES']}\\n\")",
    )
    setup = Setup("scripted", program=setup.program, nvml=SimulatedNvml([]))
    assert run_tests(["MIG-1", "GPU-a", "MIG-2", "GPU-b"], 60, setup=setup) == []
    seen = (tmp_path / "seen").read_text().splitlines()
    assert sorted(seen[:4]) == ["memory GPU-a", "memory GPU-b", "memory MIG-1", "memory MIG-2"]
    assert seen[4:] == ["host_copy MIG-1", "host_copy MIG-2", "host_copy GPU-a,GPU-b"]


def test_a_gpu_on_which_a_stranger_computes_is_not_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number is beyond the kernel's largest: nobody here can have it."""
    monkeypatch.setattr(claims, "FOLDER", tmp_path)
    nvml = SimulatedNvml([SimulatedGpu("GPU-a", processes=[SimulatedProcess(999_999_999)])])
    results = run_tests(["GPU-a"], 60, setup=Setup(program=("-c", "raise SystemExit('started')"), nvml=nvml))
    ((name, status, message),) = told(results)
    assert (name, status) == ("free", "warn")
    assert message.startswith("not tested: taken: process 999999999, which cannot be seen from here, computes on it")


def test_what_a_launch_has_claimed_is_not_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "FOLDER", tmp_path)
    setup = Setup(program=("-c", "raise SystemExit('started')"), nvml=SimulatedNvml([SimulatedGpu("GPU-a")]))
    with Claims("runs/moby") as launch:
        launch.take(["GPU-a"])
        ((name, status, message),) = told(run_tests(["GPU-a"], 60, setup=setup))
    assert (name, status) == ("free", "warn")
    assert message.endswith("for runs/moby")
