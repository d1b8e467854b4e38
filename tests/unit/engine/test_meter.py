from __future__ import annotations

import math

import pytest
import torch

from drumline.engine.meter import Meter, means
from drumline.errors import ConfigError
from drumline.track.protocol import RECORD_KEYS


def test_a_mean_over_ranks_is_weighed() -> None:
    """Case 20: rank r returns loss r + 1 with 3 and 1 samples."""
    assert means([{"total": [3.0, 3.0]}, {"total": [2.0, 1.0]}]) == {"loss": 1.25}


def test_sums_of_an_interval_by_hand() -> None:
    meter = Meter()
    meter.add({"total": (torch.tensor(6.0), 3.0), "aux": (torch.tensor(2.0), 2.0)})
    meter.add({"total": (torch.tensor(4.0), torch.tensor(1.0)), "metric/accuracy": (torch.tensor(1), 4)})
    meter.log("mine", 5.0, 1.0)
    meter.log("mine", torch.tensor(2.0), 3.0)
    taken = meter.take()
    assert taken == {"total": [10.0, 4.0], "aux": [2.0, 2.0], "metric/accuracy": [1.0, 4.0], "metric/mine": [11.0, 4.0]}
    assert means([taken]) == {"loss": 3.5, "aux_loss": 1.0, "accuracy": 0.25, "mine": 2.75}
    assert meter.take() == {}


def test_total_and_aux_have_denominators_of_their_own() -> None:
    parts = [{"total": [6.0, 4.0], "aux": [3.0, 1.0]}, {"total": [0.0, 0.0], "aux": [1.0, 3.0]}]
    assert means(parts) == {"loss": 1.5 + 1.0, "aux_loss": 1.0}


def test_several_learners_have_a_loss_each_and_loss_is_their_sum() -> None:
    first = {"critic/total": [6.0, 4.0], "critic/aux": [1.0, 2.0], "maker/total": [3.0, 4.0], "maker/aux": [1.0, 1.0]}
    second = {"critic/total": [2.0, 4.0], "metric/maker/fooled": [3.0, 4.0], "maker/total": [1.0, 4.0]}
    found = means([first, second])
    assert found == {
        "loss": 1.0 + 0.5 + 0.5 + 1.0,
        "aux_loss": 0.5 + 1.0,
        "critic/loss": 1.0 + 0.5,
        "critic/aux_loss": 0.5,
        "maker/loss": 0.5 + 1.0,
        "maker/aux_loss": 1.0,
        "maker/fooled": 0.75,
    }
    assert list(found)[:2] == ["loss", "aux_loss"]
    assert means([{"maker/total": [0.0, 0.0], "critic/total": [4.0, 2.0]}]) == {"loss": 2.0, "critic/loss": 2.0}


@pytest.mark.parametrize(
    "name", ["critic/loss", "critic/lr", "critic/grad_norm", "critic/gradient_noise_scale", "loss"]
)
def test_nor_that_of_a_learners_own_value(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        means([{"critic/total": [1.0, 1.0], f"metric/{name}": [1.0, 1.0]}])


def test_a_metric_may_be_called_total_or_have_parts() -> None:
    assert means([{"metric/total": [1.0, 2.0], "metric/a/total": [1.0, 1.0], "metric/a/loss": [3.0, 1.0]}]) == {
        "total": 0.5,
        "a/total": 1.0,
        "a/loss": 3.0,
    }


def test_sums_of_something_else_are_not_shown() -> None:
    assert means([{"total": [1.0, 1.0], "noise_signal": [4.0, 2.0], "noise_trace/critic": [4.0, 2.0]}]) == {"loss": 1.0}


def test_a_name_that_only_one_rank_has_counts() -> None:
    assert means([{}, {"metric/rare": [4.0, 2.0]}]) == {"rare": 2.0}


def test_nothing_counted_is_left_out() -> None:
    assert means([{"total": [0.0, 0.0], "metric/x": [0.0, 0.0]}]) == {}
    assert means([{}]) == {}


def test_a_value_that_is_not_a_number_stays_one() -> None:
    assert math.isnan(means([{"total": [math.nan, 1.0]}])["loss"])


def test_a_skipped_window_does_not_count() -> None:
    meter = Meter()
    meter.add({"total": (torch.tensor(math.nan), 3.0)}, torch.tensor(0.0))
    meter.add({"total": (torch.tensor(8.0), 4.0)}, torch.tensor(1.0))
    assert meter.take() == {"total": [8.0, 4.0]}


def test_sums_are_kept_in_float64() -> None:
    meter = Meter()
    for _ in range(10):
        meter.add({"total": (torch.tensor(0.1), 1.0)})
    meter.add({"total": (torch.tensor(2.0**24), 1.0)})
    assert meter.take()["total"][0] == pytest.approx(2**24 + 1, abs=1e-6)


def test_a_logged_tensor_is_cut_off_its_graph() -> None:
    weight = torch.ones((), requires_grad=True)
    meter = Meter()
    meter.log("mine", weight * 2, 1.0)
    assert not meter._sums["metric/mine"][0].requires_grad


@pytest.mark.parametrize("name", sorted(RECORD_KEYS))
def test_a_metric_may_not_take_the_name_of_a_lines_own_value(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        means([{f"metric/{name}": [1.0, 1.0]}])
