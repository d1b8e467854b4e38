"""The beginning that prompts share is found, computed once, and changes no answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from drumline.infer.causal import Causal
from drumline.infer.decoding import Padded, Prompt, decode
from drumline.infer.endings import Endings
from drumline.infer.prefix import PrefixCache, begins, is_worth_it, shared_prefix
from drumline.infer.sampling import Sampling
from drumline.infer.static_decoding import Static
from tests.unit.infer.tiny_causal import (
    ENDS,
    PAD,
    NumberTokenizer,
    by_transformers,
    causal_model,
    ids_in,
    prompts_of,
    tokens,
)

SHARED, LIMIT = 12, 10
LENGTHS = (30, 21, 17, 13)


def test_the_longest_shared_beginning_is_found() -> None:
    prompts = [tokens(1, 2, 3, 4, 5), tokens(1, 2, 3, 9), tokens(1, 2, 3, 4, 7, 8)]
    assert shared_prefix(prompts, 2) == [1, 2, 3]
    assert shared_prefix(prompts, 4) == []
    assert shared_prefix([tokens(1, 2), tokens(3, 2)], 1) == []


def test_each_prompt_goes_on_after_it() -> None:
    assert shared_prefix([tokens(1, 2, 3), tokens(1, 2, 3, 4)], 1) == [1, 2]
    assert shared_prefix([tokens(1, 2, 3)] * 3, 1) == [1, 2]
    assert begins(tokens(1, 2, 3), [1, 2])
    assert not begins(tokens(1, 2), [1, 2])
    assert not begins(tokens(1, 3, 3), [1, 2])


def test_of_one_row_or_of_few_tokens_nothing_is_shared() -> None:
    assert shared_prefix([tokens(*range(100))]) == []
    assert shared_prefix([tokens(*range(20))] * 5) == []
    assert len(shared_prefix([tokens(*range(60))] * 5)) == 59


def test_a_small_part_of_the_prompts_does_not_pay() -> None:
    prompts = [tokens(*range(400))] * 2
    assert is_worth_it(range(50), prompts)
    assert not is_worth_it(range(49), prompts)
    assert not is_worth_it([], [])


class Watched(Causal):
    """Notes how many tokens go through the model."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__(model)
        self.sizes: list[tuple[int, ...]] = []

    def __call__(self, ids: torch.Tensor, mask: Any, positions: torch.Tensor, cache: Any) -> torch.Tensor:
        self.sizes.append(tuple(ids.shape))
        return super().__call__(ids, mask, positions, cache)


def answers(stepper: Padded, prompts: Sequence[Prompt | None], width: int = 30) -> list[list[int]]:
    found = decode(stepper, prompts, (width, LIMIT), Sampling(), Endings(NumberTokenizer(), ENDS))
    return [ids_in(each.text) for each in found if each]


@pytest.mark.parametrize("kind", ["llama", "gpt2", "experts"])
@pytest.mark.parametrize("how", [Padded, Static])
def test_answers_are_those_of_whole_prompts(kind: str, how: type[Padded]) -> None:
    causal, prompts = Watched(causal_model(kind)), prompts_of(LENGTHS, LIMIT, SHARED)
    prefix = shared_prefix([prompt.ids for prompt in prompts], 1)
    assert prefix == prompts[0].ids[:SHARED].tolist()
    stepper = how(causal, PAD, PrefixCache(causal, prefix))
    expected = [by_transformers(causal.model, prompt) for prompt in prompts]
    assert answers(stepper, [*prompts[:1], None, *prompts[1:]]) == expected
    assert answers(stepper, prompts) == expected
    # Once by itself, and then of each batch the rest.
    assert [size for size in causal.sizes if size[1] > 1] == [(1, SHARED), (5, 30 - SHARED), (4, 30 - SHARED)]


def test_a_row_with_another_beginning_goes_without_whatever_the_others_do() -> None:
    causal, prompts = Watched(causal_model("llama")), prompts_of(LENGTHS, LIMIT, SHARED)
    other = Prompt(9, tokens(*range(12, 12 + SHARED)), LIMIT)
    stepper = Padded(causal, PAD, PrefixCache(causal, prompts[0].ids[:SHARED].tolist()))
    mixed = [*prompts, other]
    assert answers(stepper, mixed) == [by_transformers(causal.model, prompt) for prompt in mixed]
    assert [size for size in causal.sizes if size[1] > 1] == [(1, SHARED), (5, 30 - SHARED), (5, 30)]
    # With the odd one filled in for, the others go the way they went.
    causal.sizes.clear()
    answers(stepper, [*prompts, None])
    assert [size for size in causal.sizes if size[1] > 1] == [(5, 30 - SHARED)]


def test_a_sliding_window_takes_no_prefix() -> None:
    causal, prompts = Watched(causal_model("mixed")), prompts_of(LENGTHS, LIMIT, SHARED)
    assert not causal.allows_gaps
    stepper = Padded(causal, PAD, PrefixCache(causal, prompts[0].ids[:SHARED].tolist()))
    assert answers(stepper, prompts) == [by_transformers(causal.model, prompt) for prompt in prompts]
