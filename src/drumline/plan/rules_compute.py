"""Which settings of how the model is computed contradict each other, the kind of parallelism or the machine."""

from __future__ import annotations

from collections.abc import Iterator

from drumline.config.compute import CheckpointingConfig, LinearConfig
from drumline.config.model import DecoderModel, HuggingFaceModel
from drumline.config.problem import Problem
from drumline.config.schema import RunConfig
from drumline.config.task import LanguageModellingTask
from drumline.config.train import OptimizerConfig, TrainConfig
from drumline.plan.devices import Devices

LOWEST_CAPABILITY = {
    "float8": ((8, 9), "Ada"),
    "float8_rowwise": ((8, 9), "Ada"),
    "int8": ((8, 0), "Ampere"),
    "sparse_24": ((8, 0), "Ampere"),
}
"""Compute capability from which on GPUs have tensor cores for these products, and torch kernels that use them."""

LARGEST_DECAY = 0.99
"""Of a moment in half precision: it moves by 1 - decay of the way to a new value, and rounding to bfloat16 swallows
moves below 2^-9 of it, here a fifth of the way. 8 bits resolve less still."""


def compute_problems(config: RunConfig, devices: Devices) -> Iterator[Problem]:
    """List them."""
    train = config.train
    yield from _checkpointing(train)
    yield from _linear(train.linear)
    yield from _linear_devices(train, devices)
    yield from _graphs(config, devices)
    yield from _states(train.optimizer)
    yield from _deterministic(train)
    yield from _chunked_loss(config)


def _problem(key: str, what: str, fix: str) -> Problem:
    return Problem(None, tuple(key.split(".")), what, fix)


def _checkpointing(train: TrainConfig) -> Iterator[Problem]:
    settings = train.checkpointing
    if settings.every is not None and settings.kind != "selective":
        what = f"{settings.every}, and train.checkpointing.kind is {settings.kind}"
        yield _problem("train.checkpointing.every", what, "set train.checkpointing.kind to selective, or leave it out")
    default = CheckpointingConfig.model_fields["budget"].default
    if settings.budget != default and settings.kind != "budget":
        what = f"{settings.budget:g}, and train.checkpointing.kind is {settings.kind}"
        yield _problem("train.checkpointing.budget", what, "set train.checkpointing.kind to budget, or leave it out")
    if settings.kind == "budget" and train.compile != "whole":
        what = f"budget, which the compiler keeps to over model and loss, and train.compile is {train.compile}"
        yield _problem("train.checkpointing.kind", what, "set train.compile to whole, or take selective or full")


def _linear(linear: LinearConfig) -> Iterator[Problem]:
    if linear.skip and linear.products == "default":
        what = "names layers, and train.linear.products is default: all layers stay as they are"
        yield _problem("train.linear.skip", what, "set train.linear.products, or leave it out")


def _linear_devices(train: TrainConfig, devices: Devices) -> Iterator[Problem]:
    products = train.linear.products
    if products == "default":
        return
    key = "train.linear.products"
    needed, family = LOWEST_CAPABILITY[products]
    if devices.device == "cpu":
        what = f"{products} needs an NVIDIA GPU, and the run is on the CPU: {devices.reasons['device']}"
        yield _problem(key, what, "set it to default")
    old = [gpu for gpu in devices.gpus if gpu.compute_capability is not None and gpu.compute_capability < needed]
    if old:
        major, minor = old[0].compute_capability or needed
        what = (
            f"{products} needs compute capability {needed[0]}.{needed[1]} ({family}), and GPU {old[0].index}, "
            f"{old[0].name}, has {major}.{minor}"
        )
        yield _problem(key, what, "set it to default")
    allowed = ("auto", "bf16", "fp16") if products == "sparse_24" else ("auto", "bf16")
    if train.precision not in allowed:
        what = f"{products}, whose results are in half precision, and train.precision is {train.precision}"
        yield _problem(key, what, "set train.precision to auto or bf16, or train.linear.products to default")


def _graphs(config: RunConfig, devices: Devices) -> Iterator[Problem]:
    if not config.train.cuda_graphs:
        return
    key = "train.cuda_graphs"
    if devices.device == "cpu":
        yield _problem(key, f"records GPU work, and the run is on the CPU: {devices.reasons['device']}", "leave it off")
    if config.train.compile == "none":
        fix = "set train.compile to whole or blocks, or leave it off"
        yield _problem(key, "records compiled code, and train.compile is none", fix)
    reason = {
        "fsdp": "a recorded graph reads parameters at fixed addresses, and fsdp gathers them anew for each pass",
        "data_parallel": "torch records graphs in the main thread, and data_parallel has a thread a GPU",
    }.get(config.parallel.kind)
    if reason is not None:
        yield _problem(key, reason, "leave it off, or set parallel.kind to ddp or single")


def _states(optimizer: OptimizerConfig) -> Iterator[Problem]:
    half = optimizer.state_precision
    if half == "same":
        return
    key = "train.optimizer.state_precision"
    if optimizer.name != "adamw":
        what = f"{half} is for AdamW's moments, and train.optimizer.name is {optimizer.name}"
        yield _problem(key, what, "set train.optimizer.name to adamw, or leave it out")
        return
    largest = max(optimizer.betas)
    if largest > LARGEST_DECAY:
        resolves = "8 bits resolve" if half == "int8" else "half precision resolves"
        what = f"{half}, and a decay rate of {largest:g} moves moments by less than {resolves}"
        fix = f"set train.optimizer.betas to {LARGEST_DECAY:g} or less, such as [0.9, 0.95], or leave it out"
        yield _problem(key, what, fix)


def _deterministic(train: TrainConfig) -> Iterator[Problem]:
    """What is chosen by measuring at run time may differ between two runs."""
    products = train.linear.products
    if train.deterministic and products == "int8":
        what = "true, and the kernel of int8 products is chosen by timing it, which may come out differently each time"
        yield _problem("train.deterministic", what, "set train.linear.products to default, or leave it off")


def _chunked_loss(config: RunConfig) -> Iterator[Problem]:
    task = config.task
    asked = isinstance(task, LanguageModellingTask) and task.chunked_loss is True
    if asked and not isinstance(config.model, DecoderModel | HuggingFaceModel):
        what = f"needs a model that hands over what its output layer reads, and model.kind is {config.model.kind}"
        yield _problem("task.chunked_loss", what, "set model.kind to decoder or huggingface, or leave it out")
