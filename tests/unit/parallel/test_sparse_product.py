"""Products with 2:4 sparse weights, whose kernels are emulated on the CPU; tests/gpu has the real ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.sparse._semi_structured_conversions import _sparse_semi_structured_tile as prune

from drumline.parallel.linear import SparseLinear
from drumline.parallel.sparse_product import sparse_product


def pruned(weight: Tensor) -> Tensor:
    """What torch says of the kernel that chooses weights; theirs writes into its argument."""
    kept: Tensor = prune(weight.clone())
    return kept


@pytest.fixture(scope="module", autouse=True)
def emulated() -> Iterator[None]:
    """A dense product."""

    def product(x: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool) -> Tensor:
        kept = pruned(weight)
        return F.linear(x, kept.t() if transposed else kept, bias)

    sparse_product.register_kernel("cpu")(product)
    yield
    del sparse_product._backend_fns["cpu"]


def layer(*, bias: bool = True) -> SparseLinear:
    torch.manual_seed(0)
    return SparseLinear(16, 8, bias=bias)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(16,), (5, 16), (2, 3, 16)])
def test_gradients_are_a_dense_layers_of_the_kept_weights_but_go_to_all(shape: tuple[int, ...], bias: bool) -> None:
    sparse, x = layer(bias=bias), torch.randn(shape, requires_grad=True)
    kept = pruned(sparse.weight.detach())
    assert 0 < (kept == 0).float().mean() < 1
    dense, again = nn.Linear(16, 8, bias=bias), x.detach().clone().requires_grad_()
    dense.load_state_dict({**sparse.state_dict(), "weight": kept})

    y, expected = sparse(x), dense(again)
    torch.testing.assert_close(y, expected)
    upstream = torch.randn_like(y)
    y.backward(upstream)
    expected.backward(upstream)
    torch.testing.assert_close(x.grad, again.grad)
    torch.testing.assert_close(sparse.weight.grad, dense.weight.grad)
    if bias:
        torch.testing.assert_close(sparse.bias.grad, dense.bias.grad)


def test_what_is_frozen_gets_no_gradient() -> None:
    sparse = layer().requires_grad_(False)
    x = torch.randn(3, 16, requires_grad=True)
    sparse(x).sum().backward()
    assert x.grad is not None
    assert sparse.weight.grad is None and sparse.bias.grad is None


def test_torch_can_trace_it() -> None:
    sparse = layer()
    torch.library.opcheck(
        sparse_product,
        (torch.randn(3, 16, requires_grad=True), sparse.weight, sparse.bias, False),
        raise_exception=True,
    )
