"""What the ranks of GPU tests run; a module of its own, so that they can import it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from drumline import DrumlineError, World
from drumline.parallel.groups import open_groups


def meet_on_one_gpu(rank: int, folder: str, backend: str) -> None:
    """Open groups of two ranks that share GPU 0, and write what became of it."""
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    try:
        groups = open_groups(World(rank, 2, 0, 1, f"file://{folder}/store"), device, backend, 30)
    except DrumlineError as error:
        answer = f"{error.code}: {error}"
    else:
        answer = "met"
        groups.close()
    Path(folder, f"answer-{rank}").write_text(answer)


def make_normed_model() -> nn.Module:
    """The masked regression's model with batch statistics over its six tokens."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(8, 1)).double()
