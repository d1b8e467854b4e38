"""Causal attention over several texts in a row."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drumline.errors import ConfigError
from drumline.models import attention_varlen
from drumline.models.attention_varlen import by_kernel, varlen_attention

STARTS = torch.tensor([0, 3, 8, 10, 16, 16, 16], dtype=torch.int32)
"""Of two rows of eight tokens: texts of 3, 5, 2 and 6 of them."""


class Layer(nn.Module):
    """What transformers hands over as itself."""

    is_causal = True


def tensors(num_kv_heads: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    heads = num_kv_heads
    query, key, value = (torch.randn(2, each, 8, 16, generator=generator) for each in (4, heads, heads))
    return query, key, value


def by_text(query: Tensor, key: Tensor, value: Tensor, window: int | None = None) -> Tensor:
    """Each text by itself; [2, H, 8, D] to [2, 8, H, D]."""
    whole = (each.repeat_interleave(4 // each.shape[1], 1) for each in (query, key, value))
    queries, keys, values = (each.transpose(0, 1).flatten(1, 2) for each in whole)
    parts = []
    for start, end in itertools.pairwise(STARTS[:5].tolist()):
        places = torch.arange(end - start)
        mask = places[:, None] >= places
        if window is not None:
            mask &= places[:, None] - places < window
        own = slice(start, end)
        parts.append(F.scaled_dot_product_attention(queries[:, own], keys[:, own], values[:, own], attn_mask=mask))
    return torch.cat(parts, dim=1).view(4, 2, 8, -1).permute(1, 2, 0, 3)


@pytest.mark.parametrize("num_kv_heads", [4, 2, 1])
@pytest.mark.parametrize("window", [None, 1, 2, 8])
def test_each_text_attends_to_itself(num_kv_heads: int, window: int | None) -> None:
    mixed, _ = varlen_attention(Layer(), *tensors(num_kv_heads), None, cu_seqlens=STARTS, sliding_window=window)
    torch.testing.assert_close(mixed, by_text(*tensors(num_kv_heads), window))


@pytest.mark.parametrize("num_kv_heads", [4, 2])
@pytest.mark.parametrize("window", [None, 2])
def test_the_kernel_gets_texts_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, num_kv_heads: int, window: int | None
) -> None:
    """The kernel's own contract, by a loop over texts."""

    def loop(
        query: Tensor, key: Tensor, value: Tensor, *given: Any, scale: Any, window_size: Any, **more: Any
    ) -> Tensor:
        assert torch.equal(given[0], STARTS)
        assert torch.equal(given[1], STARTS)
        assert given[2:] == (8, 8)
        assert scale is None
        assert window_size == ((-1, 0) if window is None else (window - 1, 0))
        assert ("enable_gqa" in more) == (num_kv_heads != 4)
        shaped = [each.unflatten(0, (2, 8)).transpose(1, 2) for each in (query, key, value)]
        return by_text(shaped[0], shaped[1], shaped[2], window).flatten(0, 1)

    monkeypatch.setattr(attention_varlen, "_kernel", attention_varlen.Kernel(loop, told_of_groups=True))
    query, key, value = tensors(num_kv_heads)
    mixed = by_kernel(query, key, value, STARTS, None, window)
    torch.testing.assert_close(mixed, by_text(query, key, value, window))


def test_without_starts_a_row_is_one_text() -> None:
    query, key, value = tensors(2)
    whole = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True).transpose(1, 2)
    torch.testing.assert_close(varlen_attention(Layer(), query, key, value, None)[0], whole)
    scaled, _ = varlen_attention(Layer(), query, key, value, None, scaling=0.5)
    assert not torch.allclose(scaled, whole)


def test_a_query_that_comes_later_sees_all_keys() -> None:
    query, key, value = tensors()
    whole, _ = varlen_attention(Layer(), query, key, value, None)
    for count in (1, 3):
        last, _ = varlen_attention(Layer(), query[:, :, -count:], key, value, None)
        torch.testing.assert_close(last, whole[:, -count:])


def test_a_mask_that_is_given_counts() -> None:
    query, key, value = tensors()
    mask = torch.eye(8, dtype=torch.bool)[None, None]
    mixed, _ = varlen_attention(Layer(), query, key, value, mask, cu_seqlens=STARTS)
    torch.testing.assert_close(mixed, value.transpose(1, 2))


def test_dropout_drops() -> None:
    torch.manual_seed(0)
    query, key, value = tensors()
    mixed, _ = varlen_attention(Layer(), query, key, value, None, cu_seqlens=STARTS, dropout=0.5)
    assert not torch.allclose(mixed, by_text(query, key, value))


@pytest.mark.parametrize("name", ["softcap", "s_aux", "position_bias"])
def test_what_the_kernel_does_not_know_is_refused(name: str) -> None:
    given: Any = {name: 1.0}
    with pytest.raises(ConfigError, match=f"a layer of the model, Layer, needs {name}"):
        varlen_attention(Layer(), *tensors(), None, cu_seqlens=STARTS, **given)


def test_a_layer_that_looks_ahead_is_refused() -> None:
    layer = Layer()
    layer.is_causal = False
    with pytest.raises(ConfigError, match="looks at what follows"):
        varlen_attention(layer, *tensors(), None)
