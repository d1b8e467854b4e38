"""The weights of a run as other programs read them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from torch.utils.data import Dataset

from drumline import Trainer
from drumline.build.export import answer, export
from drumline.build.trained import final_weights
from drumline.engine.weight_files import read_file
from drumline.errors import ConfigError, DataError
from drumline.models.huggingface import Embedder
from drumline.rundir import RunDir
from tests.unit.engine.training import assert_same, config_of, state_of, trainer_of

EMA = {"averaging": {"kind": "ema", "decay": 0.5}}


def finished(directory: Path, **given: Any) -> tuple[RunDir, dict[str, Tensor], dict[str, Tensor]]:
    """A run that has saved its end: its weights, and what it was evaluated with."""
    with trainer_of(directory, checkpoint={"at_end": True}, **given) as trainer:
        trainer.fit()
        with trainer._run.strategy.averaged():
            evaluated = state_of(trainer.model)
        return RunDir(directory), state_of(trainer.model), evaluated


def test_the_newest_valid_checkpoint_or_the_one_that_was_asked_for(tmp_path: Path) -> None:
    with trainer_of(tmp_path / "run") as trainer:
        states = {}
        for info in trainer.steps():
            trainer.save()
            states[info.step] = state_of(trainer.model)
            trainer._run.checkpoints.finish(trainer._run)
    run = RunDir(tmp_path / "run")
    done = export(run, tmp_path / "out" / "newest", None)
    told = {"step": 3, "averaged": False, "merged": False, "skipped": [], "not_found": []}
    assert done == {"files": ["model.safetensors"], **told}
    assert_same(read_file(tmp_path / "out" / "newest" / "model.safetensors"), states[3])
    assert export(run, tmp_path / "second", 2)["step"] == 2
    assert_same(read_file(tmp_path / "second" / "model.safetensors"), states[2])
    (run.checkpoint_of(3) / "manifest.json").unlink()
    done = export(run, tmp_path / "older", None)
    assert (done["step"], [text.partition(":")[0] for text in done["skipped"]]) == (2, ["step_3"])
    with pytest.raises(DataError, match="no checkpoint of update 7"):
        export(run, tmp_path / "none", 7)
    with pytest.raises(ConfigError, match="exists already"):
        export(run, tmp_path / "older", None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["older", "out", "run", "second"]
    assert answer(run.path, tmp_path / "run", None)["code"] == "config"


class Tied(nn.Sequential):
    """Two layers of one weight, in half precision, whose average is kept in more."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False), nn.BatchNorm1d(3), nn.Linear(3, 1))
        self[1].weight = self[0].weight


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_averaged_weights_are_what_was_evaluated(tmp_path: Path, dtype: torch.dtype) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        error: Tensor = (model(batch[0].to(dtype)) - batch[1].to(dtype)).square().mean()
        return error

    torch.manual_seed(0)
    run, last, evaluated = finished(tmp_path / "run", model=Tied().to(dtype), train=EMA, loss=loss)
    assert not torch.equal(last["0.weight"], evaluated["0.weight"])
    done = export(run, tmp_path / "out", None)
    assert done["averaged"]
    found = read_file(tmp_path / "out" / "model.safetensors")
    del evaluated["1.weight"]  # the same
    assert_same(found, evaluated)


class Sentences(Dataset[dict[str, Tensor]]):
    """Four rows of ids."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if index >= 4:
            raise IndexError(index)
        ids = torch.arange(index, index + 8)
        return {"input_ids": ids, "labels": ids}


def tiny_gpt2() -> Any:
    shape = {"vocab_size": 40, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}
    return transformers.GPT2Config(**shape, bos_token_id=38, eos_token_id=39, use_cache=False)


def test_a_hugging_face_model_becomes_a_folder_that_transformers_loads(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(tiny_gpt2())
    (tmp_path / "given").mkdir()
    (tmp_path / "given" / "tokenizer.json").write_text("{}")
    (tmp_path / "given" / "model.safetensors").write_text("none of these weights")
    config = config_of(
        tmp_path / "run",
        checkpoint={"at_end": True},
        train={"global_batch": 2, "precision": "fp32", **EMA},
        model={"kind": "huggingface", "path": str(tmp_path / "given")},
    )
    with Trainer(model, config, Sentences()) as trainer:
        trainer.fit()
        with trainer._run.strategy.averaged():
            expected = state_of(model)
    done = export(RunDir(tmp_path / "run"), tmp_path / "out", None)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(done["files"])
    shutil.rmtree(tmp_path / "given")
    assert export(RunDir(tmp_path / "run"), tmp_path / "again", None)["not_found"] == [str(tmp_path / "given")]
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert_same(state_of(found), expected)
    with trainer_of(tmp_path / "other") as other, pytest.raises(DataError, match="does not fit the model"):
        other.load(tmp_path / "out")


def test_of_an_embedder_the_body_is_written(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Embedder(transformers.GPT2Model(tiny_gpt2()))
    config = config_of(tmp_path / "run", checkpoint={"at_end": True}, train={"global_batch": 2, "precision": "fp32"})
    with Trainer(model, config, Sentences(), loss=lambda m, batch: m(batch["input_ids"]).square().mean()) as trainer:
        trainer.fit()
    export(RunDir(tmp_path / "run"), tmp_path / "out", None)
    found = transformers.AutoModel.from_pretrained(tmp_path / "out")
    assert_same(state_of(found), {name.removeprefix("body."): value for name, value in state_of(model).items()})


def test_an_average_of_what_a_checkpoint_leaves_to_its_base_is_passed_over() -> None:
    """A buffer of the base, beside an adapter."""
    one = torch.ones(2)
    averages = {"adapter": one * 3, "base.buffer": one * 5}
    weights, averaged = final_weights({"model": {"adapter": one}, "average": {"averages": averages}})
    assert averaged
    assert weights.keys() == {"adapter"}
    assert torch.equal(weights["adapter"], one * 3)
