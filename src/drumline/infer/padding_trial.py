"""How a model that keeps a state, or takes no cache, writes rightly: by a try with padded rows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from drumline.errors import ConfigError
from drumline.infer.causal import Causal
from drumline.infer.decoding import Padded, Prompt, Recomputed, Stepper, without_cache

LENGTHS, STEPS = (9, 5, 1), 3
CLOSE, CLOSE_IN_HALF = 1e-3, 0.05
"""Scores that are further apart, as a share of the largest, are other ones."""

Way = Literal["together", "alone", "recomputed"]
"""Rows in one batch, one by one, or with all tokens again for each new one."""

_logger = logging.getLogger(__name__)


def way_of_writing(model: Any, causal: Causal | None, pad: int) -> Way:
    """The fastest way in which the tokens' scores are those that the model gives to the whole text of a row alone.

    causal: None for a model of transformers that takes no cache. Raises ConfigError where there is no such way.
    """
    if causal is not None and not causal.keeps_state:
        return "together"
    prompts = [Prompt(n, 3 + (7 * np.arange(length) + n) % _most_id(model), STEPS) for n, length in enumerate(LENGTHS)]
    name = type(model).__name__
    if causal is not None and causal.hides_state:
        causal = None
    if causal is not None and _agrees(model, Padded(causal, pad), prompts):
        return "together"
    if causal is not None and all(_agrees(model, Padded(causal, pad), [prompt]) for prompt in prompts):
        _logger.warning("padding changes what a %s writes: its rows are written one by one", name)
        return "alone"
    if _agrees(model, Recomputed(model, pad, None), prompts):
        _logger.warning("a %s writes slowly: each token takes the whole text again, without what a cache keeps", name)
        return "recomputed"
    raise ConfigError(
        f"a {name} does not write as it reads: token by token its scores are others than those of the whole text",
        "take another model, or drumline.predict(model, rows, predict=...) with the model's own way of generating",
    )


def _most_id(model: Any) -> int:
    return max(1, len(model.get_input_embeddings().weight) - 3)


@torch.inference_mode()
def _agrees(model: Any, stepper: Stepper, prompts: Sequence[Prompt]) -> bool:
    """Whether the steps' scores are those of each row's whole text without padding."""
    given = np.array([np.resize(prompt.ids, STEPS) for prompt in prompts])
    try:
        found = [stepper.start(prompts, max(len(prompt.ids) for prompt in prompts), STEPS)]
        for step in range(STEPS - 1):
            found.append(stepper.step(torch.from_numpy(given[:, step]).to(found[0].device)))
        return all(_is_close(found, _whole(model, prompt), row) for row, prompt in enumerate(prompts))
    except torch.OutOfMemoryError:
        raise
    # Whatever a model makes of what it was not made for.
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
        _logger.info("a trial of padded rows failed: %s: %s", type(error).__name__, error)
        return False


def _whole(model: Any, prompt: Prompt) -> Tensor:
    """Scores [STEPS, V] after the prompt and each of the tokens that are given."""
    ids = torch.from_numpy(np.concatenate([prompt.ids, np.resize(prompt.ids, STEPS - 1)]))[None]
    scores: Tensor = model(ids.to(model.get_input_embeddings().weight.device), **without_cache(model)).logits[
        0, -STEPS:
    ]
    return scores


def _is_close(found: Sequence[Tensor], wanted: Tensor, row: int) -> bool:
    limit = CLOSE if wanted.dtype in (torch.float32, torch.float64) else CLOSE_IN_HALF
    own = torch.stack([scores[row] for scores in found]).to(wanted.device)
    return bool((own - wanted).abs().max() <= limit * wanted.abs().max())
