"""Optimizers by name over groups of parameters, fused where the device has it."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import nn

from drumline.config.problem import listed
from drumline.config.train import OptimizerConfig, ParameterRule, TrainConfig
from drumline.engine.fused import FusedAdamW, FusedSGD
from drumline.errors import ConfigError

logger = logging.getLogger("drumline")

MOST_NAMES = 3
"""Near names that an error lists."""


class Settings(NamedTuple):
    """What the parameters of one group have in common."""

    lr: float
    weight_decay: float


def freeze(model: nn.Module, config: OptimizerConfig) -> None:
    """Let the parameters that the rules freeze want no gradient; before the model is wrapped, and for good.

    The last rule whose pattern fits one of a parameter's names says whether it is frozen. Buffers, such as BatchNorm's
    running statistics, still move. Raises ConfigError for a pattern that fits no name, and where nothing is left.
    """
    check_rules(model, config)
    frozen = []
    for names, p in named(model):
        rules = fitting(config, names)
        if rules and rules[-1].freeze and p.requires_grad:
            p.requires_grad_(False)
            frozen.append(p)
    if not frozen:
        return
    if not any(p.requires_grad for p in model.parameters()):
        raise ConfigError(
            "train.optimizer.rules freezes every parameter of the model: nothing would be trained",
            "narrow its patterns, or add a last rule without freeze for what is to be trained",
        )
    left = [p for p in model.parameters() if p.requires_grad]
    logger.info("frozen: %s; trained: %s", size(frozen), size(left))


def check_rules(model: nn.Module, config: OptimizerConfig) -> None:
    """Raise ConfigError for a pattern that fits no parameter."""
    known = [name for names, _ in named(model) for name in names]
    for number, rule in enumerate(config.rules):
        if any(fnmatchcase(name, rule.pattern) for name in known):
            continue
        near = difflib.get_close_matches(rule.pattern, known, n=MOST_NAMES, cutoff=0.3) or known[:MOST_NAMES]
        raise ConfigError(
            f"train.optimizer.rules.{number}.pattern: '{rule.pattern}' fits no parameter of the model",
            f"write names as in state_dict(), such as {listed(near)}; * stands for any part of one",
        )


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """AdamW or SGD over the trainable parameters, in as few groups as their settings allow.

    A parameter's rate is lr times the lr_factor of its rules times layer_decay to the power of its distance from the
    top (see `layers`); its weight decay is its rules', else the optimizer's, else 0 where it has fewer than two
    dimensions (biases, norms) and decay_all is off. Where several rules fit, the last one that gives a value counts.
    Tied parameters are one. Fused for floating-point parameters on one device. The group with the plain rate comes
    first, since the log shows the first one's.
    """
    settings = config.optimizer
    check_rules(model, settings)
    distance = layers(model) if settings.layer_decay != 1 else {}
    groups: dict[Settings, list[nn.Parameter]] = {}
    for names, p in named(model):
        if p.requires_grad:
            groups.setdefault(settings_of(names, p, config, distance), []).append(p)
    order = sorted(groups, key=lambda group: (group.lr != config.lr, -group.lr, -group.weight_decay))
    parameters = [p for group in order for p in groups[group]]
    fused = all(p.is_floating_point() and p.device.type in ("cuda", "cpu") for p in parameters)
    optimizer = build(settings, config.lr, [{"params": groups[group], **group._asdict()} for group in order], fused)
    kind = settings.name + (" (fused)" if fused else "")
    if settings.state_precision != "same":
        kind += f", moments in {settings.state_precision}{' (paged)' if settings.paged else ''}"
    logger.info("optimizer: %s, %s", kind, described(groups, order))
    return optimizer


def build(settings: OptimizerConfig, lr: float, groups: list[dict[str, object]], fused: bool) -> torch.optim.Optimizer:
    """The optimizer that the settings name."""
    options: dict[str, Any] = {"lr": lr, "weight_decay": settings.weight_decay}
    if settings.name == "sgd":
        kind: Callable[..., torch.optim.Optimizer] = FusedSGD if fused else torch.optim.SGD
        return kind(groups, momentum=settings.momentum, **options)
    options |= {"betas": settings.betas, "eps": settings.eps}
    if settings.state_precision == "int8":
        from drumline.engine.int8_states import Int8AdamW

        return Int8AdamW(groups, fused=fused, paged=settings.paged, **options)
    if settings.state_precision != "same":
        from drumline.engine.half_states import HalfStateAdamW  # half a second of imports that few need

        return HalfStateAdamW(groups, half=settings.state_precision, fused=fused, **options)
    return (FusedAdamW if fused else torch.optim.AdamW)(groups, **options)


def named(model: nn.Module) -> Iterator[tuple[list[str], nn.Parameter]]:
    """Each parameter once, in the model's order, with all names that it has (several where it is tied)."""
    found: dict[int, tuple[list[str], nn.Parameter]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        found.setdefault(id(p), ([], p))[0].append(name)
    yield from found.values()


def fitting(config: OptimizerConfig, names: list[str]) -> list[ParameterRule]:
    """The rules whose pattern fits one of these names, in their order."""
    return [rule for rule in config.rules if any(fnmatchcase(name, rule.pattern) for name in names)]


def settings_of(names: list[str], p: nn.Parameter, config: TrainConfig, distance: Mapping[int, int]) -> Settings:
    """Rate and weight decay of one parameter."""
    optimizer = config.optimizer
    decays = optimizer.decay_all or p.dim() >= 2
    factor, weight_decay = 1.0, optimizer.weight_decay if decays else 0.0
    for rule in fitting(optimizer, names):
        factor = factor if rule.lr_factor is None else rule.lr_factor
        weight_decay = weight_decay if rule.weight_decay is None else rule.weight_decay
    return Settings(config.lr * factor * optimizer.layer_decay ** distance.get(id(p), 0), weight_decay)


def layers(model: nn.Module) -> dict[int, int]:
    """Distance of each parameter from the top layer of the model, by id; the top layer has 0.

    A layer is what has the same name up to its first number ('encoder.layer.3'), and layers are counted in the model's
    order, over all numbered lists. What comes before the first of them is the bottom layer, together with the weights
    of embeddings wherever they are; what comes between two is of the one before; what comes after the last (a final
    norm, a head) is the top layer. For encoders such as BERT this is the rule of Clark et al. 2020 (ELECTRA). Raises
    ConfigError where no name has a number.
    """
    embeddings = {
        id(p)
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        for p in module.parameters(recurse=False)
    }
    places = [(layer_name(names[0]), id(p)) for names, p in named(model)]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(n for n, _ in places if n is not None), 1)}
    if not numbers:
        raise ConfigError(
            f"train.optimizer.layer_decay goes by numbered layers, and a {type(model).__name__} has none",
            "leave it out, or give single parameters their lr_factor in train.optimizer.rules",
        )
    last = max(position for position, (name, _) in enumerate(places) if name is not None)
    depth, current = {}, 0
    for position, (name, key) in enumerate(places):
        if name is not None:
            current = numbers[name]
        elif position > last:
            current = len(numbers) + 1
        depth[key] = 0 if key in embeddings else current
    top = max(depth.values())
    return {key: top - value for key, value in depth.items()}


def layer_name(name: str) -> str | None:
    """A parameter's name up to its first number; None where it has none."""
    parts = name.split(".")
    first = next((i for i, part in enumerate(parts) if part.isdigit()), None)
    return None if first is None else ".".join(parts[: first + 1])


def size(parameters: list[nn.Parameter]) -> str:
    """How many tensors and values."""
    return f"{len(parameters)} tensor{'s' * (len(parameters) != 1)} of {sum(p.numel() for p in parameters):,} values"


def described(groups: Mapping[Settings, list[nn.Parameter]], order: list[Settings]) -> str:
    """The groups in one line."""
    parts = [f"lr {group.lr:g} and weight decay {group.weight_decay:g} for {size(groups[group])}" for group in order]
    return f"{len(order)} group{'s' * (len(order) != 1)}: {'; '.join(parts)}"
