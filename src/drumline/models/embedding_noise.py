"""NEFTune (Jain et al. 2023): uniform noise on the embeddings of the tokens, in training alone."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn


class EmbeddingNoise:
    """Forward hook of a model's table of embeddings.

    To outputs [B, T, D] it adds values between -alpha and alpha over the root of T times D, drawn from the device's
    stream, so that they are repeatable as dropout is. T is the length of the batch's rows, as in the paper's code:
    where short rows are filled up, or texts are packed, each text's noise is smaller than if it were alone.
    """

    def __init__(self, alpha: float) -> None:
        self.alpha = alpha

    def __call__(self, module: nn.Module, inputs: Any, outputs: Tensor) -> Tensor:
        """The outputs with noise, where the module is in training mode."""
        if not module.training:
            return outputs
        size = self.alpha / math.sqrt(outputs.shape[-2] * outputs.shape[-1])
        return outputs + torch.empty_like(outputs).uniform_(-size, size)


def add_embedding_noise(model: Any, alpha: float) -> None:
    """Hook it to the input embeddings of a transformers model. alpha: 5 to 15 in the paper."""
    model.get_input_embeddings().register_forward_hook(EmbeddingNoise(alpha))
