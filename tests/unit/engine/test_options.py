"""Keywords of Trainer that do not exist."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from torch.utils.data import TensorDataset

from drumline import DrumlineError, TrainConfig, Trainer


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("val_data", "did you mean eval_data=?"),
        ("optimiser", "did you mean optimizer=?"),
        ("zzz", "it takes eval_data"),
    ],
)
def test_a_misspelt_keyword_is_refused_with_the_nearest_name(name: str, fix: str) -> None:
    options: dict[str, Any] = {name: None}
    with pytest.raises(DrumlineError, match=f"takes no {name}=") as caught:
        Trainer(nn.Linear(1, 1), TrainConfig(global_batch=1, epochs=1), TensorDataset(), **options)
    assert caught.value.fix.startswith(fix)
