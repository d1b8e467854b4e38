"""How many loader processes are advised."""

from __future__ import annotations

import pytest

from drumline.track.loader import advice, best_workers


@pytest.mark.parametrize(
    ("rates", "expected"),
    [({0: 100.0}, 0), ({0: 100.0, 1: 104.0}, 0), ({0: 10.0, 1: 90.0, 2: 99.0, 4: 100.0}, 2), ({0: 9.0, 4: 3.0}, 0)],
)
def test_the_fewest_that_are_about_as_fast(rates: dict[int, float], expected: int) -> None:
    assert best_workers([{"num_workers": n, "rows_per_s": rate} for n, rate in rates.items()]) == expected


def test_fewer_are_named_for_slow_training() -> None:
    found = advice([{"num_workers": 0, "rows_per_s": 1200.0}, {"num_workers": 2, "rows_per_s": 5000.0}])
    assert "loader.num_workers=2" in found
    assert "0 suffice where training takes fewer than 1,200 rows/s" in found
