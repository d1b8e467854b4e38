"""What `drumline infer` makes of its options, and which GPUs each worker gets."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import typer

from drumline.cli.infer import finish, gpus_of_rank, worker_gpus, workers_in_words
from drumline.cli.infer_options import InferOptions
from drumline.cli.prediction_progress import Display
from drumline.config.infer_file import load_inference_config
from drumline.errors import ConfigError, HardwareError, LaunchError
from drumline.hardware.records import Gpu, Hardware, Host
from drumline.launcher.failures import Failure
from drumline.launcher.independent import Crew, Result
from drumline.launcher.world import World
from drumline.predictions import PredictionDir

HOST = Host(8, 2**34, "host")
VALUES = {"model": {"path": "m"}, "rows": {"files": ["in.jsonl"]}, "output": {"file": "out.jsonl"}}


def machine(count: int, memory_bytes: int = 2**36) -> Hardware:
    gpus = tuple(Gpu(f"GPU-{number}", "H100", number, memory_bytes, (9, 0)) for number in range(count))
    return Hardware(gpus, HOST, "simulated")


def gpus_of(count: int, *overrides: str) -> tuple[tuple[str, ...], ...]:
    return worker_gpus(load_inference_config(None, VALUES, overrides), machine(count))


def test_what_was_not_given_says_nothing() -> None:
    assert InferOptions().values() == {}
    given = InferOptions(model="m", data=["a", "b"], out=Path("o.csv"), limit=3, task="score")
    assert given.values() == {
        "model": {"path": "m"},
        "rows": {"files": ["a", "b"], "limit": 3},
        "output": {"file": "o.csv"},
        "task": {"kind": "score"},
    }


@pytest.mark.parametrize(
    ("options", "task"),
    [
        (InferOptions(labels="yes, no,"), {"kind": "choose", "labels": ["yes", "no"]}),
        (InferOptions(labels="a,b", task="generate"), {"kind": "generate", "labels": ["a", "b"]}),
        (InferOptions(prompt="{text}", strategy="s"), {"prompt": {"strategy": "s", "prompt": "{text}"}}),
    ],
)
def test_labels_alone_mean_a_choice(options: InferOptions, task: dict[str, Any]) -> None:
    assert options.values() == {"task": task}


def test_each_gpu_has_a_worker_and_a_split_model_several_gpus() -> None:
    assert gpus_of(3) == (("GPU-0",), ("GPU-1",), ("GPU-2",))
    assert gpus_of(5, "split.gpus=2") == (("GPU-0", "GPU-1"), ("GPU-2", "GPU-3"))
    assert gpus_of(4, "split.device_map={model.norm: 2}") == (("GPU-0", "GPU-1", "GPU-2"),)
    assert gpus_of(0) == ((),)
    assert gpus_of(2, "hardware.device=cpu", "hardware.num_processes=3") == ((), (), ())


def test_a_split_that_cannot_be_is_refused() -> None:
    with pytest.raises(HardwareError, match="takes 4 GPUs, and there are 3"):
        gpus_of(3, "split.gpus=4")
    with pytest.raises(ConfigError, match="has no safetensors"):
        gpus_of(2, "split.gpus=auto")
    with pytest.raises(ConfigError, match="tensor"):
        gpus_of(2, "split.kind=tensor")


def test_workers_are_told_in_words() -> None:
    assert workers_in_words(((),)) == "1 worker on the CPU"
    assert workers_in_words((("a",), ("b",))) == "2 workers, one a GPU"
    assert workers_in_words((("a", "b"), ("c", "d"))) == "2 workers of 2 GPUs each"


def test_a_process_of_another_launcher_takes_the_gpus_of_its_place() -> None:
    groups = (("a", "b"), ("c", "d"))
    world = World(rank=5, size=8, local_rank=1, local_size=2, source="slurm")
    assert gpus_of_rank(groups, world) == ("c", "d")
    assert gpus_of_rank((("a",),), world) == ("a",)
    assert gpus_of_rank(((), ()), world) == ()
    with pytest.raises(HardwareError, match="3 processes were started on this machine, whose GPUs make 2 workers"):
        gpus_of_rank(groups, World(rank=2, size=3, local_rank=2, local_size=3, source="slurm"))


def test_the_end_is_told_though_it_cannot_be_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = {"model": {"path": "m"}, "rows": {"files": ["x"]}, "output": {"file": str(tmp_path / "out.jsonl")}}
    config = load_inference_config(None, values, [])
    directory = PredictionDir(tmp_path / "run")
    directory.run.exit.mkdir(parents=True)
    failure = Failure(0, 0.0, "error", 1, "OSError: no room\n  fix: make room")
    with pytest.raises(LaunchError, match="the last one failed: OSError: no room\n  fix: make room"):
        finish(Crew(directory.path, "m", (), ((),)), config, Result(1, failure), Display(directory, []), 1.0)
    assert "exit.json could not be written" in capsys.readouterr().err


@pytest.mark.parametrize(("status", "is_said"), [(0, True), (3, False)])
def test_who_helps_another_machine_says_only_that_all_is_done(tmp_path: Path, status: int, is_said: bool) -> None:
    values = {"model": {"path": "m"}, "rows": {"files": ["x"]}, "output": {"file": str(tmp_path / "out.jsonl")}}
    config = load_inference_config(None, values, [])
    config.output.file.touch()
    directory = PredictionDir(tmp_path / "run")
    directory.path.mkdir()
    crew = Crew(directory.path, "m", (), ((),), machine="second")
    with nullcontext() if status == 0 else pytest.raises(typer.Exit):
        finish(crew, config, Result(status), Display(directory, []), 1.0)
    assert directory.run.exit.exists() is is_said
