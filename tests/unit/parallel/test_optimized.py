from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.checkpoint import checkpoint
from transformers.modeling_outputs import SequenceClassifierOutput

from drumline.errors import ConfigError
from drumline.parallel.device_threads import DeviceThreads
from drumline.parallel.optimized import OptimizedDataParallel
from tests.unit.parallel.nets import Net, X, close, gradients, net, same_gradients, wrapped


@pytest.mark.parametrize("rows", [1, 2, 3, 9])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_outputs_and_gradients_are_those_of_one_device(count: int, rows: int) -> None:
    single, x = net(), X[:rows]
    parallel = wrapped(net(), count)
    for _ in range(2):  # gradients of two backward passes add up
        outputs = parallel(x, times=2.0)
        close(outputs, single(x, times=2.0))
        outputs.square().sum().backward()
        single(x, times=2.0).square().sum().backward()
    same_gradients(parallel.module, single)
    assert gradients(single)["unused"] is None and gradients(single)["scale"] is None
    assert parallel.rows == [rows // count + (i < rows % count) for i in range(min(count, rows))]


def test_in_threads_it_is_the_same() -> None:
    """As on GPUs; nothing here draws random numbers."""
    single, parallel = net(), wrapped(net())
    parallel._threads = DeviceThreads(parallel.devices, at_once=True)
    for rows in (9, 1, 5):
        for model in (single, parallel):
            model(X[:rows]).square().sum().backward()
    same_gradients(parallel.module, single)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        outputs = parallel.float()(X.float())
    assert outputs.is_inference() and outputs.dtype == single.float()(X.float()).dtype
    parallel.close()


def test_gradients_of_the_inputs_and_by_autograd_itself() -> None:
    single, parallel = net(), wrapped(net())
    found = []
    for model in (single, parallel):
        x = X.clone().requires_grad_()
        wanted = [x, *(p for p in model.parameters() if p.requires_grad)]
        first = torch.autograd.grad(model(x).square().sum(), wanted, create_graph=True, allow_unused=True)
        square = torch.stack([each.square().sum() for each in first if each is not None]).sum()
        found.append([*first, *torch.autograd.grad(square, wanted, allow_unused=True)])
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            close(other, one)


def test_modes_and_hooks_follow_and_dropout_draws_for_every_row() -> None:
    dropout = nn.Dropout(0.5)
    module = nn.Sequential(nn.Linear(3, 64), dropout).double()
    parallel, seen = wrapped(module, 3), list[int]()
    parallel(X)
    module[0].register_forward_hook(lambda layer, args, output: seen.append(len(args[0])))
    with torch.random.fork_rng():
        zeros = (parallel(torch.ones(9, 3).double()) == 0).float()
    assert seen == [3, 3, 3]
    assert len({tuple(row.tolist()) for row in zeros}) == 9
    dropout.p = 0.0
    close(parallel(X), module[0](X))
    dropout.p = 0.5
    parallel.eval()
    close(parallel(X), module[0](X))
    assert not module.training


def test_hooks_on_parameters_see_one_sum() -> None:
    single, parallel = net(), wrapped(net())
    seen: list[Tensor] = []
    for model in (single, parallel):
        next(p for p in model.parameters() if p.dim() == 2).register_hook(
            lambda gradient: seen.append(gradient.clone())
        )
        model(X).square().sum().backward()
    assert len(seen) == 2
    close(seen[1], seen[0])


def normed() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).double()


def test_the_first_replicas_batch_statistics_count() -> None:
    module, alone = normed(), normed()
    parallel = wrapped(module, 3)
    for _ in range(2):
        outputs = parallel(X)
        close(outputs[:3], alone(X[:3]))
        close(module.state_dict(), alone.state_dict())
    parallel.eval(), alone.eval()
    close(parallel(X), alone(X))


def test_batch_norm_gets_two_rows_a_replica_where_there_are_as_many() -> None:
    parallel = wrapped(normed(), 4)
    for count, expected in ((9, [3, 2, 2, 2]), (5, [3, 2]), (3, [3])):
        parallel(X[:count])
        assert parallel.rows == expected
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        parallel(X[:1])
    parallel.eval()
    parallel(X[:3])
    assert parallel.rows == [1, 1, 1]


