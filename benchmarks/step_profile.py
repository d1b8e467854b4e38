"""Where the host's time in an update goes, on one GPU: is it hidden, and does it grow with the number of parameters?

Usage: python benchmarks/step_profile.py OUT_FILE. Prints a table and writes its figures as JSON.
  step: one update of recipe gpt2_124m: span, kernels, and the host's time in passes and update, by torch's profiler.
  update: the same for N parameters of 64 x 64 without any model, ours against clip, step and zero_grad by hand.
  gradients: a step of that decoder with gradients that are handed over against such as stay and are added to.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.profiler import ProfilerActivity, profile, record_function

from drumline.build.parts import build_trainer
from drumline.config.load import load_config
from drumline.config.model import DecoderModel
from drumline.engine.fused import FusedAdamW
from drumline.models.decoder import decoder_from_config
from drumline.parallel.strategy import Rates
from drumline.parallel.update import Update
from drumline.rundir import RunDir

CONTEXT, VOCAB, BATCH = 1024, 50257, 32
SYNCS = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "aten::_local_scalar_dense")
WATCHED = 10
"""Updates in the profiler's window."""


def host_ms(events: Any, name: str) -> float:
    """Mean time of the named range on the host."""
    found = [event.cpu_time_total for event in events if event.key == name]
    return float(found[0]) / 1e3 / WATCHED if found else 0.0


def profile_step() -> dict[str, float]:
    """One update of the recipe, between two log lines."""
    config = load_config(
        "gpt2_124m",
        [
            f"data={{kind: random_tokens, num_rows: 4096, context: {CONTEXT}, vocab_size: {VOCAB}}}",
            f"train.global_batch={BATCH}",
            "train.max_steps=60",
            "loader.num_workers=2",
            "evaluate.every=end",
            "checkpoint.at_end=false",
            "track={console: false, every: 1000}",
        ],
    )
    with build_trainer(config, RunDir.create(Path(tempfile.mkdtemp()) / "run")) as trainer:
        steps = trainer.steps()
        next(steps)
        strategy: Any = trainer._run.strategy
        for name in ("window", "step"):
            setattr(strategy, name, named(getattr(strategy, name), name))
        for _ in range(15):
            next(steps)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(WATCHED):
            next(steps)
        torch.cuda.synchronize()
        plain_ms = 1e3 * (time.perf_counter() - began) / WATCHED
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as watched:
            for _ in range(WATCHED):
                next(steps)
        torch.cuda.synchronize()
    events = watched.key_averages()
    syncs = {event.key: event.count for event in events if event.key in SYNCS}
    kernels = [event for event in watched.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return {
        "step_ms": plain_ms,
        "host_passes_ms": host_ms(events, "window"),
        "host_update_ms": host_ms(events, "step"),
        "gpu_kernels_ms": sum(event.device_time for event in kernels) / 1e3 / WATCHED,
        **{f"{name} in {WATCHED} updates": count for name, count in syncs.items()},
    }


def named(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function as a range of the profiler's."""

    def wrapped(*args: Any) -> Any:
        with record_function(name):
            return function(*args)

    return wrapped


def time_updates(num: int) -> dict[str, float]:
    """Host and whole time of an update of `num` parameters, in ms: ours, and by hand."""
    found: dict[str, float] = {}
    for who in ("ours", "by hand"):
        parameters = [nn.Parameter(torch.randn(64, 64, device="cuda")) for _ in range(num)]
        fused = FusedAdamW if who == "ours" else partial(torch.optim.AdamW, fused=True)
        optimizer = fused(parameters, lr=1e-4)
        update = Update(optimizer, Rates(lambda step: 1.0, 100, None, "update", False), None)
        gradients = [torch.randn_like(p) for p in parameters]
        host, whole = [], []
        for _ in range(30):
            for p, gradient in zip(parameters, gradients, strict=True):
                p.grad = gradient
            torch.cuda.synchronize()
            began = time.perf_counter()
            if who == "ours":
                update.apply(1.0)
            else:
                nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            host.append(time.perf_counter() - began)
            torch.cuda.synchronize()
            whole.append(time.perf_counter() - began)
        found[f"{who}, host"] = 1e3 * statistics.median(host[5:])
        found[f"{who}, with the GPU"] = 1e3 * statistics.median(whole[5:])
    return found


class WithLoss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return cross_entropy(self.model(ids).float().flatten(0, 1), ids.flatten())


def compare_gradients() -> dict[str, float]:
    """Median step of the decoder with gradients handed over, and with such as stay, in alternating rounds."""
    torch.set_float32_matmul_precision("high")
    config = load_config("gpt2_124m")
    assert isinstance(config.model, DecoderModel)
    model = decoder_from_config(config.model, VOCAB, CONTEXT).cuda()
    run = torch.compile(WithLoss(model))
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    ids = torch.randint(0, VOCAB, (BATCH, CONTEXT), device="cuda")
    times: dict[str, list[float]] = {"handed over": [], "added to": []}

    def step(stay: bool) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = run(ids)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if stay:
            torch._foreach_zero_([p.grad for p in parameters])
        else:
            optimizer.zero_grad(set_to_none=True)

    for _ in range(4):
        for name in times:
            for number in range(12):
                if number == 2:
                    torch.cuda.synchronize()
                    began = time.perf_counter()
                step(name == "added to")
            torch.cuda.synchronize()
            times[name].append(1e3 * (time.perf_counter() - began) / 10)
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def main(out: Path) -> None:
    found: dict[str, Any] = {"card": torch.cuda.get_device_name(), "torch": torch.__version__}
    found["step"] = profile_step()
    found["update"] = {str(num): time_updates(num) for num in (100, 300, 1000, 3000)}
    found["gradients"] = compare_gradients()
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
