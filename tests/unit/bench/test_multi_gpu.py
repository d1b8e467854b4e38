"""benchmark_multi_gpu_performance on a machine without GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from drumline import TrainConfig, benchmark_multi_gpu_performance
from drumline.errors import ConfigError
from tests.unit.engine.training import assert_same, make_model, rows, squared_error, state_of


def test_it_returns_times_and_leaves_model_and_folder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = make_model()
    before = state_of(model)
    found = benchmark_multi_gpu_performance(model, rows(), TrainConfig(global_batch=4, max_steps=8), loss=squared_error)
    assert found["updates"] == 8
    assert found["training_time"] > 0 and found["samples_per_second"] > 0
    parts = found["forward_time"], found["backward_time"], found["optimizer_time"]
    assert all(part > 0 for part in parts)
    assert found["gpu_utilization"]["gpu_info"] == {"count": 0, "name": "cpu"}
    assert found["gpu_utilization"]["memory_usage"]["process_0"]["peak_resident_bytes"] > 0
    assert_same(state_of(model), before)
    assert list(tmp_path.iterdir()) == []


def test_a_trainer_refuses_as_it_always_does() -> None:
    with pytest.raises(ConfigError, match="loss"):
        benchmark_multi_gpu_performance(make_model(), rows(), TrainConfig(global_batch=4, epochs=1))
