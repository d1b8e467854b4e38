from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from drumline.errors import ConfigError
from drumline.models import chunked_loss
from drumline.models.chunked_loss import Output, chunked_cross_entropy, chunked_token_losses, chunks
from drumline.models.decoder import Decoder, DecoderShape
from drumline.models.token_losses import Tail
from drumline.tasks.language_modelling import LanguageModelling

VOCABULARY, WIDTH = 50, 12


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Seven tokens at a time."""
    monkeypatch.setattr(chunked_loss, "CHUNK_LOGITS", 7 * VOCABULARY + 3)
    yield


def problem(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs [3, 10, WIDTH], weight and labels, of which a third does not count and one chunk has none."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(3, 10, WIDTH, dtype=torch.float64, generator=generator).to(dtype)
    weight = torch.randn(VOCABULARY, WIDTH, dtype=torch.float64, generator=generator).to(dtype)
    labels = torch.randint(VOCABULARY, (3, 10), generator=generator)
    labels[0, 7:] = labels[1, :4] = labels[2, ::3] = -100
    return x.requires_grad_(), weight.requires_grad_(), labels


def plain(x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy((x @ weight.t()).flatten(0, -2), labels.flatten(), reduction="sum")


def gradients(loss: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss * 0.37, inputs)


def test_it_is_exact() -> None:
    x, weight, labels = problem()
    loss, reference = chunked_cross_entropy(x, Output(weight), labels).total, plain(x, weight, labels)
    assert loss.dtype == torch.float64
    torch.testing.assert_close(loss, reference, rtol=1e-12, atol=0)
    for found, expected in zip(gradients(loss, x, weight), gradients(reference, x, weight), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_without_gradient_it_tells_which_are_correct_too() -> None:
    x, weight, labels = problem()
    with torch.no_grad():
        best = (x @ weight.t()).argmax(-1)
        labels[1, 5:] = best[1, 5:]
        total, correct = chunked_cross_entropy(x, Output(weight), labels)
        _, among = chunked_cross_entropy(x, Output(weight), labels, torch.tensor([17, 3, 16, 3]))
    torch.testing.assert_close(total, plain(x, weight, labels).detach(), rtol=1e-12, atol=0)
    assert correct is not None and among is not None
    assert correct.equal(best == labels) and int(correct.sum()) >= 5
    assert among.flatten().nonzero().flatten().tolist() == [16, 17]
    assert not total.requires_grad


BIAS = torch.linspace(-1, 1, VOCABULARY, dtype=torch.float64)
OUTPUTS = [(None, Tail()), (BIAS, Tail()), (BIAS, Tail(0.25)), (None, Tail(cap=3.0)), (BIAS, Tail(1.5, 4.0))]


@pytest.mark.parametrize(("bias", "tail"), OUTPUTS)
def test_bias_scale_and_cap(bias: Tensor | None, tail: Tail) -> None:
    """As losses of their own, too, with factors that the loss does not know of."""
    x, weight, labels = problem()
    bias = None if bias is None else bias.clone().requires_grad_()
    products = x @ weight.t() if bias is None else x @ weight.t() + bias
    logits = products * tail.scale
    logits = logits if tail.cap is None else tail.cap * torch.tanh(logits / tail.cap)
    each = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none").view(labels.shape)
    inputs = [x, weight] if bias is None else [x, weight, bias]
    output, factors = Output(weight, bias, tail), torch.linspace(-2, 3, 10, dtype=torch.float64)
    places = (labels != -100).flatten().nonzero().flatten().flip(0)
    for found, expected in (
        (chunked_cross_entropy(x, output, labels).total, each.sum()),
        (chunked_cross_entropy(x, output, labels, places).total, each.sum()),
        ((chunked_token_losses(x, output, labels) * factors).sum(), (each * factors).sum()),
        ((chunked_token_losses(x, output, labels, places) * factors).sum(), (each * factors).sum()),
    ):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        wanted = torch.autograd.grad(expected, inputs, retain_graph=True)
        torch.testing.assert_close(torch.autograd.grad(found, inputs), wanted, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(chunked_cross_entropy(x, output, labels).total, each.sum(), rtol=1e-12, atol=0)


def test_an_output_layer_that_is_not_trained_costs_no_product() -> None:
    x, weight, labels = problem()
    expected = torch.autograd.grad(plain(x, weight, labels), [x])
    frozen = weight.detach()
    with Products() as seen:
        loss = chunked_cross_entropy(x, Output(frozen), labels).total
    torch.testing.assert_close(torch.autograd.grad(loss, [x]), expected, rtol=1e-12, atol=1e-12)
    assert seen.rows == 2 * labels.numel()


def test_places_alone_cost_products() -> None:
    x, weight, labels = problem()
    places = (labels != -100).flatten().nonzero().flatten()
    with Products() as seen:
        chunked_cross_entropy(x.detach(), Output(weight), labels, places)
    assert seen.rows == 3 * len(places) < 3 * labels.numel()


@pytest.mark.parametrize(("dtype", "within"), [(torch.bfloat16, 0.02), (torch.float16, 0.005)])
def test_products_are_autocasts_and_sums_are_float32(dtype: torch.dtype, within: float) -> None:
    x, weight, labels = problem(torch.float32)
    with torch.autocast("cpu", dtype):
        loss = chunked_cross_entropy(x, Output(weight), labels).total
    reference = plain(x, weight, labels)
    assert loss.dtype == torch.float32
    assert float(loss.detach()) == pytest.approx(float(reference.detach()), rel=within)
    assert loss.detach() != reference.detach()
    for found, expected in zip(gradients(loss, x, weight), gradients(reference, x, weight), strict=True):
        assert found.dtype == torch.float32
        assert float((found - expected).norm() / expected.norm()) < within


def test_no_labels_give_zero_and_zero_gradients() -> None:
    x, weight, labels = problem()
    loss = chunked_cross_entropy(x, Output(weight), torch.full_like(labels, -100)).total
    assert float(loss.detach()) == 0
    assert not any(bool(gradient.any()) for gradient in gradients(loss, x, weight))


def test_chunks_hold_whole_tiles_where_they_can(monkeypatch: pytest.MonkeyPatch) -> None:
    def sizes(rows: int, least: int = 1) -> list[int]:
        return [len(part) for part, _ in chunks(torch.zeros(rows, 2), torch.zeros(rows), VOCABULARY, least)]

    monkeypatch.setattr(chunked_loss, "CHUNK_LOGITS", 300 * VOCABULARY)
    assert sizes(600) == sizes(600, 300) == [256, 256, 88]
    assert sizes(600, 400) == [384, 216]
    monkeypatch.setattr(chunked_loss, "CHUNK_LOGITS", 3)
    assert sizes(2) == sizes(2, 0) == [1, 1]


class Products(TorchDispatchMode):
    """Adds up the tokens of all products with [WIDTH, VOCABULARY] in them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.rows = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm_.default):
            sizes = {*args[-2].shape, *args[-1].shape}
            self.rows += min(*(sizes - {WIDTH, VOCABULARY}), 100)
        return func(*args, **kwargs or {})


