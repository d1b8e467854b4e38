from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from drumline.bench.comm import wrong_sums
from drumline.bench.soundness import checksum_of


def test_a_checksum_sees_one_value_of_any_type() -> None:
    norm = nn.LayerNorm(3).bfloat16()
    model = nn.Sequential(nn.Linear(3, 3), norm)
    before = checksum_of(model)
    assert checksum_of(model) == before
    with torch.no_grad():
        norm.bias[1] += 1
    assert checksum_of(model) != before


@pytest.mark.parametrize(("spoiled", "expected"), [([], 0), ([0, 700], 2)])
def test_wrong_sums_are_counted(spoiled: list[int], expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_rank_1(message: Tensor, group: Any) -> None:
        message.add_(message + 1)  # rank 1 gives one more than rank 0
        message[spoiled] += 1

    monkeypatch.setattr(dist, "all_reduce", with_rank_1)
    side = SimpleNamespace(exchange=lambda tag, mine: [mine, 0])
    groups: Any = SimpleNamespace(
        world=SimpleNamespace(size=2, rank=0), device=torch.device("cpu"), train=None, side=side
    )
    assert wrong_sums(groups, 4096) == expected
