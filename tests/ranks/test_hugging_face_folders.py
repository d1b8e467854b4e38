"""A Hugging Face folder goes into a run of any kind, and a run of any kind becomes such a folder."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from drumline import Trainer
from drumline.build.export import export
from drumline.errors import DataError
from drumline.rundir import RunDir
from tests.rank_pool import RankPool
from tests.ranks.sharded import whole
from tests.ranks.test_language_models import CONTEXT, VOCABULARY, Progressions
from tests.ranks.training import Case, config_of


def tiny_gpt2(seed: int) -> Any:
    """With its head tied to its embedding."""
    torch.manual_seed(seed)
    shape = {"vocab_size": VOCABULARY, "n_positions": CONTEXT, "n_embd": 16, "n_layer": 2, "n_head": 2}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.GPT2Config(**shape, **dropout, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config)


def run_from(directory: str, initial: str, parallel: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Whole weights at the beginning and at the end of a run that the config lets begin with a folder."""
    sections = {
        "train": {"global_batch": 4, "max_steps": 2, "precision": "fp32"},
        "parallel": {"timeout_s": 20, **parallel},
        "checkpoint": {"initial": initial},
        "hardware": {"device": "cpu"},
    }
    with Trainer(tiny_gpt2(1), config_of(Case(directory, sections)), Progressions(8, (4, 9), shifted=False)) as trainer:
        assert trainer.world is not None  # begins the run
        begun = copy.deepcopy(whole(trainer.model))
        trainer.fit()
        trainer.save()
        trainer._run.checkpoints.finish(trainer._run)
        return begun, copy.deepcopy(whole(trainer.model))


@pytest.mark.parametrize("given", ["whole", "body", "bfloat16"])
@pytest.mark.parametrize("kind", ["single", "ddp", "fsdp"])
def test_a_folder_in_and_a_folder_out(ranks: RankPool, tmp_path: Path, kind: str, given: str) -> None:
    """body: as in GPT-2's own folder, whose names lack what the head's class puts before them."""
    theirs = tiny_gpt2(2)
    if given == "bfloat16":
        theirs = theirs.bfloat16()
    (theirs.transformer if given == "body" else theirs).save_pretrained(tmp_path / "given")
    parallel = {"kind": kind, **({"min_params": 100} if kind == "fsdp" else {})}
    world = 1 if kind == "single" else 2
    answers = ranks.run(world, run_from, str(tmp_path / "run"), str(tmp_path / "given"), parallel)
    expected = {name: value.float() for name, value in theirs.state_dict().items()}
    for begun, _ in answers:
        torch.testing.assert_close(begun, expected, rtol=0, atol=0)
    export(RunDir(tmp_path / "run"), tmp_path / "out", None)
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert type(found) is transformers.GPT2LMHeadModel
    torch.testing.assert_close(dict(found.state_dict()), answers[0][1], rtol=0, atol=0)


def refused(directory: str, initial: str) -> str:
    """The error of a run that should begin with this folder."""
    try:
        run_from(directory, initial, {"kind": "ddp"})
    except DataError as error:
        return error.problem
    raise AssertionError("it began")


def test_a_folder_of_another_size_is_refused_on_all_ranks(ranks: RankPool, tmp_path: Path) -> None:
    other = transformers.GPT2Config(**{**tiny_gpt2(0).config.to_dict(), "n_embd": 8})
    transformers.GPT2LMHeadModel(other).save_pretrained(tmp_path / "given")
    answers = ranks.run(2, refused, str(tmp_path / "run"), str(tmp_path / "given"))
    assert len(set(answers)) == 1
    assert "[32, 8] there and [32, 16] here" in answers[0]
