"""TensorBoard's files, read back with TensorBoard's own reader."""

from __future__ import annotations

import builtins
import math
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from drumline.errors import MissingExtra
from drumline.plan.record import Plan
from drumline.track.tensorboard import TensorBoardTracker, curves

PLAN = Plan("ddp", "cpu", (), 2, 2, "gloo", 64, 32, 1, "fp32", 0, None, None, {"kind": "two processes"})
TRAIN = {"kind": "train", "step": 10, "epoch": 0, "loss": 2.5, "unit": "tokens", "mfu": None}


def read(folder: Path) -> Any:
    return EventAccumulator(str(folder)).Reload()


def test_records_are_scalars_at_their_step_and_lists_a_curve_a_rank(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(tmp_path / "tb")
    threads = threading.active_count()
    tracker.start(PLAN, 400)
    tracker.log({**TRAIN, "memory_peak_bytes": [1.0, 2.0], "critic/loss": math.nan})
    tracker.log({"kind": "eval", "step": 10, "loss": 2.25, "accuracy": 0.5, "count": 9})
    found = read(tmp_path / "tb")  # while the run goes on
    tracker.log({**TRAIN, "step": 20, "loss": 1e300})
    assert threading.active_count() == threads
    tracker.close()
    tracker.close()
    assert set(found.Tags()["scalars"]) == {
        *("train/epoch", "train/loss", "train/critic/loss"),
        *("train/memory_peak_bytes/rank_0", "train/memory_peak_bytes/rank_1"),
        *("eval/loss", "eval/accuracy", "eval/count"),
    }
    assert [(point.step, point.value) for point in found.Scalars("train/memory_peak_bytes/rank_1")] == [(10, 2.0)]
    assert math.isnan(found.Scalars("train/critic/loss")[0].value)
    assert found.Scalars("eval/loss")[0].value == 2.25
    after = [(point.step, point.value) for point in read(tmp_path / "tb").Scalars("train/loss")]
    assert after == [(10, 2.5), (20, math.inf)]  # TensorBoard's scalars have 32 bits


def test_plan_and_settings_are_text_and_hyper_parameters(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("name: moby\ntrain: {lr: 0.5, max_norm: null}\nparts: [{weight: 2}]\nids: [1, 2]\n")
    tracker = TensorBoardTracker(tmp_path / "tb", config)
    tracker.start(PLAN, 400)
    tracker.close()
    found = read(tmp_path / "tb")
    (plan,) = found.Tensors("plan/text_summary")[0].tensor_proto.string_val
    assert "| kind | ddp | two processes |\n| device | cpu |  |" in plan.decode()
    (text,) = found.Tensors("config/text_summary")[0].tensor_proto.string_val
    assert text.decode().startswith("    name: moby\n    train:")
    content = found.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    values = HParamsPluginData.FromString(content).session_start_info.hparams
    assert values["train.lr"].number_value == 0.5
    assert values["train.max_norm"].string_value == "none"
    assert values["parts[0].weight"].number_value == 2
    assert values["ids"].string_value == "1, 2"
    assert (values["plan.world_size"].number_value, values["plan.total_steps"].number_value) == (2, 400)


def test_a_resumed_run_makes_void_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    for resumed, steps in ((None, (10, 20, 30)), (20, (30, 40))):
        tracker = TensorBoardTracker(tmp_path / "tb", resumed=resumed)
        tracker.start(PLAN, 400)
        for step in steps:
            tracker.log({**TRAIN, "step": step, "loss": step + (resumed or 0)})
        tracker.close()
    points = [(point.step, point.value) for point in read(tmp_path / "tb").Scalars("train/loss")]
    assert points == [(10, 10), (20, 20), (30, 50), (40, 60)]


def test_what_is_no_number_is_no_curve() -> None:
    record = {"kind": "eval", "step": 1, "time": 2.0, "name": "x", "ok": True, "none": None, "f1": [0.5, None, 1]}
    assert dict(curves(record)) == {"f1/rank_0": 0.5, "f1/rank_2": 1.0}


def test_nothing_is_written_before_the_start(tmp_path: Path) -> None:
    TensorBoardTracker(tmp_path / "tb").close()
    assert not (tmp_path / "tb").exists()


def test_without_tensorboard_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real_import = builtins.__import__

    def no_tensorboard(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "tensorboard":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real_import(name, *rest)

    monkeypatch.setattr(builtins, "__import__", no_tensorboard)
    with pytest.raises(MissingExtra, match=r"pip install 'drumline\[track\]'"):
        TensorBoardTracker(tmp_path)


FULL_DISK = """
import resource, signal, sys, threading
from pathlib import Path
from drumline.plan.record import Plan
from drumline.track.guarded import GuardedTracker
from drumline.track.tensorboard import TensorBoardTracker

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
tracker = GuardedTracker(TensorBoardTracker(Path(sys.argv[1])), lambda name, **facts: print(name, facts["message"]))
tracker.start(Plan("single", "cpu", (), 1, 1, "none", 4, 4, 1, "fp32", 0, 10, 5), 10)
for step in range(1, 200):
    tracker.log({"kind": "train", "step": step, "loss": 1.0})
tracker.close()
print("done", threading.active_count())
"""


def test_a_full_disk_costs_the_curves_and_nothing_else(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    told, done = result.stdout.splitlines()
    assert told.startswith("tracker_failed TensorBoardTracker.log: OSError: [Errno 27]")
    assert (result.returncode, done) == (0, "done 1")
    assert "Traceback" not in result.stderr
    steps = [point.step for point in read(tmp_path).Scalars("train/loss")]
    assert steps == list(range(1, len(steps) + 1))
    assert 10 < len(steps) < 199
