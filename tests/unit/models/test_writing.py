"""A causal model writes on: by transformers, and by hand for the reference decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from drumline.config.model import DecoderModel
from drumline.errors import ConfigError
from drumline.models.decoder import decoder_from_config
from drumline.models.writing import Answer, Wishes, write_on

VOCABULARY, ROOM = 48, 24


def llama() -> nn.Module:
    shape = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(
        **shape, num_attention_heads=2, max_position_embeddings=ROOM, initializer_range=0.5, eos_token_id=None
    )
    model: nn.Module = transformers.LlamaForCausalLM(config)
    return model.eval()


def decoder() -> nn.Module:
    model = decoder_from_config(DecoderModel(num_layers=1, num_heads=2, width=16), VOCABULARY, ROOM)
    for p in model.parameters():
        nn.init.normal_(p, std=0.5)
    return model.eval()


@pytest.fixture(params=[llama, decoder], ids=["llama", "decoder"])
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    made: nn.Module = request.param()
    return made


def by_argmax(model: nn.Module, ids: Sequence[int], number: int) -> list[int]:
    """The likeliest tokens, each from a whole pass without a cache."""
    given = list(ids)
    for _ in range(number):
        outputs: Any = model(torch.tensor([given]))
        scores = outputs if isinstance(outputs, torch.Tensor) else outputs.logits
        given.append(int(scores[0, -1].argmax()))
    return given[len(ids) :]


def write(
    model: nn.Module, wishes: Wishes, ends: Sequence[int] = (), stop_after: int = 99, **settings: Any
) -> tuple[list[int], Answer]:
    """What was seen one by one, and the answer."""
    seen: list[int] = []

    def take(number: int) -> bool:
        seen.append(number)
        return len(seen) < stop_after

    return seen, write_on(model, [3, 1, 4], ends, settings, wishes, take)


def test_without_temperature_the_likeliest_tokens_come_one_by_one(model: nn.Module) -> None:
    expected = by_argmax(model, [3, 1, 4], 8)
    seen, answer = write(model, Wishes(max_new_tokens=8, temperature=0))
    assert (seen, list(answer.ids), answer.ended) == (expected, expected, "length")
    assert write(model, Wishes(max_new_tokens=8))[0] == expected  # as settings that do not sample have it


def test_an_end_is_not_part_of_the_answer(model: nn.Module) -> None:
    expected = by_argmax(model, [3, 1, 4], 8)
    last = next(number for number in range(1, 8) if expected[number] not in expected[:number])
    seen, answer = write(model, Wishes(max_new_tokens=8), [expected[last]])
    assert (seen, list(answer.ids), answer.ended) == (expected[:last], expected[:last], "end")


def test_it_stops_when_nobody_listens(model: nn.Module) -> None:
    seen, answer = write(model, Wishes(max_new_tokens=8), stop_after=3)
    assert (len(seen), list(answer.ids), answer.ended) == (3, seen, "stopped")


def test_a_seed_gives_the_same_answer_again(model: nn.Module) -> None:
    wishes = Wishes(max_new_tokens=12, temperature=5.0, seed=1)
    first = write(model, wishes)[0]
    assert write(model, wishes)[0] == first
    assert write(model, Wishes(max_new_tokens=12, temperature=5.0, seed=2))[0] != first
    assert write(model, Wishes(max_new_tokens=12, seed=1), do_sample=True, temperature=5.0)[0] == first


def test_room_is_what_the_model_has(model: nn.Module) -> None:
    seen, answer = write(model, Wishes(max_new_tokens=30))
    assert len(seen) == (30 if not hasattr(model, "config") else ROOM - 3)  # our own looks at the newest tokens only
    assert answer.ended == "length"
    with pytest.raises(ConfigError, match="nothing to go on from"):
        write_on(model, [], [], {}, Wishes(), lambda number: True)


def test_a_prompt_that_leaves_no_room_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"{ROOM} tokens, and the model takes {ROOM}"):
        write_on(llama(), [1] * ROOM, [], {}, Wishes(), lambda number: True)
