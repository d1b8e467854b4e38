from __future__ import annotations

import pytest
import torch

from drumline.bench import gpu_work
from drumline.bench.gpu_work import PATTERNS, count_wrong, write_pattern

CPU = torch.device("cpu")


def chunks() -> list[torch.Tensor]:
    return [torch.empty(100, dtype=torch.int64), torch.empty(50, dtype=torch.int64)]


@pytest.mark.parametrize("name", PATTERNS)
def test_each_pattern_finds_one_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_work, "SLICE_BYTES", 8 * 32)  # several slices a chunk
    memory = chunks()
    write_pattern(memory, name)
    assert count_wrong(memory, name) == 0
    memory[0][99] ^= 1 << 62
    memory[1][0] ^= 1
    memory[1][33] ^= 1
    assert count_wrong(memory, name) == 3


def test_addresses_find_words_that_lie_in_each_others_place() -> None:
    """A broken address line: two places are one. Patterns of equal words cannot see it."""
    memory = chunks()
    write_pattern(memory, "addresses")
    memory[1][:] = memory[0][:50].clone()
    assert count_wrong(memory, "addresses") == 50
    write_pattern(memory, "01")
    memory[1][:] = memory[0][:50].clone()
    assert count_wrong(memory, "01") == 0


def test_patterns_hold_each_bit_at_either_value() -> None:
    mask = (1 << 64) - 1
    values = [value & mask for value in PATTERNS.values() if value is not None]
    ones, zeros = 0, 0
    for value in values:
        ones, zeros = ones | value, zeros | (value ^ mask)
    assert ones == zeros == mask
    assert values[2] ^ values[3] == mask


def test_products_are_exact_and_a_wrong_one_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(gpu_work._wrong_products(CPU, torch.bfloat16, 128, repeats=2)) == [0, 0]
    real = torch.mm

    def spoilt(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = real(a, b)
        out[5, 7] += 1  # a unit that computes wrong
        return out

    monkeypatch.setattr(torch, "mm", spoilt)
    assert list(gpu_work._wrong_products(CPU, torch.bfloat16, 128, repeats=2)) == [1, 1]
