"""The three calls of the ads service's document, by curl: a real model is trained to the end, and loads."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import transformers

from tests.cli.real_command import COMMAND, usual_port

pytestmark = pytest.mark.system

URL = "http://localhost:8000"
CONFIG = """{
    "use_multi_gpu": true,
    "gpu_ids": [0, 1, 2, 3],
    "batch_size_per_gpu": 8,
    "mixed_precision": true
  }"""
TRAINING = """{
    "model_name": "gpt2",
    "dataset_config": {
      "texts": ["sample text 1", "sample text 2"],
      "max_length": 512
    },
    "training_config": {
      "epochs": 3,
      "learning_rate": 5e-5
    },
    "user_id": 123,
    "training_type": "dataparallel"
  }"""


def curl(*arguments: str, body: str | None = None) -> Any:
    """As the document has it; what comes back, which must be no error."""
    sent = [] if body is None else ["-X", "POST", "-H", "Content-Type: application/json", "-d", body]
    command = ["curl", "--silent", "--show-error", "--fail-with-body", *sent, *arguments]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return json.loads(answer.stdout)


@contextmanager
def serving(folder: Path, model: Path) -> Iterator[None]:
    """`drumline serve` on its usual port; it knows the model by the name that the calls use."""
    command = [str(COMMAND), "serve", "--set", f"files.model_names={{gpt2: {model}}}"]
    with (
        usual_port(),
        (folder / "serve.log").open("w") as log,
        subprocess.Popen(command, cwd=folder, stdout=log, stderr=log) as server,
    ):
        try:
            ready = ["--retry", "60", "--retry-delay", "1", "--retry-connrefused", f"{URL}/readyz"]
            curl(*ready)
            yield
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)


def test_a_training_from_configuration_to_model(tmp_path: Path) -> None:
    folder = os.environ.get("DRUMLINE_TEST_ASSETS")
    assert folder, "run these tests with: make assets test-system"
    with serving(tmp_path, Path(folder) / "smollm2"):
        assert curl(f"{URL}/multigpu/config", body=CONFIG)["config"]["batch_size_per_gpu"] == 8
        started = curl(f"{URL}/multigpu/training/dataparallel", body=TRAINING)
        assert started["status"] in ("queued", "starting")
        job = curl(URL + started["links"]["self"])
        limit = time.monotonic() + 400
        while job["state"] not in ("succeeded", "failed", "cancelled", "timed_out", "lost"):
            assert time.monotonic() < limit, job
            time.sleep(1)
            job = curl(URL + started["links"]["self"])
        assert job["success"], job
        assert curl(f"{URL}/multigpu/stats")["devices_held"] == 0
        history = curl(f"{URL}/multigpu/training/history?user_id=123")
        assert [each["training_id"] for each in history["items"]] == [started["training_id"]]
    assert job["training_time"] > 0 and job["best_loss"] == pytest.approx(min(losses(job)))
    model = transformers.AutoModelForCausalLM.from_pretrained(job["model_path"], local_files_only=True)
    assert model.num_parameters() == 134_515_008


def losses(job: dict[str, Any]) -> list[float]:
    """Of the evaluations after an update, or, without any, of the log lines."""
    after = [each for each in job["training_history"] if each["step"] > 0]
    evaluations = [each["loss"] for each in after if each["kind"] == "eval"]
    return evaluations or [each["loss"] for each in after]
