"""Causal attention over several texts in a row, for transformers' models, by torch's variable-length kernel.

transformers calls it by the name VARLEN, and hands it what a batch has beside ids: `cu_seqlens`, where each text
begins. No mask of tokens by tokens is made on a GPU, and the host waits for nothing.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drumline.errors import ConfigError, MissingExtra

VARLEN = "drumline_varlen"
"""As transformers knows it: no name of a mask function, so that it makes no mask, and none that has the name of one of
its own kernels in it."""

HALF = (torch.float16, torch.bfloat16)
WIDEST_HEAD = 256
"""Of flash attention's kernels."""

_UNKNOWN = ("softcap", "s_aux", "position_bias", "head_mask")
"""What some models want of attention besides, and these kernels cannot do."""


class Kernel(NamedTuple):
    """torch's function, and what it wants to be told."""

    call: Any
    told_of_groups: bool
    """Whether it wants to know of fewer heads of keys than of queries; before torch 2.12 it takes them as they are."""


_kernel: Kernel | None = None


def load_kernel() -> Kernel:
    """Import torch's function, which brings the whole compiler along: seconds that only those pay who need it."""
    global _kernel
    if _kernel is None:
        from torch.nn.attention.varlen import varlen_attn

        _kernel = Kernel(varlen_attn, "enable_gqa" in inspect.signature(varlen_attn).parameters)
    return _kernel


def register() -> None:
    """Make VARLEN known to transformers; doing so twice is allowed. Raises MissingExtra without the package."""
    try:
        from transformers import AttentionInterface
    except ImportError as error:
        raise MissingExtra("transformers", "hf") from error
    load_kernel()
    AttentionInterface.register(VARLEN, varlen_attention)


def varlen_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **given: Any,
) -> tuple[Tensor, None]:
    """Attend to what comes before in the same text: [B, H, T, D] queries to [B, T, H, D]; keys may have fewer heads.

    given: what transformers and the batch say: dropout, scaling, sliding_window, and cu_seqlens (see PackedBatch).
    Without cu_seqlens each row is one text, and padding must come after it: no token sees what follows. A mask that is
    there all the same is used, by torch's fused attention; so it is with dropout, and where the kernel cannot be had
    (CPU, float32), with a mask of tokens by tokens. Raises ConfigError for a layer that looks ahead, and for what the
    kernel does not know.
    """
    if not getattr(module, "is_causal", True):
        raise _refused(module, "looks at what follows")
    for name in _UNKNOWN:
        if given.get(name) is not None:
            raise _refused(module, f"needs {name}")
    starts, window = given.get("cu_seqlens"), given.get("sliding_window")
    scale, dropout = given.get("scaling"), float(given.get("dropout") or 0.0)
    if window is not None and window >= key.shape[2]:
        window = None
    kind = query.device.type
    # Rotary positions are computed in float32 under autocast, and leave queries and keys so.
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else query.dtype
    if attention_mask is None and starts is not None and dropout == 0.0 and takes(query, value, dtype):
        return by_kernel(query.to(dtype), key.to(dtype), value.to(dtype), starts, scale, window), None
    mask = attention_mask
    if mask is None and (starts is not None or window is not None or 1 < query.shape[2] < key.shape[2]):
        mask = allowed(query, key, starts, window)
    causal = mask is None and query.shape[2] > 1
    grouped = query.shape[1] != key.shape[1]
    if grouped and mask is not None:  # else torch would fall back to its slowest kernel
        key, value = (each.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for each in (key, value))
        grouped = False
    mixed = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, dropout_p=dropout, is_causal=causal, scale=scale, enable_gqa=grouped
    )
    return mixed.transpose(1, 2), None


def takes(query: Tensor, value: Tensor, dtype: torch.dtype) -> bool:
    """Whether the kernel can be had for these tensors, computed in this type."""
    width = query.shape[-1]
    return query.is_cuda and dtype in HALF and width == value.shape[-1] and width <= WIDEST_HEAD and width % 8 == 0


def by_kernel(
    query: Tensor, key: Tensor, value: Tensor, starts: Tensor, scale: float | None, window: int | None
) -> Tensor:
    """[B, H, T, D] in half precision to [B, T, H, D]; starts: cu_seqlens over the B * T tokens."""
    batch, heads, length, width = query.shape
    query, key, value = (each.transpose(1, 2).reshape(batch * length, -1, width) for each in (query, key, value))
    # No text is longer than a row: a bound that is known without a look at the batch.
    options: dict[str, Any] = {"scale": scale, "window_size": (-1 if window is None else window - 1, 0)}
    kernel = _kernel or load_kernel()
    if kernel.told_of_groups and heads != key.shape[1]:
        options["enable_gqa"] = True
    mixed = kernel.call(query, key, value, starts, starts, length, length, **options)
    assert isinstance(mixed, Tensor)
    return mixed.view(batch, length, heads, width)


def allowed(query: Tensor, key: Tensor, starts: Tensor | None, window: int | None) -> Tensor:
    """Which keys each query may see, bool [B or 1, 1, T, S]: those up to its own place, in its own text and window."""
    length, total = query.shape[2], key.shape[2]
    keys = torch.arange(total, device=query.device)
    places = keys[total - length :, None]  # queries are the last of the keys' places
    mask = keys <= places
    if window is not None:
        mask = mask & (keys > places - window)
    if starts is None:
        return mask[None, None]
    flat = torch.arange(query.shape[0] * length, device=query.device, dtype=starts.dtype)
    text = torch.searchsorted(starts, flat, right=True).view(query.shape[0], length)
    return (mask & (text[:, :, None] == text[:, None, :]))[:, None]


def _refused(module: nn.Module, why: str) -> ConfigError:
    return ConfigError(
        f"model.attention is varlen, and a layer of the model, {type(module).__name__}, {why}",
        "set model.attention to sdpa, or to auto",
    )
