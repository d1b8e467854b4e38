"""Prediction on a real GPU: engines that agree, memory that does run out, a row that kills. Run: pytest -m gpu."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from drumline.config.inference import InferenceConfig
from drumline.infer.budget import MOST_ATTEMPTS
from drumline.infer.loading import make_predictor
from drumline.infer.split import load_split
from drumline.infer.work import WorkSettings, work
from drumline.predictions import PredictionDir
from drumline.rundir import RunDir
from tests.tiny_models import save_llama

pytestmark = pytest.mark.gpu

MIB = 1 << 20
WORDS = [
    "whale",
    "ship",
    "sea",
    "captain",
    "the",
    "of",
    "and",
    "harpoon",
    "white",
    "deep",
    "old",
    "man",
    "said",
    "call",
]
NEW_TOKENS = 24


def rows_of(count: int, longest: int) -> list[dict[str, Any]]:
    draw = random.Random(0)
    return [{"id": i, "text": " ".join(draw.choices(WORDS, k=draw.randint(2, longest)))} for i in range(count)]


def config_of(folder: Path, path: Path, rows: list[dict[str, Any]], **sections: Any) -> InferenceConfig:
    folder.mkdir()
    source = folder / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return InferenceConfig.model_validate(
        {
            "model": {"path": str(path), "dtype": "float32", **sections.pop("model", {})},
            "rows": {"files": [str(source)]},
            "output": {"file": str(folder / "answers.jsonl")},
            **sections,
        }
    )


def answers_of(config: InferenceConfig) -> list[dict[str, Any]]:
    """By one worker in this process."""
    device = torch.device("cuda", 0)
    RunDir.create(config.directory)
    work(PredictionDir(config.directory), make_predictor(config, device), WorkSettings(config, device))
    return read(config.output.file)


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def writing(engine: str = "padded") -> dict[str, Any]:
    prompt = {"prompt": "{text}", "raw": True}
    return {"kind": "generate", "max_new_tokens": NEW_TOKENS, "engine": engine, "prompt": prompt}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("llama"), hidden_size=128, intermediate_size=256, num_hidden_layers=3)


@pytest.mark.parametrize("engine", ["padded", "static", "continuous"])
def test_engines_write_what_the_model_writes_alone(tmp_path: Path, model: Path, engine: str) -> None:
    rows = rows_of(40, 60)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    alone = transformers.AutoModelForCausalLM.from_pretrained(model).cuda().eval()
    ids = [tokenizer(row["text"], return_tensors="pt").input_ids.cuda() for row in rows]
    options: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "pad_token_id": 0}
    expected = [alone.generate(one, attention_mask=torch.ones_like(one), **options)[0, one.shape[1] :] for one in ids]
    found = answers_of(config_of(tmp_path / "run", model, rows, task=writing(engine)))
    texts = [tokenizer.decode(one, skip_special_tokens=True) for one in expected]
    assert [answer["answer"] for answer in found] == texts
    assert all(answer["error"] is None for answer in found)


def test_the_engine_and_the_size_of_batches_are_found_and_kept(tmp_path: Path, model: Path) -> None:
    rows = rows_of(60, 40)
    config = config_of(tmp_path / "run", model, rows, task=writing("auto"))
    found = answers_of(config)
    assert [answer["id"] for answer in found] == list(range(60))
    facts = json.loads(PredictionDir(config.directory).facts.read_text())
    assert facts["engine"] in ("padded", "static", "continuous")
    assert facts["tokens"] > 1000


@pytest.fixture
def little_memory() -> Iterator[None]:
    """What is allocated, and 700 MiB."""
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 700 * MIB) / total)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def test_a_batch_that_does_not_fit_is_split_and_the_rest_goes_on(tmp_path: Path, little_memory: None) -> None:
    shape = {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 8}
    model = save_llama(tmp_path / "model", **shape)
    rows = rows_of(384, 80)
    many = {"tokens": 1_000_000, "rows": 384}
    config = config_of(tmp_path / "large", model, rows, task=writing(), batching=many)
    found = answers_of(config)
    directory = PredictionDir(config.directory)
    [trouble] = [json.loads(file.read_text()) for file in directory.trouble.glob("*.json")]
    assert set(trouble["reasons"]) == {"out of memory"}
    assert len(trouble["parts"]) > 1
    few = answers_of(config_of(tmp_path / "small", model, rows, task=writing(), batching={"tokens": 8192}))
    assert found == few
    assert all(answer["error"] is None for answer in found)


LOSES_THE_GPU = """
import sys
import torch
import drumline
device = torch.device(sys.argv[2])
table = torch.nn.Embedding(8, 1).to(device)
rows = [{"x": x} for x in [0, 1, 2, 3, 4, 9, 6, 7]]
drumline.predict(table, rows, predict=lambda table, batch: table(batch["x"].to(device)).squeeze(1), out=sys.argv[1])
"""


def test_a_row_that_loses_the_gpu_fails_alone(tmp_path: Path) -> None:
    """A lookup past the table's end leaves its process without a GPU: each start after it goes on, with fewer rows."""
    command, lost = [sys.executable, "-c", LOSES_THE_GPU, str(tmp_path / "answers.jsonl"), "cuda:0"], 0
    while (result := subprocess.run(command, capture_output=True, text=True, timeout=120)).returncode != 0:
        assert "the GPU is lost to this process" in result.stderr, result.stderr
        lost += 1
        assert lost <= MOST_ATTEMPTS + 4
    errors = {answer["x"]: answer["error"] for answer in read(tmp_path / "answers.jsonl")}
    assert "device-side assert" in errors.pop(9)
    assert set(errors.values()) == {None}
    assert lost == MOST_ATTEMPTS + 4  # the trials of how much fits, then 8 rows, 4, 2, and the one alone


