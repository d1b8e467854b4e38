"""`drumline finetune` and FineTuningService on real processes: from texts to a folder that loads anywhere."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import transformers

from drumline import FineTuningService
from drumline.jobs.finetuning_records import FineTuned
from drumline.rundir import RunDir, read_json, read_lines
from tests.cli.real_command import Command, Ended, end_of

pytestmark = pytest.mark.system

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
ADS = [f"Advert {number}: fine {thing}, fresh each day." for number in range(40) for thing in ("tea", "soap", "shoes")]
RANDOM = {"model": {"random_weights": True}}
"""The folder below has no weights."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny model's folder."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=280, show_progress=False, special_tokens=["<|endoftext|>"], initial_alphabet=letters
    )
    tokenizer.train_from_iterator(ADS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    (folder / "config.json").write_text(json.dumps({**SHAPE, "vocab_size": tokenizer.get_vocab_size()}))
    return folder


def finetune(folder: Path, *arguments: str) -> Ended:
    """The command, to its end."""
    settings = ["hardware.device=cpu", "model.random_weights=true"]
    return Command(folder, "finetune", *arguments, *(part for each in settings for part in ("--set", each))).wait()


def test_the_command_shows_what_it_chose_trains_and_is_gone_on_with(tmp_path: Path, model: Path) -> None:
    (tmp_path / "ads.jsonl").write_text("".join(json.dumps({"body": text}) + "\n" for text in ADS))
    arguments = ["--model", str(model), "--data", "ads.jsonl", "--set", "name=ads", "--set", "train.epochs=2"]
    ended = finetune(tmp_path, *arguments, "--set", "hardware.num_processes=2", "--set", "train.max_steps=4")
    assert ended.status == 0, ended.err
    assert "data.columns" in ended.out and "the task reads body as text" in ended.out
    assert "data.eval_fraction           0.05" in ended.out
    run = RunDir(tmp_path / "runs/ads")
    assert end_of(run)["reason"] == "done"
    evaluations = [line for line in read_lines(run.metrics) if line["kind"] == "eval"]
    assert evaluations[0]["step"] == 0 and evaluations[-1]["loss"] < evaluations[0]["loss"]
    again = "drumline train runs/ads/config.yaml"
    assert again in ended.out
    further = Command(tmp_path, *again.split()[1:], "--set", "train.max_steps=6").wait()
    assert further.status == 0, further.err
    assert end_of(run)["steps"] == 6


def test_a_dry_run_takes_nothing_and_tells_all(tmp_path: Path, model: Path) -> None:
    (tmp_path / "ads.txt").write_text("\n".join(ADS))
    arguments = ["--model", str(model), "--data", "ads.txt", "--dry-run", "--json"]
    ended = finetune(tmp_path, *arguments, "--set", "train.lr=0.01")
    assert ended.status == 0, ended.err
    found = json.loads(ended.out)
    assert (found["config"]["data"]["kind"], found["config"]["train"]["lr"]) == ("text", 0.01)
    assert "train.lr" not in found["reasons"] and "train.global_batch" in found["reasons"]
    assert not (tmp_path / "runs").exists()
    missing = finetune(tmp_path, "--model", "nowhere/at/all", "--data", "ads.txt")
    assert (missing.status, "nowhere/at/all" in missing.err, "fix: " in missing.err) == (2, True, True)
    (tmp_path / "empty.jsonl").touch()
    empty = finetune(tmp_path, "--model", str(model), "--data", "empty.jsonl")
    assert (empty.status, "--data: its file is empty\n  fix: " in empty.err) == (2, True)


def test_the_calls_of_an_ads_service(tmp_path: Path, model: Path) -> None:
    """As programs for the system that this service replaces have them."""
    name = str(model)

    async def work() -> tuple[FineTuned, FineTuned, dict[str, Any]]:
        finetuning_service = FineTuningService(tmp_path / "service")
        dataset = await finetuning_service.prepare_dataset(texts=ADS, model_name=name, max_length=64)
        training_config = {"epochs": 1, "learning_rate": 5e-3, "batch_size_per_gpu": 8, **RANDOM}
        result = await finetuning_service.finetune_model_dataparallel(
            model_name=name, dataset=dataset, training_config=training_config, user_id=123
        )
        distributed = await finetuning_service.finetune_model_distributed(
            model_name=name, dataset=dataset, training_config=training_config, user_id=123, world_size=2
        )
        gpu_stats = await finetuning_service.get_gpu_stats()
        return result, distributed, gpu_stats

    result, distributed, gpu_stats = asyncio.run(work())
    assert set(gpu_stats) >= {"available_gpus", "gpu_info"}
    for each, kind in ((result, "data_parallel"), (distributed, "ddp")):
        assert each.success and each.best_loss is not None and each.training_history
        assert read_json(RunDir(each.run_path).plan)["kind"] == kind
        assert each.model_path is not None
        loaded = transformers.AutoModelForCausalLM.from_pretrained(each.model_path, local_files_only=True)
        assert type(loaded) is transformers.LlamaForCausalLM
        assert transformers.AutoTokenizer.from_pretrained(each.model_path, local_files_only=True)("tea")["input_ids"]


def test_a_cancelled_training_saves_and_is_gone_on_with(tmp_path: Path, model: Path) -> None:
    service = FineTuningService(tmp_path / "service")
    (tmp_path / "ads.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in ADS))
    config = {"max_steps": 120, "batch_size": 4, "data": {"context": 64}, "track.every": 1, **RANDOM}

    async def cancelled() -> str:
        task = asyncio.create_task(service.finetune_model(str(model), tmp_path / "ads.jsonl", config))
        while not any(line["kind"] == "train" for each in service.trainings() for line in read_lines(each.run.metrics)):
            await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        [training] = service.trainings()
        return training.training_id

    training_id = asyncio.run(asyncio.wait_for(cancelled(), 200))
    [training] = service.trainings()
    end = end_of(training.run)
    assert (end["exit_status"], training.process()) == (3, None)
    assert training.run.checkpoint_of(end["steps"]).is_dir()

    async def resumed() -> FineTuned:
        await service.resume(training_id)
        return await service.wait(training_id)

    result = asyncio.run(resumed())
    assert (result.success, result.training_id) == (True, training_id)
    assert end_of(training.run)["steps"] == 120


def test_what_is_chosen_for_a_real_model(tmp_path: Path) -> None:
    folder = os.environ.get("DRUMLINE_TEST_ASSETS")
    assert folder, "run these tests with: make assets test-system"
    smollm = Path(folder) / "smollm2"
    chat = [{"role": "user", "content": "What is tea?"}, {"role": "assistant", "content": "A drink."}]
    (tmp_path / "chat.jsonl").write_text(json.dumps({"messages": chat}) + "\n")
    ended = Command(tmp_path, "finetune", "--model", str(smollm), "--data", "chat.jsonl", "--dry-run", "--json").wait()
    assert ended.status == 0, ended.err
    found = json.loads(ended.out)
    assert "134.5M parameters" in found["reasons"]["model.adapter"]
    assert (found["config"]["data"]["row_format"], found["config"]["train"]["lr"]) == ("chat", 5e-5)
