"""The strategy that a plan names, with the settings of its kind."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from drumline.config.parallel import DataParallel, DdpParallel, FsdpParallel, Kind
from drumline.config.schema import RunConfig
from drumline.parallel.compute import Compute
from drumline.parallel.data_parallel import Replicated
from drumline.parallel.ddp import Ddp
from drumline.parallel.groups import Groups
from drumline.parallel.single import Single
from drumline.parallel.strategy import Strategy
from drumline.plan.record import Plan

K = TypeVar("K", bound=Kind)


def make_strategy(groups: Groups, config: RunConfig, plan: Plan) -> Strategy:
    """A fresh one, not set up. A world of one has nobody to share with: `single` computes what its kind would."""
    compute = Compute.of(config, plan.precision)
    if compute.compile == "auto" and (plan.device != "cuda" or plan.kind == "data_parallel"):
        compute = replace(compute, compile="none")  # nothing is measured there, see engine/choices.py
    noise = config.track.gradient_noise
    if plan.kind == "data_parallel":
        settings = settings_of(config, DataParallel)
        return Replicated(groups.devices, settings, compute, gradient_noise=noise)
    if plan.kind == "ddp" and groups.train is not None:
        return Ddp(groups, settings_of(config, DdpParallel), compute, gradient_noise=noise)
    if plan.kind == "fsdp" and groups.train is not None:
        from drumline.parallel.fsdp import Fsdp  # half a second of imports that no other kind needs

        return Fsdp(groups, settings_of(config, FsdpParallel), compute, gradient_noise=noise)
    return Single(groups.device, compute, gradient_noise=noise)


def settings_of(config: RunConfig, kind: type[K]) -> K:
    """The kind's settings: the config's own, or its defaults where `auto` has chosen it."""
    return config.parallel if isinstance(config.parallel, kind) else kind()
