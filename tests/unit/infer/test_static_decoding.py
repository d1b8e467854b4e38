"""A cache of fixed size gives the tokens that one which grows gives, for all shapes that share its storage."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from drumline.infer import step_attention
from drumline.infer.causal import Causal
from drumline.infer.cuda_graphs import WARM_UPS, Graphs
from drumline.infer.decoding import Prompt, decode
from drumline.infer.endings import Endings, Written
from drumline.infer.sampling import Sampling
from drumline.infer.static_decoding import COLUMN_MULTIPLE, ROW_MULTIPLE, Static, is_static
from tests.unit.infer.tiny_causal import (
    ENDS,
    KINDS,
    PAD,
    NumberTokenizer,
    by_transformers,
    causal_model,
    ids_in,
    prompts_of,
)

LENGTHS, LIMIT = (21, 20, 13, 9, 1), 12


def written(stepper: Static, prompts: Sequence[Prompt | None], width: int = 21) -> list[Written]:
    found = decode(stepper, prompts, (width, LIMIT), Sampling(), Endings(NumberTokenizer(), ENDS))
    return [each for each in found if each]


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_transformers(kind: str) -> None:
    model, prompts = causal_model(kind), prompts_of(LENGTHS, LIMIT)
    causal = Causal(model)
    assert is_static(causal)
    stepper = Static(causal, PAD)
    expected = [by_transformers(model, prompt) for prompt in prompts]
    # Smaller, larger than what is there, and smaller again: in new storage, and in old of which others were written.
    assert [ids_in(each.text) for each in written(stepper, prompts[3:], 9)] == expected[3:]
    large = [*prompts, None, *prompts, *prompts]
    assert [ids_in(each.text) for each in written(stepper, large)] == expected * 3
    assert [ids_in(each.text) for each in written(stepper, [*prompts[:2], None, *prompts[2:]])] == expected


def test_a_filler_changes_no_bit() -> None:
    stepper, prompts = Static(Causal(causal_model("llama")), PAD), prompts_of(LENGTHS, LIMIT)

    def scores(rows: Sequence[Prompt | None]) -> torch.Tensor:
        with torch.inference_mode():
            first = stepper.start(rows, 21, LIMIT)
            return torch.stack([first, stepper.step(torch.full((len(rows),), 20))])

    assert torch.equal(scores(prompts)[:, [1, 4]], scores([None, prompts[1], None, None, prompts[4]])[:, [1, 4]])


def test_what_an_earlier_batch_left_cannot_leak() -> None:
    model, prompts = causal_model("llama"), prompts_of(LENGTHS, LIMIT)
    stepper = Static(Causal(model), PAD)
    expected = written(stepper, prompts)
    with torch.inference_mode():
        for keys, values in stepper._storage:
            keys.fill_(float("nan"))
            values.fill_(float("inf"))
    assert written(stepper, prompts) == expected


def test_tokens_of_an_earlier_batch_are_not_computed_again() -> None:
    stepper, prompts = Static(Causal(causal_model("experts")), PAD), prompts_of([9] * 8, LIMIT)
    written(stepper, prompts, 9)
    [held] = stepper._sizes.values()
    assert held._tokens[5:].any()
    written(stepper, prompts[:5], 9)
    assert not held._tokens[5:].any()


def test_what_is_given_back_waits_for_no_collection() -> None:
    stepper = Static(Causal(causal_model("llama")), PAD)
    gc.disable()
    try:
        written(stepper, prompts_of([9, 4], LIMIT), 9)
        held = [weakref.ref(each) for each in stepper._sizes.values()]
        stepper.release()
        assert [each() for each in held] == [None]
    finally:
        gc.enable()


def test_sizes_are_shared_and_memory_can_be_given_back() -> None:
    stepper, prompts = Static(Causal(causal_model("llama")), PAD), prompts_of(LENGTHS, LIMIT)
    expected = written(stepper, prompts)
    for count in (5, 4, 3):
        written(stepper, prompts[:count])
    assert list(stepper._sizes) == [(ROW_MULTIPLE, COLUMN_MULTIPLE)]
    heads, width = 2, 8
    assert stepper._storage[0][0].numel() == ROW_MULTIPLE * heads * COLUMN_MULTIPLE * width
    stepper.release()
    assert not stepper._sizes and not stepper._storage
    assert written(stepper, prompts) == expected


def test_heads_of_keys_and_values_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts go through torch's attention, each of three steps through our own; there are two layers."""
    seen: dict[str, list[tuple[int, int]]] = {"prompts": [], "steps": []}
    torchs, ours = torch.nn.functional.scaled_dot_product_attention, step_attention.attend

    def watched(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
        seen["prompts"].append((key.shape[1], value.shape[1]))
        return torchs(query, key, value, **options)

    def watched_steps(module: Any, query: Any, key: Any, value: Any, *others: Any, **options: Any) -> Any:
        seen["steps"].append((key.shape[1], value.shape[1]))
        return ours(module, query, key, value, *others, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", watched)
    monkeypatch.setattr(step_attention, "attend", watched_steps)
    stepper = Static(Causal(causal_model("llama")), PAD)
    written(stepper, prompts_of(LENGTHS, 3))
    assert seen == {"prompts": [(2, 2)] * 2, "steps": [(2, 2)] * 6}


def test_no_more_columns_are_read_than_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drumline.infer.static_decoding.READ_MULTIPLE", 8)
    model, prompts = causal_model("mixed"), prompts_of(LENGTHS, LIMIT)
    stepper = Static(Causal(model), PAD)
    for _ in range(2):
        found = written(stepper, prompts)
        assert [ids_in(each.text) for each in found] == [by_transformers(model, prompt) for prompt in prompts]
    [held] = stepper._sizes.values()
    assert list(held._steps) == [24, 32, 40]


@pytest.mark.parametrize("kind", ["llama", "mixed"])
def test_trying_steps_in_the_midst_of_a_batch_changes_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    def captured(self: Graphs, action: Callable[[], object], undo: Callable[[], object]) -> Callable[[], object]:
        for number in range(WARM_UPS):
            action()
            undo()
            tried.append(number)
        return action

    monkeypatch.setattr("drumline.infer.static_decoding.READ_MULTIPLE", 4)
    monkeypatch.setattr(Graphs, "captured", captured)
    model, prompts = causal_model(kind), prompts_of(LENGTHS, LIMIT)
    found = written(Static(Causal(model), PAD), prompts)
    assert [ids_in(each.text) for each in found] == [by_transformers(model, prompt) for prompt in prompts]
    assert len(tried) >= 3 * WARM_UPS


def test_without_a_gpu_an_action_stays_what_it_is() -> None:
    graphs = Graphs(torch.device("cpu"))
    assert graphs.captured(list, dict) is list
    assert not graphs.is_on


def test_a_rehearsal_takes_the_whole_storage() -> None:
    stepper = Static(Causal(causal_model("sliding")), PAD)
    with torch.inference_mode():
        stepper.rehearse(prompts_of(LENGTHS, LIMIT), 21, 100)
    assert stepper._storage[0][0].numel() == ROW_MULTIPLE * 2 * 2 * COLUMN_MULTIPLE * 8
