from __future__ import annotations

import pickle
from typing import Any, cast

import pytest
import torch
import transformers
from torch import nn

from drumline.config.model import DecoderModel
from drumline.errors import ConfigError
from drumline.models.decoder import decoder_from_config
from drumline.tasks import choose_task
from drumline.tasks.function import FunctionTask
from drumline.tasks.huggingface import HuggingFaceLoss
from drumline.tasks.language_modelling import LanguageModelling

LABELLED = {"input_ids": torch.tensor([[1, 2, 3], [4, 5, 6]]), "labels": torch.tensor([[1, 2, -100], [4, 5, 6]])}


def tiny_gpt2() -> Any:
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config).eval()


def whole_output(model: nn.Module, batch: Any) -> Any:
    return model(**batch)


def test_a_model_of_ours_learns_the_next_token() -> None:
    model = decoder_from_config(DecoderModel(num_layers=1, width=8, num_heads=2), vocab_size=60, context=4)
    for form in (model, torch.compile(model, backend="eager")):
        task = choose_task(cast("nn.Module", form))
        assert isinstance(task, LanguageModelling)
    task.check({"input_ids": torch.tensor([[63]]), "labels": torch.tensor([[0]])})


def test_a_transformers_model_has_its_own_loss() -> None:
    assert isinstance(choose_task(tiny_gpt2()), HuggingFaceLoss)


def test_a_task_is_taken_as_it_is() -> None:
    task = LanguageModelling(4)
    assert choose_task(nn.Linear(1, 1), loss=task) is task


def test_a_function_counts_samples() -> None:
    task = choose_task(nn.Linear(1, 1), loss=lambda model, batch: model(batch).mean())
    assert isinstance(task, FunctionTask)
    assert task.count(torch.ones(3, 1)) == 3
    assert not task.needs_count


def test_a_function_counts_what_the_user_says() -> None:
    task = choose_task(tiny_gpt2(), loss=whole_output, count=lambda batch: 7)
    assert task.count(LABELLED) == 7


def test_a_function_over_a_transformers_model_is_weighed_as_the_models_own_loss() -> None:
    model = tiny_gpt2()
    own, task = choose_task(model), choose_task(model, loss=whole_output)
    assert task.count(LABELLED) == own.count(LABELLED) == 3
    total = task.loss(task.forward(model, LABELLED), LABELLED).total
    assert torch.equal(total, own.loss(own.forward(model, LABELLED), LABELLED).total)
    assert task.count({"input_ids": LABELLED["input_ids"]}) == 2


def test_a_function_task_reaches_loader_processes_without_weights() -> None:
    assert len(pickle.dumps(choose_task(tiny_gpt2(), loss=whole_output))) < 700


@pytest.mark.parametrize(
    ("loss", "count", "problem"),
    [
        (None, None, r"what a Linear shall learn is not known\n.*give loss="),
        ("mse", None, "is a str and cannot be called"),
        (nn.MSELoss(), None, "wrap it"),
        (LanguageModelling, None, r"is the class LanguageModelling\n.*give one of it: loss=LanguageModelling"),
        (lambda outputs: outputs, None, r"cannot be called as loss\(model, batch\)"),
        (None, len, "count= goes with a function"),
        (LanguageModelling(3), len, "count= goes with a function"),
    ],
)
def test_what_cannot_be_meant_is_refused(loss: Any, count: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        choose_task(nn.Linear(1, 1), loss=loss, count=count)
