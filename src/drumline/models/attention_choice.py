"""Which kinds of attention a causal transformers model has, found out by trying them on a small one of its class."""

from __future__ import annotations

import copy
import importlib.util
import logging
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from drumline.config.model import HuggingFaceModel
from drumline.data.document_packing import starts_of
from drumline.errors import ConfigError
from drumline.launcher.world import detect_world
from drumline.models.attention_varlen import VARLEN, register
from drumline.models.huggingface import head_of, is_pretrained

Attention = Literal["sdpa", "varlen", "flash_attention_2", "flex_attention", "eager"]

TEXTS = ((5, 7), (3, 4, 5))
"""Lengths of the texts of each row that is tried: not equal, and two rows, since some kinds pack one row only."""
WIDTH, HEADS, VOCABULARY = 64, 4, 64
"""Of the small model."""
LAST: tuple[Attention, ...] = ("eager",)
"""Kinds that are taken where no other is right."""
CLOSE = 1e-4
"""Logits that are further apart, as a share of the largest, come of another text or another place. Other texts were
seen to change them by a tenth and more, other orders of addition by 1e-6."""

CLOSE_IN_HALF = 0.01
"""The same in float16."""
ON_GPU = ("flash_attention_2", "flex_attention")
"""Kinds that are tried there: they have no kernels for a CPU, or slow ones."""

logger = logging.getLogger(__name__)


class Packing(NamedTuple):
    """Whether several texts share a row, and why."""

    packed: bool
    reason: str


def packing_of(model: nn.Module, config: HuggingFaceModel, asked: Literal["auto", "packed", "none"]) -> Packing:
    """Whether to pack texts for this model; its attention is set to one that fits, on CPU and on a GPU.

    asked: data.packing. Raises ConfigError for packed where the model's attention cannot keep texts apart.
    """
    if asked == "none":
        names: Sequence[Attention] = candidates(model, config, packed=False)
        packing = Packing(False, "data.packing is none")
    elif names := candidates(model, config, packed=True):
        packing = Packing(True, f"auto: {names[0]} attention keeps the texts of a row apart")
        if asked == "packed":
            packing = Packing(True, "data.packing is packed")
    else:
        how = "any attention that was tried" if config.attention == "auto" else f"{config.attention} attention"
        why = f"with {how} a {type(model).__name__} would mix the texts of a row"
        if asked == "packed":
            raise ConfigError(
                f"data.packing is packed, and {why}", "set data.packing to auto, or model.attention to auto"
            )
        names = candidates(model, config, packed=False)
        packing = Packing(False, f"auto: {why}")
    if names:
        set_attention(model, names[0])
    return packing


def candidates(model: nn.Module, config: HuggingFaceModel, *, packed: bool) -> list[Attention]:
    """The kinds that are right for such batches, most promising first; of a kind that is asked for that one or none."""
    if config.attention != "auto":
        return [config.attention] if is_right(model, config.attention, packed=packed) else []
    names: list[Attention] = ["sdpa", "varlen"]
    if torch.cuda.is_available():
        # Asked for by name without the package, transformers would look for kernels on the hub; and it can only be
        # tried once the process has its GPU.
        has_flash = torch.cuda.is_initialized() and importlib.util.find_spec("flash_attn") is not None
        names = ["varlen", "flash_attention_2", "sdpa"] if has_flash else ["varlen", "sdpa"]
    found = [name for name in names if is_right(model, name, packed=packed)]
    # The slow one serves models whose attention has something that the others lack, as soft caps.
    return found or [name for name in LAST if is_right(model, name, packed=packed)]


def can_keep_apart(model: nn.Module, attention: Attention) -> bool:
    """Whether with this attention no text of a packed row has a part in another's logits, and each begins at 0."""
    return is_right(model, attention, packed=True)


