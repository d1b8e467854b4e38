"""Algorithm Distillation on the dark room (Laskin et al. 2022, arXiv 2210.14215).

`python train.py [FILE ...] [--set KEY=VALUE]`, or `accelerate launch`, `torchrun`, `drumline launch` or `srun python`
in front of it. Files lie over config/model/ad_dr_compressed.yaml: a preset's name, as `small`, or a path.
"""

from __future__ import annotations

import argparse
import io
import os

import torch
from darkroom import split_goals
from histories import Contexts, collect
from model import HistoryModel, loss
from settings import Settings, read_settings, run_config

from drumline import Trainer, World
from drumline.launcher.world import detect_world
from drumline.rundir import write_atomic

WEIGHTS = "model.pt"
"""In the run's folder: the settings and the bare model's weights, for evaluate.py."""


def banner(settings: Settings, world: World, *, has_gpu: bool) -> str:
    """What is said at start, in the words of `accelerate`."""
    machine = "NO" if world.size == 1 else "MULTI_GPU" if has_gpu else "MULTI_CPU"
    line = "=" * 60
    return "\n".join(
        [
            *(line, "Multi-GPU Training Configuration", line),
            f"Number of processes: {world.size}",
            f"Distributed type: DistributedType.{machine}",
            f"Mixed precision: {settings.mixed_precision}",
            f"Gradient accumulation steps: {settings.gradient_accumulation_steps}",
            f"Main process device: {f'cuda:{world.local_rank}' if has_gpu else 'cpu'}",
            line,
        ]
    )


def contexts(settings: Settings) -> tuple[Contexts, Contexts]:
    """Pieces of the histories of the training goals, and of the held-out ones; the same on every process."""
    train, held_out = split_goals(settings.goals_held_out, settings.seed)
    num_episodes = settings.episodes_per_history
    tokens, _ = collect(train.repeat(settings.histories_per_goal), num_episodes, settings.seed)
    tokens_held_out, _ = collect(held_out.repeat(2), num_episodes, settings.seed + 1)
    return Contexts(tokens, settings.n_transit), Contexts(tokens_held_out, settings.n_transit)


def save_weights(trainer: Trainer, settings: Settings) -> None:
    """Write model.pt; the model is the bare one, whose names begin with no `module.`."""
    file = io.BytesIO()
    torch.save({"settings": settings.model_dump(mode="json"), "weights": trainer.model.state_dict()}, file)
    write_atomic(trainer.run_dir / WEIGHTS, file.getvalue())


def main() -> None:
    """Collect the histories, then learn from them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", metavar="FILE", help="YAML over the full file, later ones over earlier")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="over the files")
    arguments = parser.parse_args()
    settings = read_settings(arguments.files, arguments.set)
    world, has_gpu = detect_world(), torch.cuda.is_available()
    is_main = world.rank == 0
    if is_main:
        print(banner(settings, world, has_gpu=has_gpu), flush=True)
    if settings.mixed_precision == "fp16" and not has_gpu:
        if is_main:
            print("No GPU: fp16 is for GPUs, so that this run goes on in fp32.", flush=True)
        os.environ.pop("ACCELERATE_MIXED_PRECISION", None)  # else `accelerate launch` contradicts it
    train, held_out = contexts(settings)
    torch.manual_seed(settings.seed)
    model = HistoryModel(settings.tf_n_embd, settings.tf_n_layer, settings.tf_n_head, settings.n_transit)
    config = run_config(settings, has_gpu=has_gpu)
    with Trainer(model, config, train, eval_data=held_out, loss=loss) as trainer:
        trainer.fit()
        if is_main:
            save_weights(trainer, settings)
            print(f"See how it learns in context: python evaluate.py {trainer.run_dir}")


if __name__ == "__main__":
    main()
