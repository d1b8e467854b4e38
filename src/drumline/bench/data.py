"""`drumline bench data`: the loader alone, by number of loader processes; every rank of the run reads its own shard."""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping
from typing import Any

import torch
from torch import nn

from drumline import __version__
from drumline.config.schema import RunConfig
from drumline.data.source import as_source
from drumline.data.windows import Feed, Window
from drumline.engine.feeds import open_feeds, with_loader
from drumline.engine.learners import choose_tasks, loader_task
from drumline.engine.trainer import Options
from drumline.hardware.inventory import detect
from drumline.hardware.state import read_state
from drumline.launcher.world import detect_world
from drumline.parallel.groups import Groups, open_groups
from drumline.plan.resolve import resolve
from drumline.track.loader import advice
from drumline.track.samples import measured

SLICES = 20
"""The time that is read for is cut into so many, each with a rate of its own, unless a window takes longer."""


def bench_data(
    config: RunConfig, train: Any, model: nn.Module, options: Options, request: Mapping[str, Any]
) -> dict[str, Any]:
    """Read for so many seconds with each number of loader processes; the result, on all ranks alike.

    The config is one of CPU processes, as many as the run has shards; the batches go nowhere.
    """
    world, device = detect_world(), torch.device("cpu")
    source = as_source(train, options.get("collate"))
    task = loader_task(choose_tasks(model, options.get("loss"), options.get("count")))
    groups = open_groups(world, device, "gloo", config.parallel.timeout_s)
    rows = []
    try:
        for workers in request["workers"]:
            loader = config.loader.model_copy(update={"num_workers": workers})
            wanted = with_loader(config.model_copy(update={"loader": loader}), source)
            plan = resolve(wanted, detect(), world, source.rows_per_epoch)
            feeds = open_feeds(source, None, task, wanted, plan, groups)
            try:
                rates = read(feeds.train, groups, request["seconds"])
            finally:
                feeds.train.close()
            rows.append({"num_workers": workers, **rates, "notice": (feeds.notice or {}).get("message")})
    except BaseException:
        groups.abort()
        raise
    groups.close()
    return {
        "world_size": world.size,
        "rows": rows,
        "advice": advice(rows),
        "global_batch": plan.global_batch,
        "versions": {"drumline": __version__, "torch": torch.__version__},
        "machine": {"under_load": read_state(()).to_json()},
    }


def read(feed: Feed, groups: Groups, seconds: float) -> dict[str, Any]:
    """Rows and batches a second over all ranks, after the first window: loader processes start with it."""
    groups.side.exchange("first window")
    began = time.perf_counter()
    windows = epochs(feed)
    next(windows)
    first_s = time.perf_counter() - began
    groups.side.exchange("loader")
    began = last = time.perf_counter()
    slices: list[float] = []
    rows = batches = held = 0
    for window in windows:
        now = time.perf_counter()
        rows, batches, held = rows + window.rows, batches + len(window.micro_batches), held + window.rows
        if now - last >= seconds / SLICES:
            slices.append(held / (now - last))
            last, held = now, 0
        if now - began >= seconds:
            break
    windows.close()
    mine = {"slices": slices, "batches": batches, "rows": rows, "first": first_s}
    by_rank = groups.side.exchange("rates", mine)
    # Slice by slice over all ranks; the median of them, since the first ones find batches that lay ready.
    over_all = measured([sum(each) for each in zip(*(each["slices"] for each in by_rank), strict=False)])
    per_batch = sum(each["batches"] for each in by_rank) / max(sum(each["rows"] for each in by_rank), 1)
    return {
        "rows_per_s": over_all["median"],
        "batches_per_s": over_all["median"] * per_batch,
        "interval": over_all,
        "first_window_s": max(each["first"] for each in by_rank),
    }


def epochs(feed: Feed) -> Generator[Window]:
    """Windows of one epoch after the other."""
    epoch = 0
    while True:
        yield from feed.epoch(epoch, 0)
        epoch += 1
