"""The one place that touches process-wide settings of torch and Python, and puts them back."""

from __future__ import annotations

import faulthandler
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from drumline.data.seeds import WINDOW, seed_streams


@contextmanager
def process_settings(precision: str) -> Iterator[None]:
    """Set matrix-product precision and fault handler for a run; random streams and all else are restored after it.

    fp32 keeps full products; every other precision allows TF32 in what stays float32.
    """
    products = torch.get_float32_matmul_precision()
    faults = faulthandler.is_enabled()
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    torch_state = torch.get_rng_state()
    torch.set_float32_matmul_precision("highest" if precision == "fp32" else "high")
    if not faults:
        faulthandler.enable()
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(products)
        if not faults:
            faulthandler.disable()
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)


def seed_window(seed: int, epoch: int, window: int, shard: int) -> None:
    """Set the random streams of one window: a function of seed, position and shard, so that a resumed window draws
    what it would have drawn.
    """
    seed_streams(WINDOW, seed, shard, epoch, window)
