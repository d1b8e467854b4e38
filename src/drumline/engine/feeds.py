"""From a user's data and loaders to the feeds of a run."""

from __future__ import annotations

import logging
import resource
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from drumline.config.schema import RunConfig
from drumline.data.limits import Fit, Load, Room, fit, fit_memory
from drumline.data.loader import LoaderOptions, RowLoader
from drumline.data.order import Cut
from drumline.data.prefetch import on_devices
from drumline.data.probe import probe
from drumline.data.shards import ShardFeeds
from drumline.data.sharing import SHARED_MEMORY
from drumline.data.source import Source
from drumline.data.stream import StreamFeed
from drumline.data.windows import Feed, RowFeed
from drumline.hardware.host import num_open_files, open_files, space
from drumline.launcher.world import World
from drumline.parallel.groups import Groups
from drumline.parallel.strategy import Task, needs_count
from drumline.plan.record import Plan

logger = logging.getLogger("drumline")


class Feeds(NamedTuple):
    """What a run reads from."""

    train: Feed
    evaluation: Feed | None
    notice: dict[str, Any] | None
    """Facts of an event `loader`, where loaders do not run as asked; None where they do."""


@dataclass(frozen=True)
class Wanted:
    """One feed before it is made."""

    source: Source
    cut: Cut
    """Of this process's first shard."""
    options: LoaderOptions
    num_local: int = 1
    """Shards of this process; of a stream each is read by a loader of its own."""

    @property
    def num_loaders(self) -> int:
        """Loaders with these options."""
        return self.num_local if self.source.is_stream else 1


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


def open_feeds(
    train: Source,
    evaluation: Source | None,
    task: Task,
    config: RunConfig,
    plan: Plan,
    groups: Groups,
    weights: tuple[float, ...] | None = None,
) -> Feeds:
    """The feeds of a run, their loader processes within what this machine has. All ranks call it.

    weights: each shard's share of an update, in proportion; None: equal shares. Where shared memory or file handles do
    not suffice, loaders run with less, and a warning says why and what to do.
    """
    world = groups.world
    training = _training(train, config, plan, world)
    wanted = [replace(training, cut=training.cut._replace(weights=weights))]
    if evaluation is not None:
        wanted.append(_evaluation(evaluation, config, plan, world))
    room = _room(world)
    groups.side.exchange("room for loader processes")  # a batch is measured in a loader process, which takes of it
    wanted, found = within_limits(wanted, room, world)
    if any(each.source.is_stream for each in wanted):
        wanted = agreed(wanted, groups)
    feeds = [on_devices(_feed(each, task, config), groups.devices) for each in wanted]
    notice = None
    if found.message is not None:
        notice = {
            "message": found.message,
            "num_workers": [each.options.num_workers for each in wanted],
            "prefetch_factor": [each.options.prefetch_factor for each in wanted],
            "sharing": found.sharing,
        }
    return Feeds(feeds[0], feeds[1] if evaluation is not None else None, notice)


def evaluation_feed(source: Source, task: Task, config: RunConfig, plan: Plan, world: World) -> Feed:
    """Batches of data that is evaluated or predicted on by itself, its loader processes within the machine's limits.

    Of the size that the config, else the data's own DataLoader, else training has.
    """
    wanted = [_evaluation(source, config, plan, world)]
    if not source.is_stream:  # those ranks would have to agree
        wanted, _ = within_limits(wanted, _room(world), world)
    return _feed(wanted[0], task, config)


def _training(source: Source, config: RunConfig, plan: Plan, world: World) -> Wanted:
    return _wanted(source, plan.micro_batch, plan.num_workers, (config, plan, world))


def _evaluation(source: Source, config: RunConfig, plan: Plan, world: World) -> Wanted:
    batch = config.evaluate.batch or source.batch_size or plan.micro_batch
    workers = source.num_workers
    if workers is None:
        workers = plan.num_workers if source.can_be_cut else 0
    return _wanted(source, batch, workers, (config, plan, world))


