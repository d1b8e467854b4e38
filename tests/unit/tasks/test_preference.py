"""Direct preference optimisation against its formula written out, with a frozen copy and with an adapter."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from drumline.config.model import AdapterConfig, HuggingFaceModel
from drumline.data.label_places import with_places
from drumline.errors import DataError, ValueRangeError
from drumline.models.adapters import with_adapter
from drumline.models.reference import REFERENCE, add_reference
from drumline.models.token_losses import PLAIN, Tail
from drumline.tasks.preference import Preference, together

VOCABULARY, BETA = 40, 0.3
WHOLE = HuggingFaceModel(path="nowhere")
LORA = HuggingFaceModel(path="nowhere", random_weights=True, adapter=AdapterConfig(rank=2))


def make() -> nn.Module:
    torch.manual_seed(3)
    shape = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=True,
        use_cache=False,
    )
    model: nn.Module = transformers.LlamaForCausalLM(shape).double()
    nn.init.normal_(model.get_input_embeddings().weight, std=0.5)  # type: ignore[operator]
    return model


def part(length: int, answer: int, seed: int) -> dict[str, Tensor]:
    """Three rows, of which the last `answer` tokens are learned; the second is two tokens shorter."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCABULARY, (3, length), generator=generator)
    labels = ids.roll(-1, 1)
    labels[:, : length - answer - 1] = labels[:, -1] = -100
    labels[1, -3:] = -100
    return {"input_ids": ids, "labels": labels}


BATCH = {"chosen": part(16, 4, 0), "rejected": part(19, 6, 1)}


def log_probabilities(model: nn.Module, rows: dict[str, Tensor]) -> Tensor:
    logs: Tensor = model(rows["input_ids"]).logits.log_softmax(-1)
    labels = rows["labels"]
    return (logs.gather(2, labels.clamp(min=0)[..., None]).squeeze(2) * (labels != -100)).sum(1)


def disturbed(model: nn.Module) -> nn.Module:
    """As after some training."""
    torch.manual_seed(5)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(torch.randn_like(p), alpha=0.05)
    return model


def whole() -> nn.Module:
    model = make()
    add_reference(model, WHOLE)
    return model


def adapted() -> nn.Module:
    model = with_adapter(make(), LORA, "causal")
    add_reference(model, LORA)
    return model


