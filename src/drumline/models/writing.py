"""A causal model writes on from some tokens: by transformers' own generation, or a plain loop for our own decoder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from drumline.errors import ConfigError
from drumline.models.decoder import Decoder
from drumline.models.huggingface import is_pretrained, learned_positions, text_config

Seen = Callable[[int], bool]
"""Is told each new id, and says whether the model is to go on."""

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")


@dataclass(frozen=True)
class Wishes:
    """How an answer is written."""

    max_new_tokens: int = 512
    temperature: float | None = None
    """0: always the likeliest token; None: as the model's generation config says, which may be that too."""
    seed: int | None = None
    """Of the random stream, set anew for each answer; None: another answer each time."""


@dataclass(frozen=True)
class Answer:
    """What was written."""

    ids: tuple[int, ...]
    """Without the id that ended it."""
    ended: Literal["end", "length", "stopped"]
    """By an id that ends answers, by the number of tokens, or because it was asked to stop."""
    seconds: float


def write_on(
    model: nn.Module, ids: Sequence[int], ends: Sequence[int], settings: Mapping[str, Any], wishes: Wishes, seen: Seen
) -> Answer:
    """Let a causal model go on from these ids, up to one of `ends`.

    settings: as in a generation_config.json; of the reference decoder only do_sample and temperature count. Raises
    ConfigError where the ids leave the model no room.
    """
    if not ids:
        raise ConfigError("there is nothing to go on from", "give a prompt")
    length, room = wishes.max_new_tokens, room_of(model)
    if room is not None and is_pretrained(model):
        if len(ids) >= room:
            raise ConfigError(f"these are {len(ids)} tokens, and the model takes {room}", "begin anew, or say less")
        length = min(length, room - len(ids))
    if wishes.seed is not None:
        torch.manual_seed(wishes.seed)
    watch = _Watch(seen, frozenset(ends), length)
    began = time.monotonic()
    with torch.inference_mode():
        if is_pretrained(model):
            _by_transformers(model, ids, dict(settings), wishes, watch)
        else:
            _by_hand(model, ids, settings, wishes, watch)
    return Answer(tuple(watch.ids), watch.ended, time.monotonic() - began)


def room_of(model: nn.Module) -> int | None:
    """Most tokens of prompt and answer together; None where the model does not say."""
    if isinstance(model, Decoder):
        return model.shape.context
    if not is_pretrained(model):
        return None
    return learned_positions(model) or getattr(text_config(model), "max_position_embeddings", None)


class _Watch:
    """Takes each new id in, and knows when it is over. Transformers calls it as its streamer and stopping criterion."""

    def __init__(self, seen: Seen, ends: frozenset[int], length: int) -> None:
        self._seen, self._ends, self.length = seen, ends, length
        self._is_prompt = True
        self.ids: list[int] = []
        self.ended: Literal["end", "length", "stopped"] = "length"
        self.over = False

    def take(self, number: int) -> None:
        """One more id."""
        if number in self._ends:
            self.ended, self.over = "end", True
            return
        self.ids.append(number)
        if not self._seen(number):
            self.ended, self.over = "stopped", True
        self.over = self.over or len(self.ids) >= self.length

    def put(self, value: Tensor) -> None:
        """The prompt first, and then each new id (transformers' streamer)."""
        if self._is_prompt:
            self._is_prompt = False
        elif not self.over:
            for number in value.reshape(-1).tolist():
                self.take(int(number))

    def end(self) -> None:
        """Nothing is held back."""

    def __call__(self, input_ids: Tensor, scores: Any, **more: Any) -> Tensor:
        """Whether it is over, a row each (transformers' stopping criterion)."""
        return torch.full((len(input_ids),), self.over, dtype=torch.bool, device=input_ids.device)


def _by_transformers(model: Any, ids: Sequence[int], settings: dict[str, Any], wishes: Wishes, watch: _Watch) -> None:
    from transformers import GenerationConfig

    settings.pop("max_length", None)
    if wishes.temperature is not None:
        settings["do_sample"] = wishes.temperature > 0
        settings["temperature"] = wishes.temperature
    if not settings.get("do_sample"):
        for name in _SAMPLING:
            settings.pop(name, None)
    settings |= {"max_new_tokens": watch.length, "use_cache": True, "return_dict_in_generate": False}
    given = torch.tensor([list(ids)], device=model.device)
    model.generate(
        given,
        attention_mask=torch.ones_like(given),
        generation_config=GenerationConfig.from_dict(settings),
        streamer=watch,
        stopping_criteria=[watch],
    )


def _by_hand(model: nn.Module, ids: Sequence[int], settings: Mapping[str, Any], wishes: Wishes, watch: _Watch) -> None:
    """Without a cache of keys and values, from as many of the newest tokens as the model takes."""
    device, room = next(model.parameters()).device, room_of(model)
    usual = float(settings.get("temperature", 1.0)) if settings.get("do_sample") else 0.0
    temperature = usual if wishes.temperature is None else wishes.temperature
    given = torch.tensor([list(ids)], device=device)
    while not watch.over:
        scores = model(given if room is None else given[:, -room:])[0, -1].float()
        drawn = torch.multinomial((scores / temperature).softmax(-1), 1) if temperature > 0 else scores.argmax().view(1)
        given = torch.cat([given, drawn[None]], dim=1)
        watch.take(int(drawn))
