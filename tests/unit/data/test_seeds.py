from __future__ import annotations

import random
from itertools import product

import numpy as np
import torch

from drumline.data.seeds import EVALUATION, ROWS, STREAM, WINDOW, seed_streams


def draw(*key: int) -> tuple[float, float, float]:
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seed_streams(*key)
    drawn = random.random(), float(np.random.rand()), float(torch.rand((), dtype=torch.float64))
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
    return drawn


def test_the_same_key_gives_the_same_streams() -> None:
    assert draw(WINDOW, 3, 1, 4, 1) == draw(WINDOW, 3, 1, 4, 1)


def test_neighbouring_keys_give_different_streams_to_all_three() -> None:
    keys = list(product((WINDOW, ROWS, EVALUATION, STREAM), (0, 1), (0, 1, 2), (0, 1, 2)))
    # torch's CPU generator has 2**32 states to begin with and drew doubles here, so that 72 draws hardly ever collide.
    for values in zip(*(draw(*key) for key in keys), strict=True):
        assert len(set(values)) == len(keys)


def test_large_seeds_are_taken_whole() -> None:
    assert draw(WINDOW, 2**32) != draw(WINDOW, 0)
