"""OptimizedDataParallel on real GPUs: all there are, or two replicas on one. Run: pytest -m gpu."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

from drumline.parallel.optimized import OptimizedDataParallel

pytestmark = pytest.mark.gpu


def devices() -> list[str]:
    count = torch.cuda.device_count()
    return [f"cuda:{i}" for i in range(count)] if count > 1 else ["cuda:0", "cuda:0"]


def perceptron(*, norm: bool = False) -> nn.Module:
    torch.manual_seed(3)
    layers = [nn.Linear(8, 64), nn.BatchNorm1d(64) if norm else nn.Tanh(), nn.Linear(64, 4)]
    return nn.Sequential(*layers).double().cuda()


@pytest.fixture
def parallel() -> Iterator[OptimizedDataParallel]:
    wrapped = OptimizedDataParallel(perceptron(), devices())
    yield wrapped
    wrapped.close()


def rows(count: int) -> Tensor:
    return torch.randn(count, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(count))


def close(first: Any, second: Any, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=tolerance)


def gradients(module: nn.Module) -> list[Tensor]:
    return [p.grad for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("place", ["pageable", "pinned", "cuda"])
def test_outputs_and_gradients_are_those_of_one_gpu(parallel: OptimizedDataParallel, place: str, stream: bool) -> None:
    single = perceptron()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()) if stream else nullcontext():
        for count in (37, 8, 1):
            x = rows(count)
            given = {"pageable": x, "pinned": x.pin_memory(), "cuda": x.cuda()}[place]
            outputs, expected = parallel(given), single(x.cuda())
            outputs.square().sum().backward()
            expected.square().sum().backward()
            close(outputs, expected)
            close(gradients(parallel), gradients(single))
    torch.cuda.synchronize()


@pytest.mark.parametrize("fused", [False, True])
def test_replicas_follow_an_optimizer(parallel: OptimizedDataParallel, fused: bool) -> None:
    single = perceptron()
    for model in (single, parallel):
        optimizer = torch.optim.AdamW(model.parameters(), 0.01, fused=fused, foreach=not fused)
        for step in range(6):
            optimizer.zero_grad()
            model(rows(20 - step).cuda()).square().mean().backward()
            optimizer.step()
    close(list(parallel.parameters()), list(single.parameters()))


def test_the_threads_have_the_callers_autocast_and_grad_mode(parallel: OptimizedDataParallel) -> None:
    parallel.float()
    seen: list[tuple[torch.dtype, bool, torch.device]] = []
    parallel.module.register_forward_hook(
        lambda module, args, output: seen.append((output.dtype, output.requires_grad, output.device))
    )
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        assert parallel(rows(9).float()).dtype == torch.bfloat16
    assert sorted(seen, key=str) == sorted(
        ((torch.bfloat16, False, torch.device(each)) for each in devices()[:9]), key=str
    )


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_a_step_makes_no_host_sync_and_is_timed(parallel: OptimizedDataParallel) -> None:
    optimizer = torch.optim.AdamW(parallel.parameters(), fused=True)
    x = rows(32).cuda()

    def step() -> None:
        parallel(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(4):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    stats = parallel.stats()
    assert [each.forwards for each in stats] == [5] * len(devices())
    assert all(each.forward_s is not None and 0 < each.forward_s < 5 for each in stats)
    assert all(
        each.peak_memory_bytes and each.memory_bytes and each.peak_memory_bytes >= each.memory_bytes for each in stats
    )
    assert sum(each.rows for each in stats) == 32


def test_an_error_names_its_gpu() -> None:
    class Picky(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if float(x.max()) == 6:
                raise ValueError("too large")
            return super().forward(x)

    parallel = OptimizedDataParallel(Picky(1, 1), devices())
    with pytest.raises(ValueError, match="too large") as caught:
        parallel(torch.arange(7.0)[:, None])
    number = min(7, len(devices())) - 1
    assert caught.value.__notes__[0].startswith(
        f"raised on replica {number} of {number + 1} ({devices()[number]}, rows "
    )
    assert [each.errors for each in parallel.stats()][number] == 1
    parallel.close()


def test_the_first_replicas_batch_statistics_count() -> None:
    parallel, alone = OptimizedDataParallel(perceptron(norm=True), devices()), perceptron(norm=True)
    for _ in range(2):
        x = rows(16).cuda()
        outputs = parallel(x)
        first = parallel.rows[0]
        close(outputs[:first], alone(x[:first]))
    close(parallel.module.state_dict(), alone.state_dict())
    parallel.close()


def test_recurrent_networks_keep_their_weights_in_one_piece() -> None:
    """cuDNN warns where they are not, and warnings are errors here."""

    class Recurrent(nn.LSTM):
        def forward(self, packed: Any) -> Any:  # type: ignore[override]
            return super().forward(packed)[0]

    torch.manual_seed(5)
    single = Recurrent(8, 4, batch_first=True).double().cuda()
    parallel = OptimizedDataParallel(copy.deepcopy(single), devices())
    packed = pack_sequence([rows(count) for count in (3, 5, 1, 2)], enforce_sorted=False).cuda()
    for model in (single, parallel):
        for _ in range(2):
            pad_packed_sequence(model(packed), batch_first=True)[0].square().sum().backward()
    close(gradients(parallel), gradients(single))
    parallel.close()