def _wanted(source: Source, batch: int, num_workers: int, run: tuple[RunConfig, Plan, World]) -> Wanted:
    """num_workers: of the whole process; shards of a stream have an equal part of them each, at least one."""
    config, plan, world = run
    num_local = plan.num_shards // world.size
    if source.is_stream and num_workers:
        num_workers = max(1, num_workers // num_local)
    cut = Cut(plan.global_batch, batch, world.rank * num_local, plan.num_shards)
    return Wanted(source, cut, _options(config, plan, num_workers), num_local)


def _options(config: RunConfig, plan: Plan, num_workers: int) -> LoaderOptions:
    settings = config.loader
    return LoaderOptions(
        num_workers=num_workers,
        prefetch_factor=settings.prefetch_factor,
        pin_memory=settings.pin_memory and plan.device == "cuda",
        persistent_workers=settings.persistent_workers,
    )


def within_limits(wanted: Sequence[Wanted], room: Room, world: World) -> tuple[list[Wanted], Fit]:
    """Fit the loaders of this rank into the machine's shared memory and file handles, and say what was changed.

    The soft limit on open files is raised where need be, and stays so after the run.
    """
    loads = [load for each in wanted for load in [_load(each, room)] * each.num_loaders]
    found = fit(loads, room)
    if found.raised is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (found.raised, hard))
    if found.message is not None and world.local_rank == 0:  # it is the same for all ranks of this machine
        logger.warning("loader processes do not fit this machine: %s", found.message)
    firsts = [sum(each.num_loaders for each in wanted[:i]) for i in range(len(wanted))]
    numbers = [(each, found.num_workers[i], found.prefetch_factor[i]) for each, i in zip(wanted, firsts, strict=True)]
    return [
        replace(
            each,
            options=replace(each.options, num_workers=workers, prefetch_factor=prefetch, sharing=found.sharing),
        )
        for each, workers, prefetch in numbers
    ], found


def _load(wanted: Wanted, room: Room) -> Load:
    """What one loader asks for.

    A batch whose size cannot be found out counts as nothing: what comes of it is told when it happens. No process is
    started to find out where there is no room for it either.
    """
    options = wanted.options
    load = Load(options.num_workers, options.prefetch_factor, 0, 0)
    if not options.num_workers or not fit_memory([replace(load, num_workers=1, prefetch_factor=1)], room):
        return load
    probed = probe(wanted.source, wanted.cut.micro_batch)
    return load if probed is None else replace(load, batch_bytes=probed.num_bytes, num_tensors=probed.num_tensors)


def _room(world: World) -> Room:
    shared, limits = space(SHARED_MEMORY), open_files()
    return Room(
        num_ranks=world.local_size,
        shared_bytes=None if shared is None else shared.free_bytes,
        open_files=num_open_files(),
        soft=limits.soft,
        hard=limits.hard,
    )


def agreed(wanted: Sequence[Wanted], groups: Groups) -> list[Wanted]:
    """The least numbers of loader processes that any rank has room for: streams are cut by them."""
    answers = groups.side.exchange("loader processes", [each.options.num_workers for each in wanted])
    least = [min(numbers) for numbers in zip(*answers, strict=True)]
    if least != answers[groups.world.rank] and groups.world.local_rank == 0:
        logger.warning("streams are read by %s loader processes a rank: another machine has room for no more", least)
    return [
        replace(each, options=replace(each.options, num_workers=workers))
        for each, workers in zip(wanted, least, strict=True)
    ]


def _feed(wanted: Wanted, task: Task, config: RunConfig) -> Feed:
    source, cut, options = wanted.source, wanted.cut, wanted.options
    if source.is_stream:
        cuts = [cut._replace(shard=cut.shard + i) for i in range(wanted.num_local)]
        feeds = [StreamFeed(source, task, options, each, config.seed) for each in cuts]
        return feeds[0] if len(feeds) == 1 else ShardFeeds(feeds)
    return RowFeed(
        RowLoader(source, task, options),
        cut,
        config.seed,
        shuffle=config.train.shuffle,
        needs_count=needs_count(task),
        num_local=wanted.num_local,
    )
