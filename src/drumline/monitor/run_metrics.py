"""Metrics of runs, as rows."""

from __future__ import annotations

from typing import get_args

from drumline.monitor.metrics_table import Row
from drumline.monitor.runs import RunFacts, RunState


def _run(name: str, unit: str, help_: str, field: str) -> Row[RunFacts]:
    return Row(f"drumline_run_{name}", unit, help_, lambda run: getattr(run, field))


RUN_ROWS: tuple[Row[RunFacts], ...] = (
    Row("drumline_run_info", "", "Its directory; always 1.", lambda run: {(str(run.path),): 1.0}, labels=("path",)),
    Row(
        "drumline_run_state",
        "",
        "Which of these it is in (1), and is not (0).",
        lambda run: {(state,): float(state == run.state) for state in get_args(RunState)},
        labels=("state",),
    ),
    Row(
        "drumline_run_gpu_info",
        "",
        "The GPUs that it is on, while it goes on; always 1.",
        lambda run: {(uuid,): 1.0 for uuid in run.gpus if run.state in ("starting", "running")},
        labels=("gpu",),
    ),
    Row(
        "drumline_run_alert",
        "",
        "An alert of the run's own watcher that fires; always 1.",
        lambda run: {(rule,): 1.0 for rule in run.alerts},
        labels=("rule",),
    ),
    _run("step", "", "Updates up to the last log line.", "step"),
    _run("planned_steps", "", "Updates when it will be done.", "total_steps"),
    _run("epoch", "", "Epoch of the last log line, from 0.", "epoch"),
    _run("processes", "", "Its processes, over all machines.", "world_size"),
    _run("step_age_seconds", "seconds", "Time since the last log line, while it goes on.", "step_age_s"),
    _run("overdue_seconds", "seconds", "The same, less the usual time between two log lines.", "overdue_s"),
    _run("elapsed_seconds", "seconds", "Time up to the last log line since training began.", "elapsed_s"),
    _run("remaining_seconds", "seconds", "Time to its end, at its present pace.", "eta_s"),
    _run("loss", "", "Training loss of the last log line.", "loss"),
    _run("eval_loss", "", "Loss of the last evaluation.", "eval_loss"),
    _run("loss_rise_ratio", "ratio", "How far the loss lies over its best, as a share of it.", "loss_rise"),
    _run("mfu_ratio", "ratio", "Share of the devices' peak rate that the model's arithmetic used.", "mfu"),
    Row(
        "drumline_run_units_per_second",
        "",
        "What it learns from a second: tokens, samples.",
        lambda run: None if run.units_per_s is None else {(run.unit,): run.units_per_s},
        labels=("unit",),
    ),
    Row("drumline_run_energy_joules", "joules", "Energy of its GPUs.", lambda run: run.energy_j, "counter"),
    Row(
        "drumline_run_gpu_seconds",
        "seconds",
        "Time that it had GPUs, over all of them.",
        lambda run: run.gpu_s,
        "counter",
    ),
    _run("cost", "", "What it has cost, in the currency of monitor.price_per_kwh and price_per_gpu_hour.", "cost"),
)