def test_recurrent_networks_with_packed_sequences() -> None:
    class Recurrent(nn.LSTM):
        def forward(self, packed: Any) -> Any:  # type: ignore[override]
            return super().forward(packed)[0]  # the states have the batch in their second dimension

    with torch.random.fork_rng():
        torch.manual_seed(5)
        single = Recurrent(3, 4, batch_first=True).double()
    parallel = wrapped(copy.deepcopy(single), 2)
    packed = pack_sequence([X[:3], X[3:4], X[4:9]], enforce_sorted=False)
    for model in (single, parallel):
        padded, _ = nn.utils.rnn.pad_packed_sequence(model(packed), batch_first=True)
        padded.square().sum().backward()
    same_gradients(parallel.module, single)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_activation_checkpointing(use_reentrant: bool) -> None:
    class Checkpointed(Net):
        def forward(self, x: Tensor, *, times: float = 1.0) -> Tensor:
            call = super().forward
            found: Tensor = checkpoint(lambda y: call(y, times=times), x, use_reentrant=use_reentrant)
            return found

    single, inner = net(), Checkpointed().double()
    inner.load_state_dict(single.state_dict())
    parallel = wrapped(inner)
    x = X.clone().requires_grad_()
    first, second = parallel(x), parallel(x + 1)
    (first.square().sum() + second.square().sum()).backward()
    (single(X).square().sum() + single(X + 1).square().sum()).backward()
    same_gradients(inner, single)