@pytest.mark.parametrize("tail", [None, PLAIN])
@pytest.mark.parametrize("start", [whole, adapted])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_loss_gradient_and_metrics_are_those_of_the_formula(start: Any, smoothing: float, tail: Tail | None) -> None:
    model, before = disturbed(start()), make()
    task = Preference(VOCABULARY, BETA, smoothing, tail)
    given = BATCH if tail is None else with_places(BATCH)
    assert ("label_places" in given["chosen"]) == (tail is not None)
    chosen, rejected = (log_probabilities(model, BATCH[name]) for name in ("chosen", "rejected"))
    with torch.no_grad():
        first = [log_probabilities(before, BATCH[name]) for name in ("chosen", "rejected")]
    margin = BETA * ((chosen - first[0]) - (rejected - first[1]))
    expected = -((1 - smoothing) * margin.sigmoid().log() + smoothing * (-margin).sigmoid().log()).sum()
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert not any(name.startswith(REFERENCE) for name in trained)
    wanted = torch.autograd.grad(expected, list(trained.values()))
    loss = task.loss(task.forward(model, given), given)
    torch.testing.assert_close(loss.total, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(torch.autograd.grad(loss.total, list(trained.values())), wanted, rtol=1e-9, atol=1e-12)
    sums = {name: (torch.as_tensor(value).detach(), weight) for name, (value, weight) in loss.metrics.items()}
    metrics = {name: float(value) / float(weight) for name, (value, weight) in sums.items()}
    assert metrics == pytest.approx(
        {
            "accuracy": float((margin > 0).double().mean()),
            "margin": float(margin.detach().mean()),
            "chosen_reward": float(BETA * (chosen - first[0]).detach().mean()),
            "rejected_reward": float(BETA * (rejected - first[1]).detach().mean()),
        }
    )


@pytest.mark.parametrize("tail", [None, PLAIN])
@pytest.mark.parametrize("start", [whole, adapted])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_at_the_start_the_loss_is_log_two(start: Any, tail: Tail | None, dtype: torch.dtype) -> None:
    model, task = start().float().train(), Preference(VOCABULARY, BETA, 0.1, tail)
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        outputs = task.forward(model, BATCH)
    assert outputs.chosen.equal(outputs.reference_chosen) and outputs.rejected.equal(outputs.reference_rejected)
    assert float(task.loss(outputs, BATCH).total.detach()) == pytest.approx(3 * math.log(2), rel=1e-7)


def test_the_reference_is_in_no_state_dict_and_always_in_evaluation_mode() -> None:
    model, plain = whole(), make()
    assert model.state_dict().keys() == plain.state_dict().keys()
    kept = copy.deepcopy(getattr(model, REFERENCE).model.state_dict())
    saved = disturbed(make()).state_dict()
    model.load_state_dict(saved, strict=True)
    assert getattr(model, REFERENCE).model.state_dict().keys() == kept.keys()
    for name, value in getattr(model, REFERENCE).model.state_dict().items():
        assert value.equal(kept[name])
    assert model.state_dict()["model.norm.weight"].equal(saved["model.norm.weight"])
    assert model.train().training and not any(m.training for m in getattr(model, REFERENCE).modules())
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict({name: value for name, value in saved.items() if "norm" not in name})


def test_what_is_trained_whole_or_goes_on_needs_a_copy() -> None:
    model = with_adapter(make(), LORA, "causal")
    add_reference(model, LORA)
    assert not hasattr(model, REFERENCE)
    also = LORA.model_copy(update={"adapter": AdapterConfig(rank=2, train_also=["norm"])})
    add_reference(model, also)
    assert hasattr(model, REFERENCE)


def test_parts_are_put_together() -> None:
    few = with_places(BATCH)
    joined, plain = together(few["chosen"], few["rejected"]), together(BATCH["chosen"], BATCH["rejected"])
    assert joined["labels"].shape == (6, 19) and plain["labels"].equal(joined["labels"])
    assert joined["labels"][:3, 16:].eq(-100).all() and joined["input_ids"][:3, 16:].eq(0).all()
    labels = joined["labels"].flatten()
    counts = (labels != -100).nonzero().flatten().tolist()
    assert sorted(place for place in joined["label_places"].tolist() if labels[place] != -100) == counts


def test_wrong_batches_are_refused() -> None:
    task = Preference(VOCABULARY)
    assert task.count(BATCH) == 3
    task.check(BATCH)
    with pytest.raises(DataError, match="'rejected', and this one has chosen"):
        task.count({"chosen": BATCH["chosen"]})
    with pytest.raises(DataError, match="3 chosen and 2 rejected"):
        task.count({**BATCH, "rejected": {name: value[:2] for name, value in BATCH["rejected"].items()}})
    with pytest.raises(ValueRangeError, match=r"rejected input_ids\[0, 0\]"):
        bad = BATCH["rejected"]["input_ids"] + VOCABULARY
        task.check({**BATCH, "rejected": {**BATCH["rejected"], "input_ids": bad}})


def test_the_formula_is_stable_far_from_the_start() -> None:
    far = torch.full((2,), -5000.0, requires_grad=True)
    zero = torch.zeros(2)
    from drumline.tasks.preference import LogProbabilities

    loss = Preference(VOCABULARY, 1.0).loss(LogProbabilities(far, zero, zero, zero), BATCH).total
    assert float(loss.detach()) == 10000.0
    assert torch.autograd.grad(loss, far)[0].tolist() == F.logsigmoid(torch.tensor([-9.0, -9.0])).sign().tolist()
