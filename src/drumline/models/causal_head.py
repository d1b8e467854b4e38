"""The output layer of a Hugging Face causal model: what its body hands it, and what becomes of its products."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from drumline.errors import ConfigError
from drumline.models.chunked_loss import Output, SummedLoss, chunked_cross_entropy, chunked_token_losses
from drumline.models.decoder import Decoder
from drumline.models.huggingface import is_pretrained, text_config
from drumline.models.token_losses import PLAIN, Tail, capped

LARGE_VOCABULARY = 2**14
"""Ids from which on the loss is chunked unless it is said otherwise: logits and their gradient, in float32, of 8,192
tokens are 1 GiB then, as much as the activations of several blocks."""

_SPREAD = 20.0
"""Standard deviation of the products that a tail is found with: caps that models have, 15 to 50, show."""

_ADVICE = "set task.chunked_loss to false"

_logger = logging.getLogger("drumline")


def choose_chunked(asked: bool | Literal["auto"], model: nn.Module) -> Tail | bool:
    """Whether the loss is chunked, and for a Hugging Face model what follows its output layer; the log says why.

    auto: for Hugging Face models with LARGE_VOCABULARY ids or more that allow it. Raises ConfigError where it is asked
    for and the model does not allow it.
    """
    if not is_pretrained(model):
        if asked is True and not isinstance(model, Decoder):
            raise ConfigError(f"task.chunked_loss needs a causal model, and a {type(model).__name__} is none", _ADVICE)
        return asked is True
    if asked is False:
        return False
    vocab_size = int(text_config(model).vocab_size)
    if asked == "auto" and vocab_size < LARGE_VOCABULARY:
        return False
    try:
        tail = find_tail(model)
    except ConfigError as error:
        if asked is True:
            raise
        _logger.info("the loss is not chunked: %s", error)
        return False
    _logger.info("the loss of %d logits a token is computed some thousand tokens at a time", vocab_size)
    return tail


def summed_loss(
    model: nn.Module, inputs: Mapping[str, Any], labels: Tensor, tail: Tail, places: Tensor | None = None
) -> SummedLoss:
    """Cross-entropy of a model whose tail `find_tail` has given, summed over labels [B, T], -100 ignored.

    inputs: what its forward takes, by name. places: as `chunked_cross_entropy` has them.
    """
    return chunked_cross_entropy(_hidden(model, inputs), output_of(model, tail), labels, places)


def token_losses(
    model: nn.Module, inputs: Mapping[str, Any], labels: Tensor, tail: Tail, places: Tensor | None = None
) -> Tensor:
    """The same of each token, [B, T]."""
    return chunked_token_losses(_hidden(model, inputs), output_of(model, tail), labels, places)


def _hidden(model: nn.Module, inputs: Mapping[str, Any]) -> Tensor:
    body: Any = model.base_model
    states: Tensor = body(**inputs)[0]
    return states


def output_of(model: nn.Module, tail: Tail = PLAIN) -> Output:
    """The output layer's tensors as they are now; under fsdp whole inside of a pass only."""
    layer: Any = _output_layer(model)
    return Output(layer.weight, layer.bias, tail)


def _output_layer(model: nn.Module) -> nn.Module:
    """The layer; where peft trains a copy of it, that copy."""
    layer: Any = model.get_output_embeddings()  # type: ignore[operator]
    copies = getattr(layer, "modules_to_save", None)
    if copies is None:
        return layer  # type: ignore[no-any-return]
    return layer.original_module if layer.disable_adapters else copies[layer.active_adapters[0]]  # type: ignore[no-any-return]


def find_tail(model: nn.Module) -> Tail:
    """What a Hugging Face causal model does to its output layer's products, found by running it.

    Its own forward runs with a body that gives random numbers and an output layer of a few columns, which costs
    nothing, whatever the model's size and device. Scales and tanh caps are looked for among the numbers of its
    configuration, and must reproduce its logits. Raises ConfigError where the logits are anything else, or the output
    layer reads anything but what the body gives.
    """
    name = type(model).__name__
    layer = _output_layer(model)
    if type(layer) is not nn.Linear:
        raise ConfigError(f"the output layer of {name} is a {type(layer).__name__} and no plain linear one", _ADVICE)
    head, body = _Columns(layer.in_features), _Random(layer.in_features)
    try:
        with torch.no_grad():
            shell = _shell(model, body, head)
            ids = torch.zeros(1, _Random.LENGTH, dtype=torch.int64)
            logits = type(model).forward(shell, input_ids=ids).logits
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"the way of {name} from its body to its logits cannot be followed: {error}", _ADVICE
        ) from error
    if len(head.read) != 1 or not torch.equal(head.read[0].float(), body.states):
        raise ConfigError(f"the output layer of {name} does not read what its body gives", _ADVICE)
    products = head.given[0].double()
    for tail in _candidates(model):
        found = capped(products, tail)
        if found.shape == logits.shape and torch.allclose(found, logits.double(), rtol=1e-4, atol=1e-4):
            return tail
    raise ConfigError(f"what {name} does to its output layer's products is neither a scale nor a cap", _ADVICE)


def _candidates(model: nn.Module) -> Iterator[Tail]:
    """Tails that the numbers of a configuration come to."""
    yield PLAIN
    numbers = text_config(model).to_dict().values()
    for number in dict.fromkeys(float(n) for n in numbers if isinstance(n, int | float) and n not in (0, 1)):
        yield Tail(scale=number)
        yield Tail(scale=1 / number)
        if number > 0:
            yield Tail(cap=number)


def _shell(model: nn.Module, body: nn.Module, head: nn.Module) -> nn.Module:
    """The model with another body and another output layer; the model itself stays as it is."""
    inside: Any = model.base_model
    layer = model.get_output_embeddings()  # type: ignore[operator]
    parts = dict(model.named_children())
    before = next((name for name, part in parts.items() if part is inside), None)
    after = next((name for name, part in parts.items() if part is layer), None)
    if before is None or after is None:
        raise ConfigError(f"body and output layer of {type(model).__name__} are not side by side", _ADVICE)
    shell = copy.copy(model)
    shell.__dict__ = {**vars(model), "_modules": {**model._modules, before: body, after: head}}
    return shell


class _Random(nn.Module):
    """In the place of a body: the same random states, whatever it is given."""

    LENGTH = 8

    def __init__(self, width: int) -> None:
        super().__init__()
        generator = torch.Generator("cpu").manual_seed(0)
        self.states = torch.randn(1, self.LENGTH, width, generator=generator, device="cpu")

    def forward(self, *_: Any, **__: Any) -> _States:
        """As the outputs of transformers' bodies are read."""
        return _States(self.states)


class _States:
    """Outputs with states alone; all else that they might have is None."""

    def __init__(self, states: Tensor) -> None:
        self.last_hidden_state = states

    def __getitem__(self, key: int | slice | str) -> Any:
        return self.last_hidden_state if key == "last_hidden_state" else (self.last_hidden_state,)[key]  # type: ignore[index]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _Columns(nn.Linear):
    """In the place of an output layer: a few columns of it, and what they read and gave."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 5, bias=False, device="meta")
        generator = torch.Generator("cpu").manual_seed(1)
        weight = torch.randn(5, width, generator=generator, device="cpu") * (_SPREAD / width**0.5)
        self.weight = nn.Parameter(weight)
        self.read: list[Tensor] = []
        self.given: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        """From [..., width] to [..., 5]."""
        self.read.append(x)
        self.given.append(super().forward(x))
        return self.given[-1]
