"""The processes of the e-mail sequence system's distributed training: who starts them, and how they meet."""

from __future__ import annotations

import os
import runpy
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drumline.errors import ConfigError

if TYPE_CHECKING:
    from drumline.adapters.email_sequences.settings import MultiGPUConfig
    from drumline.launcher.world import World


def setup_distributed_environment(
    world_size: int = -1, backend: str = "nccl", init_method: str = "env://", rank: int = -1
) -> World:
    """Make torch's default process group, unless there is one, and return the place of this process in it.

    world_size, rank: -1: as the launcher says. backend: gloo in place of nccl on a machine without GPU. With a GPU,
    that of this process becomes the current one.
    """
    import torch
    import torch.distributed as dist

    from drumline.launcher.world import detect_world
    from drumline.parallel.groups import started_world

    has_gpu = torch.cuda.is_available()
    if not dist.is_initialized():
        launched = detect_world()
        dist.init_process_group(
            "gloo" if backend == "nccl" and not has_gpu else backend,
            init_method=init_method,
            world_size=launched.size if world_size < 1 else world_size,
            rank=launched.rank if rank < 0 else rank,
        )
    world = started_world()
    if has_gpu:
        torch.cuda.set_device(world.local_rank % torch.cuda.device_count())
    return world


class DistributedManager:
    """The process group and the place of this process, by a MultiGPUConfig."""

    def __init__(self, config: MultiGPUConfig) -> None:
        self.config = config
        self._is_ours = False

    def initialize(self) -> World:
        """Make the default process group, for a loop of one's own; a training needs none, and uses one that exists."""
        import torch.distributed as dist

        config = self.config
        self._is_ours |= not dist.is_initialized()
        return setup_distributed_environment(config.world_size, config.backend, config.init_method, config.rank)

    def world(self, environ: Mapping[str, str] = os.environ) -> World | None:
        """The place that the config gives this process; None where the launcher or a process group says it.

        Raises ConfigError where init_method is env:// and the variables do not say where the ranks meet.
        """
        from drumline.launcher.world import World
        from drumline.parallel.groups import started_world

        config, started = self.config, started_world()
        if config.rank < 0 or config.world_size < 1 or (config.rank, config.world_size) == (started.rank, started.size):
            return None
        method = config.init_method
        if method == "env://":
            if missing := [name for name in ("MASTER_ADDR", "MASTER_PORT") if not environ.get(name)]:
                what = f"rank {config.rank} of {config.world_size} is to meet the others by env://, and"
                fix = "set them, or give init_method=tcp://host:port; torchrun and drumline launch do all of it"
                raise ConfigError(f"{what} {', '.join(missing)} is not set", fix)
            method = f"tcp://{environ['MASTER_ADDR']}:{environ['MASTER_PORT']}"
        local_rank = config.rank if config.local_rank < 0 else config.local_rank
        local_size = int(environ.get("LOCAL_WORLD_SIZE", config.world_size))
        return World(config.rank, config.world_size, local_rank, local_size, method, source="MultiGPUConfig")

    def cleanup(self) -> None:
        """Take down the group that `initialize` has made; one of somebody else's stays."""
        import torch.distributed as dist

        if self._is_ours and dist.is_initialized():
            dist.destroy_process_group()
        self._is_ours = False


def launch_distributed_training(
    script_path: str | Path, world_size: int, args: Sequence[str] = (), **options: Any
) -> None:
    """Run a script in world_size processes, one a GPU, and wait for them; torchrun's variables are set in each.

    args: sys.argv[1:] of the script. options: drumline.launch's run_dir, max_restarts and hardware. Raises ConfigError
    where there is no such script, and LaunchError with the first failing rank's message.
    """
    from drumline.launcher.functions import launch

    script = Path(script_path).absolute()
    if not script.is_file():
        raise ConfigError(f"there is no script {script_path}", "give the path of a Python file")
    launch(run_script, (str(script), tuple(args)), num_processes=world_size, **options)


def run_script(script: str, args: Sequence[str]) -> None:
    """What each rank of launch_distributed_training does: as `python script args`."""
    sys.argv[:] = [script, *args]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")


def get_free_port() -> int:
    """A TCP port that nobody has at this moment; drumline finds its own."""
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])
