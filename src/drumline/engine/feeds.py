"""From a user's data and loaders to the feeds of a run."""

from __future__ import annotations

from typing import Any

from drumline.config.schema import RunConfig
from drumline.data.loader import LoaderOptions, RowLoader
from drumline.data.order import Cut
from drumline.data.source import Source
from drumline.data.stream import StreamFeed
from drumline.data.windows import Feed, RowFeed
from drumline.launcher.world import World
from drumline.parallel.strategy import Task, needs_count
from drumline.plan.record import Plan


def with_loader(config: RunConfig, source: Source) -> RunConfig:
    """Take over what a DataLoader with the training data says.

    Its batch size is the global batch, or where the config states that one the micro-batch; a number of loader
    processes in the config goes before its own. A stream that cannot be cut is read by none unless some are asked for.
    """
    train: dict[str, Any] = {}
    if source.shuffle is not None:
        train["shuffle"] = source.shuffle
    if source.batch_size is not None and config.train.batch_size_per_gpu is None:
        if config.train.global_batch is None:
            train["global_batch"] = source.batch_size
        elif config.train.micro_batch == "auto" and source.batch_size < config.train.global_batch:
            train["micro_batch"] = source.batch_size
    loader: dict[str, Any] = {}
    if config.loader.num_workers is None and (source.num_workers is not None or not source.can_be_cut):
        loader["num_workers"] = source.num_workers or 0
    return config.model_copy(
        update={
            "train": config.train.model_copy(update=train),
            "loader": config.loader.model_copy(update=loader),
        }
    )


def training_feed(source: Source, task: Task, config: RunConfig, plan: Plan, world: World) -> Feed:
    """Windows for training; one data shard a process."""
    cut = Cut(plan.global_batch, plan.micro_batch, world.rank, world.size)
    return _feed(source, task, config, cut, _options(config, plan, plan.num_workers))


def evaluation_feed(source: Source, task: Task, config: RunConfig, plan: Plan, world: World) -> Feed:
    """Batches for evaluation, of the size that the config, else the data's own DataLoader, else training has."""
    batch = config.evaluate.batch or source.batch_size or plan.micro_batch
    workers = source.num_workers
    if workers is None:
        workers = plan.num_workers if source.can_be_cut else 0
    cut = Cut(plan.global_batch, batch, world.rank, world.size)
    return _feed(source, task, config, cut, _options(config, plan, workers))


def _options(config: RunConfig, plan: Plan, num_workers: int) -> LoaderOptions:
    settings = config.loader
    return LoaderOptions(
        num_workers=num_workers,
        prefetch_factor=settings.prefetch_factor,
        pin_memory=settings.pin_memory and plan.device == "cuda",
        persistent_workers=settings.persistent_workers,
    )


def _feed(source: Source, task: Task, config: RunConfig, cut: Cut, options: LoaderOptions) -> Feed:
    if source.is_stream:
        return StreamFeed(source, task, options, cut, config.seed)
    assert source.num_rows is not None
    return RowFeed(
        RowLoader(source, task, options),
        source.num_rows,
        cut,
        config.seed,
        shuffle=config.train.shuffle,
        needs_count=needs_count(task),
    )
