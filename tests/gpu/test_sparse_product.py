"""Products with 2:4 sparse weights by a real GPU's kernels. Run: pytest -m gpu."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from drumline.parallel.sparse_product import sparse_product

pytestmark = pytest.mark.gpu

ROWS, IN, OUT = 30, 128, 256


def test_products_are_those_of_the_kept_weights() -> None:
    torch.manual_seed(0)
    weight = torch.randn(OUT, IN, device="cuda", dtype=torch.bfloat16)
    bias = torch.randn(OUT, device="cuda", dtype=torch.bfloat16)
    kept = sparse_product(torch.eye(IN, device="cuda", dtype=torch.bfloat16), weight, None, False).t()
    nonzero = kept != 0
    torch.testing.assert_close(kept[nonzero], weight[nonzero], rtol=0, atol=0)
    tiles = nonzero.view(OUT // 4, 4, IN // 4, 4)
    assert tiles.sum(1).max() == 2 and tiles.sum(3).max() == 2
    assert kept.abs().sum() > 0.7 * weight.abs().sum()

    for rows in (ROWS, 64):  # the first is padded
        x = torch.randn(rows, IN, device="cuda", dtype=torch.bfloat16)
        torch.testing.assert_close(sparse_product(x, weight, bias, False), F.linear(x, kept, bias), rtol=0.02, atol=0.1)
        y = torch.randn(rows, OUT, device="cuda", dtype=torch.bfloat16)
        torch.testing.assert_close(sparse_product(y, weight, None, True), y @ kept, rtol=0.02, atol=0.1)