def test_a_split_model_gives_the_scores_of_a_whole_one(tmp_path: Path, model: Path) -> None:
    devices = [f"cuda:{number}" for number in range(min(2, torch.cuda.device_count()))]
    config = config_of(tmp_path / "run", model, rows_of(2, 5), split={"gpus": len(devices)})
    split = load_split(model, config, devices)
    assert {str(parameter.device) for parameter in split.parameters()} == set(devices)
    whole = transformers.AutoModelForCausalLM.from_pretrained(model).cuda().eval()
    ids = torch.arange(60, device="cuda").view(3, 20)
    with torch.no_grad():
        torch.testing.assert_close(split(ids).logits.to("cuda:0"), whole(ids).logits, rtol=1e-5, atol=1e-5)


def test_random_weights_are_made_on_their_gpus(tmp_path: Path, model: Path) -> None:
    sections = {"split": {"device_map": {"": 0}}, "model": {"random_weights": True}}
    config = config_of(tmp_path / "run", model, rows_of(2, 5), **sections)
    made = load_split(model, config, ["cuda:0"])
    again = load_split(model, config, ["cuda:0"])
    for one, other in zip(made.parameters(), again.parameters(), strict=True):
        assert one.is_cuda and torch.equal(one, other)


def test_a_part_of_each_layer_on_each_gpu_writes_what_one_gpu_writes(tmp_path: Path, model: Path) -> None:
    """By the command itself, whose worker has a process for each GPU; the trial of how much fits is theirs too."""
    rows = rows_of(40, 60)
    gpus = min(2, torch.cuda.device_count())
    parts = {"split": {"gpus": gpus, "kind": "tensor"}}
    found = {}
    for name, count, sections in (("one", 1, {}), ("parts", gpus, parts)):
        config = config_of(tmp_path / name, model, rows, task=writing(), **sections)
        file = tmp_path / f"{name}.yaml"
        file.write_text(json.dumps(config.model_dump(mode="json", exclude_unset=True)))  # JSON is YAML
        changes = [f"hardware.count={count}", "hardware.taken=use"]  # by this process, since other tests ran in it
        command = [sys.executable, "-m", "drumline", "infer", "--config", str(file)]
        command += [part for change in changes for part in ("--set", change)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
        assert ended.returncode == 0, ended.stderr
        found[name] = [(answer["answer"], answer["error"]) for answer in read(config.output.file)]
    assert found["parts"] == found["one"]
