from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from drumline.parallel.batch_norm import has_batch_norm, single_sample


def normalised() -> nn.BatchNorm1d:
    torch.manual_seed(1)
    norm = nn.BatchNorm1d(3)
    norm(torch.randn(8, 3) * 2 + 1)
    return norm


def statistics(norm: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in norm.named_buffers()}


def test_one_sample_is_normalised_by_the_running_statistics_which_stay() -> None:
    norm = normalised()
    x = torch.randn(1, 3, requires_grad=True)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        norm(x)
    before = statistics(norm)
    with single_sample(norm):
        output = norm(x)
        output.sum().backward()
    assert norm.running_mean is not None and norm.running_var is not None
    expected = (x - norm.running_mean) / (norm.running_var + norm.eps).sqrt()
    torch.testing.assert_close(output, expected)
    assert norm.training
    torch.testing.assert_close(statistics(norm), before, rtol=0, atol=0)
    assert x.grad is not None and norm.weight.grad is not None


@pytest.mark.parametrize(("kind", "shape"), [(nn.BatchNorm1d, (1, 3, 4)), (nn.BatchNorm2d, (1, 3, 2, 2))])
def test_one_sample_with_several_values_a_channel_trains_as_always(
    kind: type[nn.BatchNorm1d | nn.BatchNorm2d], shape: tuple[int, ...]
) -> None:
    inside, outside, x = kind(3), kind(3), torch.randn(shape)
    with single_sample(inside):
        output = inside(x)
    torch.testing.assert_close(output, outside(x), rtol=0, atol=0)
    torch.testing.assert_close(statistics(inside), statistics(outside), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("kind", "shape"), [(nn.BatchNorm1d, (1, 3, 1)), (nn.BatchNorm2d, (1, 3, 1, 1)), (nn.BatchNorm3d, (1, 3, 1, 1, 1))]
)
def test_one_value_a_channel_in_every_dimension(kind: type[nn.Module], shape: tuple[int, ...]) -> None:
    norm = kind(3)
    with single_sample(norm):
        torch.testing.assert_close(norm(torch.ones(shape)), torch.ones(shape), rtol=0, atol=1e-4)
    assert int(statistics(norm)["num_batches_tracked"]) == 0


def test_the_model_is_as_before_afterwards() -> None:
    model = nn.Sequential(nn.Linear(3, 3), normalised(), nn.Dropout())
    model[2].eval()
    for _ in range(2):
        with pytest.raises(KeyError), single_sample(model):
            model(torch.randn(1, 3))
            raise KeyError
    assert [module.training for module in model.modules()] == [True, True, True, False]
    assert not model[1]._forward_hooks and not model[1]._forward_pre_hooks
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        model(torch.randn(1, 3))


def test_a_forward_that_fails_leaves_training_mode() -> None:
    norm = normalised()
    with single_sample(norm):
        with pytest.raises(RuntimeError):
            norm(torch.randn(1, 4))
        assert norm.training


def test_evaluation_mode_stays() -> None:
    norm = normalised().eval()
    with single_sample(norm):
        norm(torch.randn(1, 3))
        assert not norm.training
    assert not norm.training


def test_the_second_forward_of_activation_checkpointing() -> None:
    norm = normalised()
    before = statistics(norm)
    x = torch.randn(1, 3, requires_grad=True)
    with single_sample(norm):
        output: Tensor = checkpoint(norm, x, use_reentrant=False)
        output.sum().backward()
    assert x.grad is not None and norm.training
    torch.testing.assert_close(statistics(norm), before, rtol=0, atol=0)


class Scaled(nn.Module):
    """BatchNorm inside a module of the user's, which is what gets compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = normalised()

    def forward(self, x: Tensor) -> Tensor:
        normed: Tensor = self.norm(x)
        return normed * 2


def test_compiled_code_is_left_aside() -> None:
    graphs: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> torch.fx.GraphModule:
        graphs.append(len(inputs))
        return graph

    torch._dynamo.reset()
    model = Scaled()
    model.compile(backend=backend)
    model(torch.randn(4, 3))
    before, x = statistics(model), torch.randn(1, 3)
    with single_sample(model):
        output = model(x)
    assert model.norm.running_mean is not None and model.norm.running_var is not None
    expected = 2 * (x - model.norm.running_mean) / (model.norm.running_var + model.norm.eps).sqrt()
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(statistics(model), before, rtol=0, atol=0)
    assert len(graphs) == 1
    model(torch.randn(4, 3))
    assert len(graphs) == 1, "what was compiled still serves"
    assert int(model.norm.num_batches_tracked or 0) == int(before["norm.num_batches_tracked"]) + 1
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("model", "has"),
    [
        (nn.Linear(2, 2), False),
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), True),
        (nn.BatchNorm2d(2), True),
        (nn.SyncBatchNorm(2), False),
        (nn.BatchNorm1d(2, track_running_stats=False), False),
        (nn.LayerNorm(2), False),
    ],
)
def test_which_models_have_one(model: nn.Module, has: bool) -> None:
    assert has_batch_norm(model) is has
