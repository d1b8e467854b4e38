"""Batches give the tokens that transformers' own generation gives one row at a time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import nn

from drumline.config.model import DecoderModel
from drumline.infer.causal import Causal
from drumline.infer.decoding import Padded, Prompt, Recomputed, Stepper, decode
from drumline.infer.endings import Endings, Written
from drumline.infer.sampling import Sampling
from drumline.models.decoder import decoder_from_config
from tests.unit.infer.tiny_causal import (
    ENDS,
    KINDS,
    PAD,
    ROOM,
    VOCABULARY,
    NumberTokenizer,
    by_transformers,
    causal_model,
    ids_in,
    prompts_of,
)

LENGTHS, LIMIT = (21, 20, 13, 9, 1), 12
SHAPE = (21, LIMIT)


def written(
    stepper: Stepper, prompts: Sequence[Prompt | None], sampling: Sampling | None = None, shape: tuple[int, int] = SHAPE
) -> list[Written]:
    found = decode(stepper, prompts, shape, sampling or Sampling(), Endings(NumberTokenizer(), ENDS))
    assert all(found)
    return [each for each in found if each]


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_transformers(kind: str) -> None:
    model, prompts = causal_model(kind), prompts_of(LENGTHS, LIMIT)
    expected = [by_transformers(model, prompt) for prompt in prompts]
    found = written(Padded(Causal(model), PAD), [*prompts[:2], None, *prompts[2:]])
    assert [ids_in(each.text) for each in found] == expected
    assert [each.num_tokens for each in found] == [len(ids) for ids in expected]
    assert [each.finish for each in found] == ["end" if len(ids) < LIMIT else "length" for ids in expected]
    assert len({tuple(ids) for ids in expected}) >= 3


@pytest.mark.parametrize("kind", ["llama", "mixed"])
def test_a_filler_changes_no_bit(kind: str) -> None:
    stepper, prompts = Padded(Causal(causal_model(kind)), PAD), prompts_of(LENGTHS, LIMIT)

    def scores(rows: Sequence[Prompt | None]) -> torch.Tensor:
        with torch.inference_mode():
            first = stepper.start(rows, *SHAPE)
            return torch.stack([first, stepper.step(torch.full((len(rows),), 20))])

    whole, part = scores(prompts), scores([None, prompts[1], None, None, prompts[4]])
    assert torch.equal(whole[:, [1, 4]], part[:, [1, 4]])
    assert not torch.equal(whole[:, 0], part[:, 0])


@pytest.mark.parametrize("kind", ["llama", "sliding", "mixed"])
def test_beside_rows_of_one_length_a_filler_changes_no_bit(kind: str) -> None:
    stepper, prompts = Padded(Causal(causal_model(kind)), PAD), prompts_of([9] * 4, LIMIT)
    masks: list[bool] = []

    def scores(rows: Sequence[Prompt | None]) -> torch.Tensor:
        with torch.inference_mode():
            first = stepper.start(rows, 9, LIMIT)
            masks.append(bool(stepper.mask[:, : stepper.columns].all()))
            return torch.stack([first, stepper.step(torch.full((len(rows),), 20))])

    assert torch.equal(scores(prompts)[:, 2:], scores([None, None, *prompts[2:]])[:, 2:])
    # Of a mask that covers nothing transformers makes none, and takes another kernel.
    assert masks == [False, False]


def test_each_row_has_its_own_limit() -> None:
    model = causal_model("llama")
    prompts = [Prompt(each.number, each.ids, each.number + 1) for each in prompts_of(LENGTHS, LIMIT)]
    found = written(Padded(Causal(model), PAD), prompts)
    assert [ids_in(each.text) for each in found] == [by_transformers(model, prompt) for prompt in prompts]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_a_row_without_room_for_more_does_not_hinder_one_that_has_it(kind: str) -> None:
    model = causal_model(kind)
    prompts = [Prompt(0, prompts_of([ROOM - 2], 1)[0].ids, 2), prompts_of([4], 30)[0]]
    found = written(Padded(Causal(model), PAD), prompts, shape=(ROOM - 2, 30))
    assert [ids_in(each.text) for each in found] == [by_transformers(model, prompt) for prompt in prompts]


@pytest.mark.parametrize("kind", ["llama", "sliding"])
def test_draws_do_not_depend_on_the_batch(kind: str) -> None:
    stepper, prompts = Padded(Causal(causal_model(kind)), PAD), prompts_of(LENGTHS, LIMIT)
    sampling = Sampling(temperature=1.5, top_p=0.95, top_k=30, repetition_penalty=1.2, seed=4)
    whole = written(stepper, prompts, sampling)
    assert written(stepper, prompts[::-1], sampling)[::-1] == whole
    assert [written(stepper, [prompt], sampling)[0] for prompt in prompts] == whole
    assert written(stepper, prompts, Sampling(temperature=1.5, seed=5)) != whole


def test_a_repetition_penalty_is_that_of_transformers() -> None:
    model, prompts = causal_model("llama"), prompts_of(LENGTHS, LIMIT)
    expected = [by_transformers(model, prompt, repetition_penalty=1.6) for prompt in prompts]
    found = written(Padded(Causal(model), PAD), prompts, Sampling(repetition_penalty=1.6))
    assert [ids_in(each.text) for each in found] == expected
    assert expected != [by_transformers(model, prompt) for prompt in prompts]


def test_a_model_without_a_cache_takes_all_tokens_again() -> None:
    torch.manual_seed(0)
    shape = DecoderModel(num_layers=2, num_heads=2, width=16, vocab_size=VOCABULARY)
    model = decoder_from_config(shape, VOCABULARY, ROOM)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    model.eval()
    # The last one ends where the model's context does.
    prompts = [*prompts_of(LENGTHS, LIMIT), Prompt(9, prompts_of([ROOM - 3], 3)[0].ids, 3)]

    def alone(prompt: Prompt) -> list[int]:
        ids = prompt.ids.tolist()
        for _ in range(prompt.limit):
            ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
            if ids[-1] in ENDS:
                return [int(each) for each in ids[len(prompt.ids) : -1]]
        return [int(each) for each in ids[len(prompt.ids) :]]

    with torch.inference_mode():
        expected = [alone(prompt) for prompt in prompts]
    found = written(Recomputed(model, PAD, ROOM), [prompts[0], None, *prompts[1:]], shape=(ROOM - 3, LIMIT))
    assert [ids_in(each.text) for each in found] == expected


def test_a_batch_of_fillers_has_no_answers() -> None:
    assert written(Padded(Causal(causal_model("llama")), PAD), [None, None]) == []


def test_a_rehearsal_needs_the_whole_cache() -> None:
    stepper = Padded(Causal(causal_model("llama")), PAD)
    with torch.inference_mode():
        stepper.rehearse(prompts_of(LENGTHS, LIMIT), *SHAPE)
    assert stepper.cache.layers[0].keys.shape[2] == SHAPE[0] + LIMIT
    stepper.release()
    assert stepper.cache is None


class TestEndings:
    def test_a_stop_text_is_cut_off_and_its_tokens_are_counted(self) -> None:
        endings = Endings(NumberTokenizer(), ENDS, ["3 4", "9"])
        assert endings.judge([1, 2, 3, 4, 6, 5], 20) == Written("1 2 ", 4, "stop")
        assert endings.judge([1, 9, 3, 4], 20) == Written("1 ", 2, "stop")
        assert endings.judge([1, 2], 20) is None

    def test_behind_an_end_or_the_limit_nothing_counts(self) -> None:
        endings = Endings(NumberTokenizer(), ENDS, ["3 4"])
        assert endings.judge([1, 5, 3, 4], 20) == Written("1", 1, "end")
        assert endings.judge([1, 2, 3, 4], 3) == Written("1 2 3", 3, "length")
        assert endings.judge([5], 20) == Written("", 0, "end")

    def test_what_follows_a_stop_text_does_not_count(self) -> None:
        endings = Endings(NumberTokenizer(), ENDS, ["3 4", "2 3 4 6"])
        assert endings.judge([1, 2, 3, 4], 20) == Written("1 2 ", 4, "stop")
        assert endings.judge([1, 2, 3, 4, 6, 8], 20) == Written("1 2 ", 4, "stop")

    def test_a_batch_ends_when_each_row_has_its_stop_text(self) -> None:
        model, prompts = causal_model("llama"), prompts_of(LENGTHS, 60)
        whole = [by_transformers(model, prompt) for prompt in prompts]
        stop = [f"{ids[2]} {ids[3]} " for ids in whole if len(ids) > 4]
        counted = Counted(Padded(Causal(model), PAD))
        endings = Endings(NumberTokenizer(), ENDS, stop)
        found = decode(counted, prompts, (21, 60), Sampling(), endings)
        assert found == [endings.judge([*ids, *ENDS[:1]], 60) for ids in whole]
        assert any(each is not None and each.finish == "stop" for each in found)
        assert counted.steps < 30


class Counted:
    """Counts the steps of another one."""

    def __init__(self, stepper: Stepper) -> None:
        self._stepper, self.steps = stepper, 0

    def start(self, prompts: Sequence[Prompt | None], width: int, most: int) -> torch.Tensor:
        return self._stepper.start(prompts, width, most)

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return self._stepper.step(tokens)


class Broken:
    """Scores of which a row's are no numbers, from some step on."""

    def __init__(self, place: int, step: int) -> None:
        self._place, self._step, self._now = place, step, 0

    def start(self, prompts: Sequence[Prompt | None], width: int, most: int) -> torch.Tensor:
        scores = torch.zeros(len(prompts), VOCABULARY)
        scores[:, 20] = 1
        if self._now >= self._step:
            scores[self._place, 3] = torch.nan
        return scores

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        self._now += 1
        return self.start([None] * len(tokens), 0, 0)


@pytest.mark.parametrize("temperature", [0.0, 1e-3])
def test_a_row_whose_scores_are_no_numbers_has_no_answer(temperature: float) -> None:
    prompts, endings = prompts_of([3, 3, 3], 4), Endings(NumberTokenizer(), ENDS)
    found = decode(Broken(1, 2), prompts, (3, 4), Sampling(temperature), endings)
    assert found == [Written("20 20 20 20", 4, "length"), None, Written("20 20 20 20", 4, "length")]
    late = decode(Broken(1, 4), prompts, (3, 4), Sampling(temperature), endings)
    assert late[1] == Written("20 20 20 20", 4, "length")


def test_prompts_are_not_written_to() -> None:
    prompts = prompts_of(LENGTHS, LIMIT)
    before = [prompt.ids.copy() for prompt in prompts]
    written(Padded(Causal(causal_model("llama")), PAD), prompts)
    assert all(np.array_equal(prompt.ids, ids) for prompt, ids in zip(prompts, before, strict=True))
