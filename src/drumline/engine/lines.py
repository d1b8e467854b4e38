"""Log lines: what is written of an interval and of an evaluation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import psutil
import torch

from drumline.engine.meter import means
from drumline.engine.records import StepInfo
from drumline.engine.run import Interval, Run
from drumline.engine.stopping import after_evaluation
from drumline.parallel.noise import noise_scales


def log_line(run: Run, info: StepInfo) -> dict[str, Any]:
    """Write the interval that ends with this update; means over all ranks, one message for all values.

    This is the only place in the loop where the host waits for a GPU.
    """
    run.learn(keep=0)
    answers = run.groups.side.exchange("log", {"sums": run.meter.take(), "memory": memory(run.groups.device)})
    sums = [answer["sums"] for answer in answers]
    interval, now = run.interval, run.clock()
    seconds = max(now - interval.began, 1e-9)
    units_per_s = interval.units / seconds
    record: dict[str, Any] = {"kind": "train", "step": info.step, "epoch": info.epoch, **means(sums)}
    record["lr"] = run.last_lr
    record["grad_norm"] = run.last_norm
    record |= run.learners_numbers() | noise_scales(sums)
    record["samples_per_s"] = interval.samples / seconds
    record["units_per_s"] = units_per_s
    record["unit"] = getattr(run.task, "unit", "samples")
    if run.flops_per_unit is not None and run.peak_flops is not None:
        record["mfu"] = units_per_s * run.flops_per_unit / (run.peak_flops * run.groups.world.size)
    record |= {key: [answer["memory"][key] for answer in answers] for key in answers[0]["memory"]}
    record["loader_wait_s"] = run.feed.waited_s - interval.waited_s
    record["skipped"] = run.progress.skipped
    record["elapsed_s"] = now - run.began
    run.track(record)
    run.interval = Interval(now, run.feed.waited_s)
    return record


def memory(device: torch.device) -> dict[str, int]:
    """Bytes of this process: of its tensors on the GPU now and at most so far, and held by torch; resident on CPU."""
    if device.type != "cuda":
        return {"memory_resident_bytes": int(psutil.Process(os.getpid()).memory_info().rss)}
    found = torch.cuda.memory_stats(device)
    return {
        "memory_peak_bytes": found.get("allocated_bytes.all.peak", 0),
        "memory_allocated_bytes": found.get("allocated_bytes.all.current", 0),
        "memory_reserved_bytes": found.get("reserved_bytes.all.current", 0),
    }


def record_evaluation(run: Run, metrics: Mapping[str, float], epoch: int) -> dict[str, float]:
    """Write one evaluation, made in this epoch, and take it into early stopping.

    All ranks decide alike, since the values are agreed.
    """
    progress, rule = run.progress, run.config.evaluate.early_stopping
    found = dict(metrics)
    progress.history.append({"step": progress.step, **found})
    run.track({"kind": "eval", "step": progress.step, "epoch": epoch, **found, "elapsed_s": run.clock() - run.began})
    if rule is not None:
        progress.patience, stop = after_evaluation(rule, progress.patience, found)
        if stop:
            run.reason = "early_stop"
            run.event("early_stop", step=progress.step, best=progress.patience.best)
    return found
