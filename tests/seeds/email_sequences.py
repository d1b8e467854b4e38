"""Blocks of document 001: multi-GPU training of an e-mail sequence system."""

from __future__ import annotations

from tests.seeds.cases import Case, Mend

ADAPTER = "from drumline.adapters.email_sequences import *\n"
"""For the blocks that import nothing."""
TRAINING = Mend("import line", "core.multi_gpu_training", "drumline.adapters.email_sequences")
OPTIMIZER = Mend("import line", "core.optimized_training_optimizer", "drumline.adapters.email_sequences")
EMAILS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class EmailSequenceDataset(Dataset):
    def __init__(self, num_samples=192):
        self.rows = torch.randn(min(num_samples, 192), 50, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        return self.rows[number], int(self.rows[number, 0] > 0)


class EmailSequenceModel(nn.Sequential):
    def __init__(self):
        torch.manual_seed(0)
        blocks = [nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(2)]
        super().__init__(nn.Linear(50, 16), *blocks, nn.Linear(16, 2))


YourModel = EmailSequenceModel
dataset = train_dataset = val_dataset = EmailSequenceDataset()
"""
FILE = ("emails.py", '"""What other processes import."""\n' + EMAILS)
MODEL = EMAILS + "model, train_loader = EmailSequenceModel(), DataLoader(dataset, batch_size=64)\n"
NAMES = "EmailSequenceDataset, EmailSequenceModel, YourModel, train_dataset"
SCRIPT = (
    "your_training_script.py",
    '''"""Trains on each of two ranks."""

import asyncio

from drumline.adapters.email_sequences import create_multi_gpu_trainer
from emails import EmailSequenceModel, dataset

trainer = create_multi_gpu_trainer(training_mode="distributed", max_epochs=2)
trainer.initialize_training(EmailSequenceModel())
trainer.setup_dataloader(dataset, batch_size=16)
found = asyncio.run(trainer.train())
info = trainer.get_training_info()
assert info["world_size"] == 2 and found["updates"] == 12, (info, found)  # 192 rows, 16 a rank, twice
open(f"rank_{info['rank']}", "w").close()
''',
)
PORT = """PORT=$(python -c "from drumline.adapters.email_sequences import get_free_port; print(get_free_port())")\n"""
OTHER_NODE = """
torchrun --nproc_per_node=1 --nnodes=2 --node_rank=1 --master_addr=127.0.0.1 --master_port=$PORT \\
  your_training_script.py & other=$!
trap 'kill $other 2>/dev/null || true' EXIT
"""
BOTH = "test -e rank_0 -a -e rank_1\n"
IN_TWO_PROCESSES = """
import os
import sys

if "LOCAL_RANK" not in os.environ:
    from drumline.adapters.email_sequences import launch_distributed_training

    launch_distributed_training(__file__, world_size=2)
    sys.exit()
"""
BY_TWO = """
if __name__ == "__main__":  # processes that are spawned read this file too
    from pathlib import Path

    from drumline.rundir import read_json

    [plan] = Path("runs").glob("block-*/plan.json")
    assert read_json(plan)["world_size"] == 2 and read_json(plan)["kind"] == "ddp", read_json(plan)
    assert read_json(plan.with_name("exit.json"))["reason"] == "done"
"""
WITHOUT_GPU = (
    Mend("GPU count", 'dist.init_process_group(backend="nccl")', 'dist.init_process_group(backend="gloo")'),
    Mend("GPU count", "    torch.cuda.set_device(local_rank)\n", ""),
    Mend("not valid Python", "await trainer.train()", "asyncio.run(trainer.train())"),
)
SAME_FIELDS = """
from typing import get_type_hints

from drumline.adapters import email_sequences

ours = email_sequences.MultiGPUConfig
assert [(each.name, each.default) for each in fields(MultiGPUConfig)] == [
    (each.name, each.default) for each in fields(ours)
]
shown, had = get_type_hints(MultiGPUConfig), get_type_hints(ours)
assert shown.pop("device_ids") == Optional[List[int]] and had.pop("device_ids") == list[int] | None
assert shown == had, (shown, had)
"""
GPU_KEYS = """
from tests.simulated_nvml import SimulatedGpu, SimulatedNvml

assert isinstance(summary["memory_allocated_mean"], float) and isinstance(summary["memory_allocated_max"], float)
simulated = GPUMonitor(nvml=SimulatedNvml([SimulatedGpu("GPU-1")])).get_gpu_info()
assert set(simulated) == set(gpu_info) == {"device_count", "current_device", "devices"}, gpu_info
assert set(simulated["devices"][0]) == {"name", "total_memory", "capability"} and simulated["device_count"] == 1
"""
TRAINED = """
import asyncio

optimizer = create_optimized_training_optimizer(model=model, train_loader=train_loader, max_epochs=1)
trainer = optimizer.multi_gpu_trainer
asyncio.run(optimizer.train())
"""
THEIR_EPOCH = """
import asyncio


class Theirs(OptimizedTrainingOptimizer):
    def _train_batch(self, batch):
        return {"loss": float(nn.functional.cross_entropy(self.model(batch[0]), batch[1]))}


seen = []
theirs = Theirs(model=model, train_loader=train_loader)
theirs.logger.log_batch = seen.append
asyncio.run(train_epoch(theirs, 0))
assert len(seen) == 3 and all(each["loss"] > 0 for each in seen), seen  # 192 rows, 64 a batch
"""


def modes(*expected: str) -> str:
    """Checks which training mode the config comes to with no GPU, with one, with two, and so on."""
    return f"assert [detect_training_mode(config, num) for num in range({len(expected)})] == {list(expected)}\n"


def always(mode: str) -> Case:
    """A block that makes a config of this mode, whatever the GPUs."""
    return Case(before=ADAPTER, after=modes(*[mode] * 4))


BY_NUMBER = ("single_gpu", "single_gpu", "distributed", "distributed")
CASES = {
    1: Case(
        instead="python -c 'from drumline.adapters.email_sequences import "
        "MultiGPUTrainer, DataParallelManager, DistributedManager, GPUMonitor, MultiGPUConfig'",
        why="the names of the parts, all of which the adapter has",
    ),
    2: Case(
        instead="python -c 'import drumline, numpy, psutil, torch'",
        why="the installation of drumline, which brings torch and psutil; torchvision and torchaudio are not needed",
    ),
    3: Case(
        awaits=True,
        before=EMAILS,
        mends=(TRAINING, OPTIMIZER),
        after="assert results['epochs'] == 10 and results['training_mode'] == 'single_gpu', results\n"
        "losses = [each['val_loss'] for each in results['history']]\n"
        "assert losses == sorted(losses, reverse=True) and results['best_val_loss'] == losses[-1], results\n",
    ),
    4: Case(
        before=MODEL,
        mends=(TRAINING,),
        after="assert training_info['training_mode'] == 'single_gpu' and optimized_model is model, training_info\n",
    ),
    5: Case(
        before="from dataclasses import dataclass, fields\nfrom typing import List, Optional\n\n", after=SAME_FIELDS
    ),
    6: Case(before=ADAPTER, after=modes(*["data_parallel"] * 4) + "assert config.device_ids == [0, 1, 2]\n"),
    7: always("distributed"),
    8: Case(before=ADAPTER, after=modes(*BY_NUMBER)),
    9: always("single_gpu"),
    10: always("data_parallel"),
    11: always("distributed"),
    12: Case(
        before=ADAPTER,
        after=modes(*BY_NUMBER)
        + "config.enable_distributed = False\n"
        + modes("single_gpu", "single_gpu", "data_parallel")
        + "config.enable_data_parallel = False\n"
        + modes("single_gpu", "single_gpu", "single_gpu"),
    ),
    13: Case(before=ADAPTER + "trainer = create_multi_gpu_trainer()\n", after=GPU_KEYS),
    14: Case(before=ADAPTER + MODEL, after=THEIR_EPOCH),
    15: Case(
        before=ADAPTER + MODEL + TRAINED,
        after="assert performance_summary['throughput'] > 0 and 'memory_efficiency' in performance_summary\n"
        "assert benchmark_results['average_forward_time'] > 0 and benchmark_results['average_backward_time'] > 0\n"
        "assert benchmark_results['updates'] >= 50\n",
    ),
    16: Case(
        before=PORT,
        files=(FILE, SCRIPT),
        mends=(Mend("address or path", "12355", "$PORT", 2),),
        after=BOTH,
    ),
    17: Case(
        before=IN_TWO_PROCESSES + f"\nimport asyncio\nfrom emails import {NAMES}\n",
        files=(FILE,),
        mends=(
            Mend(
                "import line",
                "from core.multi_gpu_training import MultiGPUConfig",
                "from drumline.adapters.email_sequences import MultiGPUConfig, create_multi_gpu_trainer",
            ),
            *WITHOUT_GPU,
            Mend("stand-in", "# Train model\n", "trainer.setup_dataloader(train_dataset, batch_size=16)\n"),
        ),
        after=BY_TWO,
        why="the document gives the trainer no data",
    ),
    18: Case(
        before=PORT + OTHER_NODE,
        files=(FILE, SCRIPT),
        mends=(
            Mend("address or path", "192.168.1.100", "127.0.0.1", 3),
            Mend("address or path", "12355", "$PORT", 3),
            Mend("GPU count", "WORLD_SIZE=4", "WORLD_SIZE=2", 2),
            Mend("GPU count", "--nproc_per_node=2", "--nproc_per_node=1"),
        ),
        after="wait $other\n" + BOTH,
        why="both nodes are this machine",
    ),
    19: Case(
        before=EMAILS,
        mends=(TRAINING, OPTIMIZER),
        after="from pathlib import Path\nfrom drumline.rundir import read_json\n\n"
        "assert read_json(Path('runs/email_sequence_multi_gpu/exit.json'))['reason'] in ('done', 'early_stop')\n",
    ),
    20: Case(
        before=f"import asyncio\nimport torch\nfrom emails import {NAMES}\n",
        files=(FILE,),
        mends=(
            TRAINING,
            *WITHOUT_GPU,
            Mend("GPU count", "torch.cuda.device_count()", "2"),
            Mend("GPU count", "num_workers=4", "num_workers=0"),
            Mend(
                "address or path",
                'init_process_group(backend="gloo")',
                'init_process_group("gloo", f"file://{os.getcwd()}/meeting", rank=local_rank, world_size=world_size)',
            ),
        ),
        after=BY_TWO,
        why="the document does not say where its processes meet",
    ),
    21: Case(before=EMAILS, mends=(TRAINING, Mend("GPU count", "torch.randn(32, 50).cuda()", "torch.randn(32, 50)"))),
    22: Case(
        instead="python -c 'import torch; from drumline.engine.recover import finds_no_memory; "
        'assert finds_no_memory(torch.OutOfMemoryError("CUDA out of memory"))\'',
        why="an error after which drumline redoes the update with smaller micro-batches",
    ),
    23: Case(
        before=ADAPTER + MODEL,
        after="import asyncio\n\noptimizer.max_epochs = 1\nfound = asyncio.run(optimizer.train())\n"
        "assert found['training_mode'] == 'data_parallel' and found['updates'] == 6, found  # 192 rows, 32 an update\n",
    ),
    24: always("distributed"),
    25: Case(
        instead="python -c 'from drumline.errors import BackendError; assert BackendError.code == \"backend\"'",
        why="an error that drumline finds at the start, names as `backend`, and says what to set",
    ),
    26: Case(
        before="import os\n" + ADAPTER,
        after=modes(*["distributed"] * 2) + "assert config.backend == 'gloo'\n",
    ),
    27: Case(before="import torch\n"),
    28: Case(before=ADAPTER + MODEL + TRAINED, after="assert optimal_batch_size == 64  # no GPU: as it is\n"),
    29: Case(
        before=ADAPTER + MODEL,
        after="import asyncio\n\noptimizer.max_epochs = 1\n"
        "assert asyncio.run(optimizer.train())['updates'] == 3  # 192 rows, 64 an update\n",
    ),
    30: Case(
        before=EMAILS,
        after="import asyncio\nfrom drumline.adapters.email_sequences import create_optimized_training_optimizer\n\n"
        "made = create_optimized_training_optimizer(EmailSequenceModel(), train_loader, max_epochs=1)\n"
        "assert asyncio.run(made.train())['updates'] == 3\n",
    ),
}
