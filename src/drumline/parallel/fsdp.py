"""Parameters, gradients and optimizer state sharded over all ranks by torch's fully_shard."""

from __future__ import annotations

from drumline.config.parallel import FsdpParallel
from drumline.parallel.compute import Compute
from drumline.parallel.groups import Groups
from drumline.parallel.single import Single


class Fsdp(Single):
    """Single's window over a sharded model."""

    def __init__(
        self, groups: Groups, settings: FsdpParallel, compute: Compute, *, gradient_noise: bool = False
    ) -> None:
        super().__init__(groups.device, compute, groups.world.rank, gradient_noise=gradient_noise)
        self._settings = settings
