"""Where a compiled graph gives all gradients at its end, they are reduced at once: to what torch's wrapper gives."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from drumline.config.parallel import DdpParallel
from drumline.errors import DrumlineError
from drumline.launcher.world import World
from drumline.parallel.compute import Compute
from drumline.parallel.ddp import Ddp
from drumline.parallel.groups import Groups
from drumline.parallel.reduction import LateReduction, lay_out
from drumline.parallel.side_channel import Alone
from drumline.parallel.strategy import MAIN, Learner, MicroBatch, Rates, Scale
from drumline.tasks.function import FunctionTask
from tests.rank_pool import RankPool


class Branches(nn.Module):
    """Uses `second` for rows above zero only, `never` never; sizes that fill no whole number of 64 bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 5)
        self.second = nn.Linear(5, 5)
        self.never = nn.Linear(2, 3)
        self.last = nn.Linear(5, 1)
        self.frozen = nn.Linear(1, 1).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        if bool((x > 0).all()):
            hidden = hidden + self.second(hidden)
        return self.last(hidden)  # type: ignore[no-any-return]


def trained(
    late: bool, options: dict[str, Any], windows: int = 4, num_passes: int = 2
) -> tuple[dict[str, Tensor], list[str]]:
    """Weights after some windows of this rank's own rows, and the parameters that the last window did not use here."""
    assert dist.group.WORLD is not None
    rank = dist.get_rank()
    groups = Groups(
        World(rank=rank, size=dist.get_world_size()), torch.device("cpu"), Alone(), dist.group.WORLD, owns_default=False
    )
    torch.manual_seed(3 + rank)  # rank 0's are everybody's
    model = Branches().double()
    strategy = Ddp(groups, DdpParallel(**options), Compute("fp32", "whole" if late else "none"))
    rates = Rates(lambda step: 1.0, 10, None, "update", False)
    task = FunctionTask(lambda model, x: model(x).square().mean())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's compiler warns of what it does itself
        strategy.setup(model, {MAIN: Learner(task, lambda m: torch.optim.AdamW(m.parameters(), 0.1), rates)})
    strategy._parts[MAIN].objective._compiled_call_impl = None  # what is compiled is not what is tested
    replica = strategy._replicas[MAIN]
    assert isinstance(replica.reduction, LateReduction) is late
    assert isinstance(replica.wrapped, DistributedDataParallel) is not late
    generator = torch.Generator().manual_seed(rank)
    for number in range(windows):
        sign = 1.0 if (number + rank) % 2 else -1.0
        rows = [sign * torch.rand(2, 3, generator=generator, dtype=torch.float64) for _ in range(num_passes)]
        count = 2 * num_passes * dist.get_world_size()
        strategy.window(MAIN, [MicroBatch(row, 2, 2) for row in rows], Scale(1 / count, 1 / count))
        notes = strategy.notes(MAIN)
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, notes)
        strategy.heed(MAIN, found)
        strategy.step(MAIN, 1.0)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    strategy.close()
    return weights, list(notes.get("unused", ()))


# Of three ranks sums rounded to bfloat16 depend on who adds first.
CASES: list[tuple[int, dict[str, Any]]] = [
    (2, {}),
    (3, {}),
    (3, {"bucket_mb": 1e-4}),
    (2, {"compression": "bf16", "bucket_mb": 1e-4}),
    (3, {"compression": "power_sgd", "power_sgd_start": 1}),
]


@pytest.mark.parametrize(("num_ranks", "options"), CASES)
def test_it_gives_what_torchs_wrapper_gives(ranks: RankPool, num_ranks: int, options: dict[str, Any]) -> None:
    """With accumulation, with parameters that some ranks or none use, and with buckets of a single one."""
    for (expected, unused), (weights, missing) in zip(
        ranks.run_grouped(num_ranks, trained, False, options),
        ranks.run_grouped(num_ranks, trained, True, options),
        strict=True,
    ):
        assert missing == unused
        assert {"never.weight", "never.bias"} <= set(missing)
        for name, weight in weights.items():
            torch.testing.assert_close(weight, expected[name], rtol=0, atol=1e-12)


def refused(options: dict[str, Any]) -> str:
    with pytest.raises(DrumlineError) as caught:
        trained(True, options)
    return caught.value.problem


def test_an_unused_parameter_is_an_error_where_it_shall_be(ranks: RankPool) -> None:
    for problem in ranks.run_grouped(2, refused, {"find_unused": "never"}):
        assert problem.startswith("no gradient for ") and "never.weight, never.bias" in problem


@pytest.mark.parametrize(
    "options", [{"static_graph": True}, {"find_unused": "always"}, {"gradient_as_bucket_view": False}]
)
def test_what_only_torchs_wrapper_knows_is_left_to_it(ranks: RankPool, options: dict[str, Any]) -> None:
    (wrapped,) = ranks.run_grouped(1, wrapper_of, options)
    assert wrapped == "DistributedDataParallel"


def wrapper_of(options: dict[str, Any]) -> str:
    assert dist.group.WORLD is not None
    groups = Groups(World(), torch.device("cpu"), Alone(), dist.group.WORLD, owns_default=False)
    strategy = Ddp(groups, DdpParallel(**options), Compute("fp32", "whole"))
    task = FunctionTask(lambda model, x: model(x).square().mean())
    learner = Learner(
        task, lambda m: torch.optim.SGD(m.parameters(), 0.1), Rates(lambda step: 1.0, 10, None, "update", False)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        strategy.setup(nn.Linear(3, 1), {MAIN: learner})
    name = type(strategy._replicas[MAIN].wrapped).__name__
    strategy.close()
    return name


def test_buckets_hold_one_type_in_reverse_order_without_room_between_gradients() -> None:
    single, double = torch.float32, torch.float64
    sizes = {"a": (3, single), "b": (48, single), "c": (7, double), "d": (5, single), "e": (8, double)}
    parameters = {name: nn.Parameter(torch.zeros(size, dtype=dtype)) for name, (size, dtype) in sizes.items()}
    buckets = lay_out(parameters, 64)
    assert [list(bucket.named) for bucket in buckets] == [["d"], ["b"], ["a"], ["e"], ["c"]]
    assert [bucket.is_last() for bucket in buckets] == [False, False, False, False, True]
    whole = lay_out(parameters, 1 << 20)
    assert [list(bucket.named) for bucket in whole] == [["b", "d", "a"], ["e", "c"]]  # b is 192 bytes: d is aligned
    for bucket in [*buckets, *whole]:
        assert len({parameter.dtype for parameter in bucket.parameters()}) == 1
        assert [view.shape for view in bucket.views] == [parameter.shape for parameter in bucket.parameters()]
        for number, view in enumerate(bucket.views, 1):
            view.fill_(number)
        assert bool((bucket.flat != 0).all())
        assert [bool((view == number).all()) for number, view in enumerate(bucket.views, 1)] == [True] * len(
            bucket.views
        )
