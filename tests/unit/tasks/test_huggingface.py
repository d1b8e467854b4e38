from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from drumline.errors import ConfigError, DataError, ValueRangeError
from drumline.tasks.huggingface import HuggingFaceLoss

IDS = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])


def gpt2(model_class: Any, **changes: Any) -> Any:
    torch.manual_seed(0)
    shape = {"vocab_size": 20, "n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2, "bos_token_id": 0}
    return model_class(transformers.GPT2Config(**{**shape, "eos_token_id": 0, "pad_token_id": 0, **changes})).eval()


def bert(model_class: Any, **changes: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, **changes
    )
    return model_class(config).eval()


def total(model: Any, batch: dict[str, Tensor]) -> Tensor:
    task = HuggingFaceLoss(model)
    task.check(batch)
    loss = task.loss(task.forward(model, batch), batch)
    assert loss.aux is None
    return loss.total


def summed(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="sum")


def test_a_causal_model_counts_labels_after_the_shift() -> None:
    model = gpt2(transformers.GPT2LMHeadModel)
    # The first row's first label predicts nothing; the second row's does not count either.
    batch = {"input_ids": IDS, "labels": torch.tensor([[1, 2, -100, 4], [-100, 6, 7, -100]])}
    assert HuggingFaceLoss(model).count(batch) == 4
    expected = summed(model(input_ids=IDS).logits[:, :-1], batch["labels"][:, 1:])
    torch.testing.assert_close(total(model, batch), expected)


@pytest.mark.parametrize("labels", [[[1, 2, -100, 4], [-100, 6, 7, -100]]])
def test_a_masked_model_counts_every_label(labels: list[list[int]]) -> None:
    model = bert(transformers.BertForMaskedLM)
    batch = {"input_ids": IDS, "labels": torch.tensor(labels)}
    assert HuggingFaceLoss(model).count(batch) == 5
    torch.testing.assert_close(total(model, batch), summed(model(input_ids=IDS).logits, batch["labels"]))


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_token_classification_counts_every_label(family: str) -> None:
    if family == "gpt2":
        model = gpt2(transformers.GPT2ForTokenClassification, num_labels=3)
    else:
        model = bert(transformers.BertForTokenClassification, num_labels=3)
    batch = {"input_ids": IDS, "labels": torch.tensor([[0, 1, 2, -100], [-100, -100, 1, 1]])}
    assert HuggingFaceLoss(model).count(batch) == 5
    torch.testing.assert_close(total(model, batch), summed(model(input_ids=IDS).logits, batch["labels"]))


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_sequence_classification_counts_labelled_rows(family: str) -> None:
    if family == "gpt2":
        model = gpt2(transformers.GPT2ForSequenceClassification, num_labels=3)
    else:
        model = bert(transformers.BertForSequenceClassification, num_labels=3)
    ids = torch.cat([IDS, IDS + 1])
    batch = {"input_ids": ids, "labels": torch.tensor([0, 2, -100, 1])}
    assert HuggingFaceLoss(model).count(batch) == 3
    torch.testing.assert_close(total(model, batch), summed(model(input_ids=ids).logits, batch["labels"]))


def test_regression_counts_rows() -> None:
    model = bert(transformers.BertForSequenceClassification, num_labels=1)
    batch = {"input_ids": IDS, "labels": torch.tensor([0.5, -100.0])}
    assert HuggingFaceLoss(model).count(batch) == 2
    expected = (model(input_ids=IDS).logits[:, 0] - batch["labels"]).square().sum()
    torch.testing.assert_close(total(model, batch), expected)


@pytest.mark.parametrize("problem", [None, "multi_label_classification"])
def test_several_labels_a_row_count_rows(problem: str | None) -> None:
    model = bert(transformers.BertForSequenceClassification, num_labels=3, problem_type=problem)
    batch = {"input_ids": IDS, "labels": torch.tensor([[1.0, 0, 1], [0, 0, 1]])}
    assert HuggingFaceLoss(model).count(batch) == 2
    expected = F.binary_cross_entropy_with_logits(model(input_ids=IDS).logits, batch["labels"], reduction="none")
    torch.testing.assert_close(total(model, batch), expected.mean(1).sum())


def test_uneven_parts_add_up_to_the_whole() -> None:
    model = gpt2(transformers.GPT2LMHeadModel)
    batch = {"input_ids": IDS, "labels": torch.tensor([[1, 2, 3, 4], [-100, -100, 7, -100]])}
    parts = [total(model, {name: value[row : row + 1] for name, value in batch.items()}) for row in range(2)]
    torch.testing.assert_close(total(model, batch), parts[0] + parts[1])


def test_the_count_waits_for_no_device() -> None:
    task = HuggingFaceLoss(gpt2(transformers.GPT2LMHeadModel))
    on_device = task.counted({"labels": torch.zeros(2, 4, dtype=torch.int64, device="meta")})
    assert isinstance(on_device, Tensor)
    assert on_device.device.type == "meta"


def test_a_micro_batch_without_labels_is_announced_as_not_to_be_run() -> None:
    task = HuggingFaceLoss(gpt2(transformers.GPT2LMHeadModel))
    assert task.needs_count
    assert task.count({"labels": torch.tensor([[3, -100, -100]])}) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_ids": torch.tensor([[1, 20]])}, r"input_ids\[0, 1\] is 20; allowed are 0 to 19"),
        ({"labels": torch.tensor([[1, 20]])}, r"labels\[0, 1\] is 20"),
        ({"input_ids": torch.ones(1, 9, dtype=torch.int64)}, "rows have 9 tokens, the model has 8 positions"),
    ],
)
def test_what_a_causal_model_has_no_row_for_is_refused(changes: dict[str, Tensor], message: str) -> None:
    task = HuggingFaceLoss(gpt2(transformers.GPT2LMHeadModel))
    with pytest.raises(ValueRangeError, match=message):
        task.check({"input_ids": IDS, "labels": IDS, **changes})


def test_classes_are_checked_against_the_number_of_labels() -> None:
    task = HuggingFaceLoss(bert(transformers.BertForSequenceClassification, num_labels=3))
    task.check({"input_ids": IDS, "labels": torch.tensor([2, -100])})
    with pytest.raises(ValueRangeError, match=r"labels\[0\] is 3; allowed are 0 to 2"):
        task.check({"input_ids": IDS, "labels": torch.tensor([3, 0])})


def test_a_batch_without_labels_is_refused() -> None:
    with pytest.raises(DataError, match="'labels'"):
        HuggingFaceLoss(gpt2(transformers.GPT2LMHeadModel)).count({"input_ids": IDS})


def test_a_loss_that_is_not_known_is_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match="count="):
        HuggingFaceLoss(bert(transformers.BertForQuestionAnswering))


def test_loader_processes_get_no_weights() -> None:
    assert len(pickle.dumps(HuggingFaceLoss(gpt2(transformers.GPT2LMHeadModel)))) < 500