class Classifier(nn.Module):
    """As Hugging Face's: a loss where there are labels."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2).double()

    def forward(self, inputs_embeds: Tensor, labels: Tensor | None = None) -> SequenceClassifierOutput:
        logits = self.head(inputs_embeds)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)


def test_outputs_of_a_hugging_face_model_with_keyword_arguments_alone() -> None:
    labels = torch.arange(9) % 2
    module = Classifier()
    parallel = wrapped(module)
    outputs = parallel(inputs_embeds=X, labels=labels)
    assert type(outputs) is SequenceClassifierOutput and outputs.loss.shape == (4,) and parallel.rows == [3, 2, 2, 2]
    whole = module(X, labels)
    close(outputs.logits, whole.logits)
    weights = torch.tensor(parallel.rows, dtype=torch.float64)
    loss = (outputs.loss * weights).sum() / weights.sum()
    close(loss, whole.loss)
    loss.backward()
    found = gradients(module)
    module.zero_grad()
    whole.loss.backward()
    close(found, gradients(module))
    assert parallel(inputs_embeds=X).loss is None


class Picky(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.max() > 6:
            raise ValueError("too large")
        return x


def test_an_error_keeps_its_type_and_names_its_replica() -> None:
    parallel = wrapped(Picky())
    x = torch.arange(9.0)
    with pytest.raises(ValueError, match="too large") as caught:
        parallel(x)
    assert caught.value.__notes__ == ["raised on replica 3 of 4 (cpu, rows 7 to 8 of the batch)"]
    assert any(entry.name == "forward" and "test_optimized" in str(entry.path) for entry in caught.traceback)
    with pytest.raises(ValueError) as caught:
        parallel(x + 4)
    assert caught.value.__notes__ == [
        "raised on replica 1 of 4 (cpu, rows 3 to 4 of the batch); replicas 2, 3 failed too"
    ]
    close(parallel(x - 9), x - 9)
    stats = parallel.stats()
    assert [each.errors for each in stats] == [0, 1, 1, 2]
    assert [each.forwards for each in stats] == [3, 2, 2, 1]
    assert [each.last_error for each in stats] == [None] + ["ValueError: too large"] * 3
    assert [each.rows for each in stats] == [3, 2, 2, 2]
    assert [each.replica for each in stats] == [0, 1, 2, 3] and {each.device for each in stats} == {"cpu"}
    assert all(each.forward_s is not None and 0 < each.forward_s < 1 for each in stats)
    assert {(each.memory_bytes, each.peak_memory_bytes) for each in stats} == {(None, None)}


def test_a_replica_that_was_never_used_has_no_time() -> None:
    parallel = wrapped(net(), 2)
    parallel(X[:1])
    assert [(each.forwards, each.forward_s is None, each.rows) for each in parallel.stats()] == [
        (1, False, 1),
        (0, True, 0),
    ]


class Meeting(nn.SyncBatchNorm):
    """A SyncBatchNorm below another name."""


def compiled_layer() -> nn.Module:
    compiled: Any = torch.compile(nn.Linear(2, 2))
    return compiled  # type: ignore[no-any-return]


REFUSED: list[tuple[Callable[[], nn.Module], str]] = [
    (lambda: nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2)), "module 1 is SyncBatchNorm, which meets other"),
    (lambda: Meeting(2), "the module is SyncBatchNorm"),
    (lambda: nn.Sequential(nn.LazyLinear(2)), "module 0 is lazy"),
    (compiled_layer, "torch.compile"),
]


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
@pytest.mark.parametrize(("make", "named"), REFUSED)
def test_what_has_no_replicas_is_refused(make: Callable[[], nn.Module], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        wrapped(make(), 2)
    OptimizedDataParallel(make(), ["cpu"])


def test_sync_batch_norm_put_in_later_is_refused_too() -> None:
    module = normed()
    parallel = wrapped(module, 2)
    module[1] = nn.SyncBatchNorm(4)
    with pytest.raises(ConfigError, match="SyncBatchNorm"):
        parallel(X)


def test_a_module_that_was_moved_away_is_refused() -> None:
    parallel = wrapped(net(), 2)
    parallel.module.to("meta")
    with pytest.raises(ConfigError, match="tensors on meta, and its first replica is on cpu"):
        parallel(X)


def test_compiled_blocks_run_on_the_replicas_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    module, calls = net(), list[int]()

    def compiled(x: Tensor) -> Tensor:
        calls.append(len(x))
        return nn.Linear.forward(module.first, x)

    module.first._compiled_call_impl = compiled
    single, parallel = net(), wrapped(module, 2)
    parallel(X).square().sum().backward()
    single(X).square().sum().backward()
    same_gradients(module, single)
    assert calls == [5]
    assert "1 of its modules" in caplog.text


def test_without_gpus_or_with_one_device_it_is_a_plain_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    x = torch.tensor(2.0)

    class Square(nn.Module):
        def forward(self, y: Tensor) -> tuple[Tensor, str]:
            return y.square(), "kept"

    for devices in (None, ["cpu"]):
        parallel = OptimizedDataParallel(Square(), devices)
        loss, text = parallel(x)
        assert (loss.shape, text) == ((), "kept")
        assert len(parallel.stats()) == 1


def test_devices_by_the_name_that_data_parallel_has() -> None:
    assert OptimizedDataParallel(net(), device_ids=["cpu", "cpu"]).devices == [torch.device("cpu")] * 2
    assert wrapped(net(), 2, output_device=-1).output_device == torch.device("cpu")
    with pytest.raises(ConfigError, match="same thing"):
        OptimizedDataParallel(net(), ["cpu"], device_ids=["cpu"])


def test_rows_along_another_dimension() -> None:
    class Doubled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    x = X.T.contiguous()
    close(wrapped(Doubled(), 4, dim=1)(x), x * 2)


def test_state_dict_copies_and_pickles() -> None:
    other = net()
    parallel, plain = wrapped(net(), 2), nn.DataParallel(other)
    assert list(parallel.state_dict()) == list(plain.state_dict())
    parallel(X)
    plain.load_state_dict({name: value + 1 for name, value in parallel.state_dict().items()})
    parallel.load_state_dict(plain.state_dict())
    close(parallel(X), other.cpu()(X))
    kept = io.BytesIO()
    torch.save(parallel, kept)
    kept.seek(0)
    for made in (copy.deepcopy(parallel), pickle.loads(pickle.dumps(parallel)), torch.load(kept, weights_only=False)):
        assert made.module is not parallel.module
        with torch.no_grad():
            made.module.get_buffer("shift").add_(1)
        close(made(X), parallel(X) + 1)
