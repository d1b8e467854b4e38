"""Blocks of document 002: multi-GPU training of a video-clip system."""

from __future__ import annotations

from tests.seeds.cases import Case, Mend

ADAPTER = "from drumline.adapters.opus_clip import *\n"
"""The document imports nothing."""
CLIPS = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
clips = torch.randn(96, 3, 4, 8, 8)
dataset = TensorDataset(clips, (clips.mean((1, 2, 3, 4)) > 0).long())
model = nn.Sequential(nn.Conv3d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 2 * 6 * 6, 2))
"""
MODULE = (
    '"""What other processes import."""\n'
    + CLIPS
    + """

def create_model():
    return model


def create_datasets():
    return dataset, dataset
"""
)

# A machine without GPU has no record to compare with the one that the document shows: a simulated driver gives one.
SAME_KEYS = """
from drumline import GPUMonitor
from drumline.adapters.opus_clip import described
from tests.simulated_nvml import SimulatedGpu, SimulatedNvml

assert isinstance(optimal_gpus, list)
assert set(gpu_info) == set(shown), (gpu_info, shown)
simulated = described(GPUMonitor(nvml=SimulatedNvml([SimulatedGpu('GPU-1')])).get_gpu_info())
assert set(simulated["devices"][0]) == set(shown["devices"][0]), simulated
"""
OUT_OF_MEMORY = """
epoch, memory = 0, {"full": True}
def loss_fn(outputs, targets):
    if memory["full"]:
        raise torch.OutOfMemoryError("CUDA out of memory")
    return nn.functional.cross_entropy(outputs, targets)
config = MultiGPUConfig(strategy="dataparallel", num_gpus=2, batch_size=32, num_workers=0)
trainer = DataParallelTrainer(model, config, dataset, loss_fn=loss_fn)
"""

CASES = {
    1: Case(
        before=ADAPTER,
        mends=(Mend("stand-in", "{\n    'count': 4", "shown = {\n    'count': 4"),),
        after=SAME_KEYS,
    ),
    2: Case(
        before=ADAPTER
        + CLIPS
        + "train_loader = DataLoader(dataset, batch_size=32)\n"
        + "optimizer, loss_fn = torch.optim.AdamW(model.parameters()), nn.CrossEntropyLoss()\n",
        mends=(Mend("GPU count", "num_workers=8", "num_workers=0"),),
        after="found = trainer.train_epoch(0)\nassert found['samples'] == 96 and found['updates'] == 3, found\n",
    ),
    3: Case(
        before=ADAPTER + "from clips import create_datasets, create_model\n",
        files=(("clips.py", MODULE),),
        mends=(
            Mend("GPU count", "world_size=8", "world_size=2", 2),
            Mend("GPU count", "    backend='nccl',\n", "    backend='gloo', num_workers=0, batch_size=16,\n"),
            Mend("endless made finite", "epochs=100", "epochs=2"),
            Mend("stand-in", "launch_distributed_training(\n", "metrics = launch_distributed_training(\n"),
        ),
        after="assert [each['updates'] for each in metrics] == [3, 3], metrics  # 96 rows, 16 a process\n",
    ),
    4: Case(
        before=ADAPTER + CLIPS + OUT_OF_MEMORY,
        after="memory['full'] = False\n"
        "assert config.batch_size == 16 and trainer.train_epoch(epoch)['updates'] == 6  # 96 rows, 16 an update\n",
    ),
    5: Case(
        before=ADAPTER + CLIPS + "config = MultiGPUConfig(strategy='dataparallel', num_gpus=2, num_workers=0)\n",
        mends=(Mend("stand-in", "{\n    'training_time'", "shown = {\n    'training_time'"),),
        after="assert set(shown) <= set(results) and set(shown['gpu_utilization']) == set(results['gpu_utilization'])\n"
        "assert set(shown['gpu_utilization']['gpu_info']) <= set(results['gpu_utilization']['gpu_info'])\n",
    ),
    6: Case(
        is_long=True,
        mends=(Mend("address or path", "python quick_start_multi_gpu.py", "drumline quickstart", 4),),
        after="test -s my_recipe.yaml; test -s runs/*/metrics.jsonl; test -s bench/scaling-*/result.json\n",
        timeout_s=300.0,
    ),
    7: Case(
        before=ADAPTER
        + CLIPS
        + "config = MultiGPUConfig(num_workers=0)\n"
        + "train_dataset = val_dataset = dataset\nnum_epochs, best_loss = 2, float('inf')\n",
        after="found = torch.load('best_model.pth', map_location='cpu', weights_only=True)\n"
        "model.load_state_dict(found['model_state_dict'])\nassert found['epoch'] == 1\n",
    ),
}
