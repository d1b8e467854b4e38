"""A persistent replica and a thread a GPU in one process."""

from __future__ import annotations

import torch

from drumline.config.parallel import DataParallel
from drumline.parallel.compute import Compute
from drumline.parallel.single import Single


class Replicated(Single):
    """Single's window over several replicas."""

    def __init__(
        self,
        device: torch.device,
        num_replicas: int,
        settings: DataParallel,
        compute: Compute,
        *,
        gradient_noise: bool = False,
    ) -> None:
        super().__init__(device, compute, gradient_noise=gradient_noise)
        self._num_replicas = num_replicas
        self._settings = settings
