"""A stream of tokens as rows of equal length, each token a target exactly once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from drumline.data.cache import TokenFile

NO_LABEL = -100


class PackedRows(Dataset[dict[str, Tensor]]):
    """Rows of `context` tokens: row i predicts tokens i*context+1 to (i+1)*context from those before them.

    An item is `input_ids` and `labels`, int64 [context]; labels[j] is the token after input_ids[j]. The stream's first
    token is the only one that is no target. The last row may be shorter: it is filled up with id 0 and label -100.
    """

    def __init__(self, tokens: TokenFile | NDArray[Any], context: int) -> None:
        self.tokens = tokens
        self.context = context

    def __len__(self) -> int:
        return max(0, -(-(len(self.tokens) - 1) // self.context))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        start = index * self.context
        part = self.tokens[start : start + self.context + 1].astype(np.int64)
        return shifted(part, self.context)


def shifted(tokens: NDArray[np.int64], context: int) -> dict[str, Tensor]:
    """Give inputs and labels of up to context + 1 consecutive tokens, filled up to int64 [context]."""
    input_ids = np.zeros(context, dtype=np.int64)
    labels = np.full(context, NO_LABEL, dtype=np.int64)
    input_ids[: len(tokens) - 1] = tokens[:-1]
    labels[: len(tokens) - 1] = tokens[1:]
    return {"input_ids": torch.from_numpy(input_ids), "labels": torch.from_numpy(labels)}