def is_right(model: nn.Module, attention: Attention, *, packed: bool) -> bool:
    """Whether each text of a batch gets the logits that it gets alone, in a small random model of the same class.

    packed: several texts a row; else one, filled up at its end, and no mask. False too for a model of which no small
    one can be made, or that takes no such batch. The model itself may lie anywhere and have no values; random streams
    stay as they are.
    """
    body = pretrained_in(model)
    if body is None or head_of(body) != "causal":
        return False
    on_gpu = attention in ON_GPU and torch.cuda.is_available()
    device = own_gpu() if on_gpu else torch.device("cpu")
    try:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
            torch.manual_seed(0)
            small = small_twin(body)
            set_attention(small, attention)
            small.to(device, torch.float16 if on_gpu else torch.float32)
            return _agrees(small, device, CLOSE_IN_HALF if on_gpu else CLOSE, packed=packed)
    # Whatever a model of somebody else's makes of sizes and batches that it was not made for.
    except Exception as error:
        logger.info("%s attention is not taken for %s: %s", attention, type(body).__name__, error)
        return False


def own_gpu() -> torch.device:
    """The GPU of this process, or the one that it is likely to get."""
    if torch.cuda.is_initialized():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cuda", detect_world().local_rank % torch.cuda.device_count())


def set_attention(model: nn.Module, attention: Attention) -> None:
    """Have the transformers models inside compute attention so from the next pass on, also where they are sharded."""
    name: str = attention
    if attention == "varlen":
        register()
        name = VARLEN
    for module in model.modules():
        if is_pretrained(module):
            # Not by set_attn_implementation: it reads the source of the class, which sharding has replaced.
            module.config._attn_implementation = name  # type: ignore[union-attr]


def pretrained_in(model: nn.Module) -> nn.Module | None:
    """The outermost transformers model of a module."""
    return next((module for module in model.modules() if is_pretrained(module)), None)


def small_twin(model: nn.Module) -> nn.Module:
    """A model of the same class, but for a few layers, heads and channels, with random weights, in evaluation mode."""
    config: Any = copy.deepcopy(model.config)
    text = config.get_text_config()
    kinds = list(dict.fromkeys(getattr(text, "layer_types", None) or []))
    sizes = {
        "num_hidden_layers": max(2, len(kinds)),
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "moe_intermediate_size": 2 * WIDTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS if _are_as_many(text) else HEADS // 2,
        "head_dim": WIDTH // HEADS,
        "vocab_size": VOCABULARY,
    }
    for name, size in sizes.items():
        if getattr(text, name, None) is not None:
            setattr(text, name, size)
    if kinds:
        text.layer_types = (kinds * 2)[: max(2, len(kinds))]
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(text, name, None if getattr(text, name, None) is None else 0)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return _class_of(model)._from_config(config).eval()  # type: ignore[no-any-return]


def _are_as_many(text: Any) -> bool:
    """Whether there are as many heads of keys as of queries."""
    return bool(getattr(text, "num_key_value_heads", None) == text.num_attention_heads)


def _class_of(model: nn.Module) -> Any:
    """The model's class as transformers has it: sharding puts one of its own in front."""
    return next(each for each in type(model).__mro__ if each.__module__.partition(".")[0] != "torch")


def _agrees(small: Any, device: torch.device, close: float, *, packed: bool) -> bool:
    rows = TEXTS if packed else ((sum(TEXTS[0]),), TEXTS[1][:1])
    texts = [torch.randint(1, VOCABULARY, (length,)).to(device) for row in rows for length in row]
    whole = small(**_batch(texts, rows, packed=packed)).logits
    place = iter(texts)
    for row, lengths in enumerate(rows):
        start = 0
        for length in lengths:
            alone = small(input_ids=next(place)[None]).logits[0]
            found = whole[row, start : start + length]
            if not bool((found - alone).abs().max() <= close * alone.abs().max()):
                return False
            start += length
    return True


def _batch(texts: Sequence[Tensor], rows: Sequence[Sequence[int]], *, packed: bool) -> dict[str, Tensor]:
    """Texts in their rows, as they come in training."""
    number = iter(texts)
    joined = [torch.cat([next(number) for _ in row]) for row in rows]
    ids = nn.utils.rnn.pad_sequence(joined, batch_first=True)
    if not packed:
        return {"input_ids": ids}
    places = torch.stack([torch.cat([torch.arange(length) for length in row]) for row in rows]).to(ids.device)
    return {"input_ids": ids, "position_ids": places, "cu_seqlens": starts_of(places, 8)}
