from __future__ import annotations

import faulthandler
import random
from itertools import product

import numpy as np
import pytest
import torch

from drumline.engine.process import process_settings, seed_window


def streams() -> tuple[object, list[int], list[int]]:
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # type: ignore[index]


@pytest.mark.parametrize(("precision", "products"), [("fp32", "highest"), ("tf32", "high"), ("bf16", "high")])
@pytest.mark.parametrize("fails", [True, False])
def test_settings_hold_inside_and_are_put_back(precision: str, products: str, fails: bool) -> None:
    before = streams(), torch.get_float32_matmul_precision(), faulthandler.is_enabled()

    def run() -> None:
        with process_settings(precision):
            assert torch.get_float32_matmul_precision() == products
            assert faulthandler.is_enabled()
            seed_window(1, 2, 3, 4)
            assert streams() != before[0]
            if fails:
                raise KeyError("inside")

    if fails:
        with pytest.raises(KeyError):
            run()
    else:
        run()
    assert (streams(), torch.get_float32_matmul_precision(), faulthandler.is_enabled()) == before


def test_windows_have_streams_of_their_own() -> None:
    drawn = {}
    with process_settings("fp32"):
        for place in product((0, 1), (0, 1, 2), (0, 1, 2), (0, 1, 2)):
            seed_window(*place)
            drawn[place] = random.random(), float(np.random.rand()), float(torch.rand((), dtype=torch.float64))
        seed_window(1, 2, 0, 1)
        assert random.random() == drawn[1, 2, 0, 1][0]
        assert float(np.random.rand()) == drawn[1, 2, 0, 1][1]
        assert float(torch.rand((), dtype=torch.float64)) == drawn[1, 2, 0, 1][2]
    for values in zip(*drawn.values(), strict=True):
        assert len(set(values)) == len(drawn)
