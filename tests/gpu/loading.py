"""What the ranks of the GPU test of loading run; a module of its own, so that they can import it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from drumline import Trainer
from tests.ranks.sharded import whole
from tests.ranks.training import Case, MaskedRegression, MaskedRows, config_of, make_model


def begin_with(directory: str, path: str, parallel: dict[str, Any]) -> tuple[dict[str, Tensor], list[float], list[int]]:
    """Weights and first moments after a load, and the GPUs on which this process has a context after training."""
    train = {"global_batch": 8, "max_steps": 3}
    config = config_of(Case(directory, {"train": train, "parallel": {"timeout_s": 60, **parallel}}))
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, 0.9)
    with Trainer(model, config, MaskedRows(16), loss=MaskedRegression([]), optimizer=optimizer) as trainer:
        trainer.load(path)
        weights = whole(trainer.model)
        state = trainer._run.strategy.state()["learners"]["main"]["optimizer"]["state"]
        sums = [
            float(values["momentum_buffer"].sum()) for values in state.values() if values["momentum_buffer"] is not None
        ]
        trainer.fit()
    devices = range(torch.cuda.device_count())
    runtime: Any = torch._C
    used = [i for i in devices if runtime._cuda_hasPrimaryContext(i)]
    return weights, sums, [i for i in used if i != torch.cuda.current_device()]
