"""One training run of drumline, measured: `one_run.py SPEC`, in one process or under torch's launcher.

SPEC is JSON. Of your own parts: model (a decoder's settings, or {kind: hf_gpt2} with layers, heads and width),
vocab_size, context, rows, data (markov, which can be learned, or random), config (a RunConfig), warmup and steps
(updates), meta (the model is made without memory, and filled once it is sharded), chunked_loss (never all logits at a
time). Or of a recipe: recipe, overrides, context, warmup and steps. Rank 0 prints one JSON line.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "peers"))

import torch
import torch.distributed as dist
from gpu_use import GpuUse
from task import MarkovTokens, Task, model_of, peak_memory, synchronise
from torch import nn

from drumline import RunConfig, Trainer
from drumline.build.parts import build_trainer
from drumline.config.load import load_config
from drumline.config.model import DecoderModel
from drumline.data.random_tokens import RandomTokenRows
from drumline.engine.trainer import Options
from drumline.hardware.peaks import peak_flops
from drumline.models.decoder import decoder_from_config
from drumline.models.flops import training_flops_per_unit
from drumline.rundir import RunDir
from drumline.tasks.language_modelling import LanguageModelling


def model_from(spec: dict[str, Any]) -> nn.Module:
    """The model, the same in every process."""
    settings = dict(spec["model"])
    torch.manual_seed(0)
    if settings.pop("kind") == "hf_gpt2":
        shape = Task("", "", None, **settings, vocab_size=spec["vocab_size"], context=spec["context"], rows=0,
                     micro_batch=0, precision="", compile=False, warmup=0, steps=0, log_every=1, workers=0)  # fmt: skip
        return model_of(shape)  # type: ignore[no-any-return]
    with torch.device("meta" if spec.get("meta") else "cpu"):
        return decoder_from_config(DecoderModel(**settings), spec["vocab_size"], spec["context"])


def rows_from(spec: dict[str, Any]) -> Any:
    if spec.get("data") == "random":
        return RandomTokenRows(spec["rows"], spec["context"], spec["vocab_size"], 0)
    shifted = spec["model"]["kind"] == "decoder"
    return MarkovTokens(spec["rows"], spec["context"], spec["vocab_size"], shifted=shifted)


def trainer_from(spec: dict[str, Any], folder: Path) -> Trainer:
    """What is to be measured; it saves nothing and prints nothing."""
    last = spec["warmup"] + spec["steps"]
    if "recipe" in spec:
        fixed = [f"train.max_steps={last}", "evaluate.every=end", "checkpoint.at_end=false", "track.console=false"]
        folder.mkdir()
        return build_trainer(load_config(spec["recipe"], [*spec["overrides"], *fixed]), RunDir(folder))
    settings = {"run_dir": str(folder), "checkpoint": {"at_end": False}, **spec["config"]}
    settings["train"] = {"max_steps": last, "schedule": {"name": "constant"}, **settings["train"]}
    model = model_from(spec)
    options = Options()
    if spec.get("chunked_loss"):
        options["loss"] = LanguageModelling(spec["vocab_size"], chunked_loss=True)
    return Trainer(model, RunConfig.model_validate(settings), rows_from(spec), **options)


def measure(spec: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Train warmup + steps updates; the rate is of the last `steps`, the GPUs waited for at both of their ends."""
    began = time.perf_counter()
    last = spec["warmup"] + spec["steps"]
    losses: list[tuple[int, float]] = []
    units, measured_from, first_step_s, use = 0, 0.0, 0.0, None
    with trainer_from(spec, folder / "run") as trainer:
        flops = training_flops_per_unit(trainer.model, spec["context"])
        num_parameters = sum(p.numel() for p in trainer.model.parameters())
        for info in trainer.steps():
            if info.step == 1:
                synchronise()
                first_step_s = time.perf_counter() - began
            if info.step > spec["warmup"]:
                units += info.samples * spec["context"]  # as the peers count: a row is its context
            if info.logged is not None:
                losses.append((info.step, info.logged["loss"]))
            if info.step == spec["warmup"]:
                use = GpuUse(torch.cuda.current_device()) if torch.cuda.is_initialized() else None
                synchronise()
                measured_from = time.perf_counter()
                if use is not None:
                    use.begin()
            if info.step == last:
                synchronise()
                seconds = time.perf_counter() - measured_from
        counters = use.end() if use is not None else {}
        return {
            "units_per_s": units / seconds,
            "step_ms": 1000 * seconds / spec["steps"],
            "first_step_s": first_step_s,
            "peak_memory_bytes": max(gathered(peak_memory())),
            "losses": losses,
            "num_parameters": num_parameters,
            **plan_of(trainer),
            **device_facts(flops, units / seconds),
            **counters,
        }


def gathered(value: Any) -> list[Any]:
    if not (dist.is_available() and dist.is_initialized()):
        return [value]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def plan_of(trainer: Trainer) -> dict[str, Any]:
    if trainer.world.rank:  # another folder than rank 0's
        return {}
    plan = json.loads((trainer.run_dir / "plan.json").read_text())
    return {name: plan[name] for name in ("kind", "precision", "global_batch", "micro_batch", "num_shards")}


def device_facts(flops: float | None, units_per_s: float) -> dict[str, Any]:
    """MFU is of the dense bf16 peak, whatever the precision, so that rows can be set side by side."""
    versions = {"torch": torch.__version__, "python": sys.version.split()[0]}
    if not torch.cuda.is_initialized():
        return {"gpus": 0, "device": "cpu", **versions}
    gpus = max(int(os.environ.get("WORLD_SIZE", 1)), torch.cuda.device_count())
    name = torch.cuda.get_device_name()
    peak = peak_flops(name, "bf16")
    mfu = None if flops is None or peak is None else units_per_s * flops / (peak * gpus)
    return {"gpus": gpus, "device": name, "mfu": mfu, **versions}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        line = measure(json.loads(sys.argv[1]), Path(scratch))
    if not int(os.environ.get("RANK", 0)):
        print("RESULT " + json.dumps(line), flush=True)