class Largest(TorchDispatchMode):
    """Notes the largest tensor that any operation gives."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        found = func(*args, **kwargs or {})
        if isinstance(found, Tensor):
            self.numel = max(self.numel, found.numel())
        return found


def test_never_all_logits_are_there() -> None:
    x, weight, labels = problem()
    with Largest() as seen:
        chunked_cross_entropy(x, Output(weight), labels).total.backward()
    assert seen.numel == weight.numel()
    with Largest() as seen:
        plain(x, weight, labels).backward()
    assert seen.numel == labels.numel() * VOCABULARY


def decoder(*, tied: bool) -> Decoder:
    torch.manual_seed(0)
    return Decoder(DecoderShape("llama", 2, 2, 2, 16, 32, 0.0, tied, VOCABULARY, 16)).double()


def batch() -> dict[str, Tensor]:
    _, _, labels = problem()
    return {"input_ids": labels.clamp(min=0), "labels": labels}


@pytest.mark.parametrize("tied", [True, False])
def test_a_task_gives_the_loss_gradients_and_metrics_of_the_plain_one(tied: bool) -> None:
    found = []
    for chunked in (False, True):
        model, task = decoder(tied=tied), LanguageModelling(VOCABULARY, chunked_loss=chunked)
        loss = task.loss(task.forward(model, batch()), batch())
        loss.total.backward()
        with torch.no_grad():
            metrics = task.loss(task.forward(model, batch()), batch()).metrics["accuracy"]
        grads = {name: p.grad for name, p in model.named_parameters()}
        found.append((loss.total.detach(), grads, metrics, loss.metrics))
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's compiler does it
def test_the_compiler_sees_one_graph() -> None:
    model, task, given = decoder(tied=True), LanguageModelling(VOCABULARY, chunked_loss=True), batch()

    def total() -> Tensor:
        return task.loss(task.forward(model, given), given).total

    def one_pass(call: Callable[[], Tensor]) -> tuple[Tensor, list[Tensor]]:
        loss = call()
        return loss.detach(), list(torch.autograd.grad(loss, list(model.parameters())))

    compiled = torch.compile(total, fullgraph=True, backend="eager")
    torch.testing.assert_close(one_pass(compiled), one_pass(total), rtol=1e-12, atol=1e-12)


def test_other_models_are_refused() -> None:
    with pytest.raises(ConfigError, match="a Embedding gives logits"):
        LanguageModelling(VOCABULARY, chunked_loss=True).forward(nn.Embedding(VOCABULARY, VOCABULARY), batch())


def test_gradients_in_float16_do_not_overflow_before_they_are_scaled() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2048, 32, generator=generator) * 40 + 60
    weight = (torch.randn(64, 32, generator=generator) * 0.02).requires_grad_()
    labels = torch.zeros(2048, dtype=torch.int64)
    with torch.autocast("cpu", torch.float16):
        loss = chunked_cross_entropy(x, Output(weight), labels).total
    (found,) = torch.autograd.grad(loss * 1e-4, weight)
    (expected,) = torch.autograd.grad(plain(x, weight, labels) * 1e-4, weight)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
