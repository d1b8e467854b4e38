"""A text's tokens as the row that a causal model learns from: inputs, and the token after each of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drumline.data.packing import NO_LABEL

Row = dict[str, Tensor]
Learned = NDArray[np.bool_]
"""For each token of a text whether the model shall learn to write it."""


def shifted_row(ids: Sequence[int] | NDArray[Any], learned: Learned) -> Row:
    """Inputs and labels of one text, int64 [T] each: labels[i] is the token after input_ids[i] where that is learned.

    All other labels, and the last one, are -100. `learned` has one value for each of the T tokens; that of the first
    token counts for nothing, since nothing comes before it.
    """
    tokens = np.asarray(ids, dtype=np.int64)
    if tokens.ndim != 1 or learned.shape != tokens.shape:
        raise ValueError(f"ids of shape {tokens.shape} and learned of shape {learned.shape}")
    labels = np.full_like(tokens, NO_LABEL)
    labels[:-1] = np.where(learned[1:], tokens[1:], NO_LABEL)
    # A copy, since the tokens may lie in a file that is mapped for reading only.
    return {"input_ids": torch.from_numpy(tokens.copy()), "labels": torch.from_numpy(labels)}
