"""Which environment independent workers get; that real ones are replaced and ended stands in tests/cli."""

from __future__ import annotations

from pathlib import Path

from drumline.launcher.independent import Crew, environment
from drumline.launcher.spec import MARK


def test_each_worker_sees_its_own_gpus_and_none_on_the_cpu() -> None:
    crew = Crew(Path("run"), "m", (), (("GPU-a", "GPU-b"), ("GPU-c",), ()))
    seen = [environment(crew, number, "id", {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0"}) for number in range(3)]
    assert [each["CUDA_VISIBLE_DEVICES"] for each in seen] == ["GPU-a,GPU-b", "GPU-c", ""]
    assert {(each[MARK], each["PATH"]) for each in seen} == {("id", "/bin")}


def test_workers_share_the_cores_unless_somebody_says_otherwise() -> None:
    crew = Crew(Path("run"), "m", (), ((),) * 1000)
    assert environment(crew, 0, "id", {})["OMP_NUM_THREADS"] == "1"
    assert environment(crew, 0, "id", {"OMP_NUM_THREADS": "7"})["OMP_NUM_THREADS"] == "7"


def test_logs_and_records_are_a_seats_own() -> None:
    crew = Crew(Path("run"), "m", (), ((), ()))
    assert crew.log_of(1) == Path("run/logs/worker_1.log")
    assert crew.error_of(0) == Path("run/logs/worker_0.error.json")
