"""Blocks of document 000: fine-tuning of language models on ad texts, through a service."""

from __future__ import annotations

from tests.seeds.cases import Case, Mend

TRAINERS = "from drumline.adapters.onyx_ads import {}\n"
ADS = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

torch.manual_seed(0)
rows = torch.randn(96, 8)
dataset = TensorDataset(rows, (rows.mean(1) > 0).long())
model = nn.Linear(8, 2)
"""
SIMULATED_GPU = """
import os
import sys
from types import SimpleNamespace
from tests.simulated_nvml import SimulatedGpu, SimulatedNvml, SimulatedProcess

own = SimulatedProcess(os.getpid(), 20 << 30)
gpu = SimulatedGpu("GPU-1", memory_bytes=80 << 30, memory_used_bytes=20 << 30, processes=[own])
gpu.values["nvmlDeviceGetUtilizationRates"] = SimpleNamespace(gpu=97, memory=40)
sys.modules["pynvml"] = SimulatedNvml([gpu])
"""
ITS_USAGE = """
assert [each["id"] for each in gpu_info] == [0] and available_gpus == [0], (gpu_info, available_gpus)
assert (gpu_stats["memory_utilization"], gpu_stats["gpu_utilization"]) == (25.0, 97.0), gpu_stats
"""
GPT2 = """
import os
from pathlib import Path

Path("gpt2").symlink_to(Path(os.environ["SEED_MODELS"]) / "llama")
"""
TEXTS = '[f"Spring sale: {number} shoes, half the price." for number in range(40)]'
IS_TRAINED = """
assert result.success and result.model_path.is_dir() and 0 < result.best_loss < 100, result
assert result.training_history
"""

TWO_RANKS = (
    '"""What other processes import."""\n'
    + ADS
    + TRAINERS.format("DistributedDataParallelTrainer, GPUConfig")
    + """

async def train(rank, world_size):
    trainer = DistributedDataParallelTrainer(GPUConfig(backend="gloo", batch_size_per_gpu=8 // world_size))
    trainer.setup_distributed(rank=rank, world_size=world_size)
    trainer.setup_model(model)
    metrics = await trainer.train_epoch(trainer.setup_dataloader(dataset), 0)
    trainer.cleanup()
    return metrics["loss"], metrics["updates"], metrics["samples"]
"""
)
SAME_NUMBERS = """
if __name__ == "__main__":
    import asyncio
    from ranks import train
    from drumline.adapters.onyx_ads import launch_distributed_training

    found = torch.load("checkpoint.pt", map_location="cpu", weights_only=True)
    assert set(found) == {"epoch", "model_state_dict", "optimizer_state_dict"} and found["epoch"] == 1
    first, second = launch_distributed_training(world_size=2, train_func=train)
    alone = asyncio.run(train(0, 1))
    assert first == second and first[1:] == alone[1:] == (12, 96), (first, second, alone)
    assert abs(first[0] - alone[0]) < 1e-6, (first, alone)
"""

SIMULATED_COMMAND = """
import sys
from drumline.jobs import finetuning_commands
from tests.cli import simulated_finetune

finetuning_commands.COMMAND = (sys.executable, simulated_finetune.__file__)
finetuning_service = OptimizedFineTuningService()
dataset = await finetuning_service.prepare_dataset(texts=["an ad", "another"], model_name="gpt2")
config = {"epochs": 3, "learning_rate": 5e-5}
"""
THREE_TRAININGS = """
import json
asked = [json.loads(each.run.config.read_text())["settings"] for each in finetuning_service.trainings()]
assert [each.user_id for each in finetuning_service.trainings()] == [123, 123, 123] and result.success
assert [("parallel" in each, each.get("hardware.num_processes")) for each in asked] == [
    (True, None), (False, "4"), (False, None)
], asked
"""

IN_THE_SCRIPT = """
import asyncio
from drumline.adapters.onyx_ads import OptimizedFineTuningService

if __name__ == "__main__":
"""
ONE_TRAINING = """
if __name__ == "__main__":
    assert [each.success for each in results] == [True, True] and results[0] == results[1], results
    assert len(OptimizedFineTuningService().trainings()) == 1 and results[0].model_path.is_dir()
    assert json.loads((results[0].run_path / "plan.json").read_text())["world_size"] == 2
"""

SERVICE = """
exec 9> "$(python -c 'from tests.cli.real_command import USUAL_PORT_LOCK; print(USUAL_PORT_LOCK)')"
flock 9  # another test may have the service on this port
drumline serve --set "files.model_names={gpt2: $SEED_MODELS/llama}" > serve.log 2>&1 9>&- &
server=$!
trap 'kill -TERM $server; wait $server || true' EXIT
curl() { command curl --silent --show-error --fail-with-body "$@"; }
curl --retry 120 --retry-delay 1 --retry-connrefused --output ready http://localhost:8000/readyz
exec 3>&1 > answers
"""
ANSWERED = """
exec >&3
cat > answered.py << 'END'
import json, time, urllib.request
from pathlib import Path

text, found = Path("answers").read_text(), []
while text.strip():
    answer, end = json.JSONDecoder().raw_decode(text.lstrip())
    found.append(answer)
    text = text.lstrip()[end:]
configured, started, stats = found
while True:
    with urllib.request.urlopen("http://localhost:8000" + started["links"]["self"]) as answer:
        job = json.load(answer)
    if job["state"] in ("succeeded", "failed", "cancelled", "timed_out", "lost"):
        break
    time.sleep(0.2)
assert configured["config"]["gpu_ids"] == [0, 1, 2, 3] and configured["config"]["batch_size_per_gpu"] == 8
assert started["training_id"] and started["status"] in ("queued", "starting"), started
assert {"available_gpus", "gpu_info"} <= set(stats) and stats["devices_free"] + stats["devices_held"] > 0, stats
assert job["success"] and Path(job["model_path"]).is_dir() and len(job["training_history"]) > 0, job
END
python answered.py
"""

PATHS = (
    "multigpu/health multigpu/config multigpu/stats multigpu/resources/status multigpu/performance/metrics "
    "multigpu/training/history multigpu/gpu/recommendations"
)
MOUNTED = f"""
from starlette.testclient import TestClient

with TestClient(app, base_url="http://localhost:8000") as client:
    for path in {PATHS!r}.split():
        assert client.get("/api/v1/" + path).status_code == 200, (path, client.get("/api/v1/" + path).text)
    assert client.post("/api/v1/multigpu/config", json={{"batch_size_per_gpu": 4}}).status_code == 200
    assert client.get("/api/v1/multigpu/config").json()["config"]["batch_size_per_gpu"] == 4
    for method in ("dataparallel", "distributed", "auto"):
        assert client.post("/api/v1/multigpu/training/" + method, json={{}}).status_code == 422
    assert client.get("/api/v1/multigpu/gpu/7/stats").status_code == 404
"""
STARTED = """
from starlette.testclient import TestClient

with TestClient(app):
    assert isinstance(multi_gpu_manager, MultiGPUTrainingManager)
    assert set(multi_gpu_manager.get_gpu_stats()) == {"available_gpus", "gpu_info", "source"}
"""

ABSENT = """
logged = open("log").read()
assert "multi_gpu_training: " in logged and "GPU 0, 1, 2, 3 is not there" in logged, logged
"""


def import_line(old: str, new: str = "") -> Mend:
    """The document's package is one module here."""
    return Mend("import line", f"from onyx.server.features.ads.{old}", f"from drumline.adapters.onyx_ads {new}")


CASES = {
    1: Case(
        before=TRAINERS.format("DataParallelTrainer, MultiGPUTrainingManager"),
        after="assert type(trainer) is DataParallelTrainer and trainer.gpu_config == config\nmanager.cleanup()\n",
    ),
    2: Case(
        awaits=True,
        before=TRAINERS.format("DataParallelTrainer, GPUConfig") + ADS + "gpu_config, epoch = GPUConfig(), 0\n",
        after="assert metrics['epoch'] == 0 and (metrics['samples'], metrics['updates']) == (96, 12), metrics\n",
    ),
    3: Case(
        before=TRAINERS.format("DistributedDataParallelTrainer, GPUConfig") + ADS + "gpu_config = GPUConfig()\n",
        files=(("ranks.py", TWO_RANKS),),
        after=SAME_NUMBERS,
    ),
    4: Case(
        before=SIMULATED_GPU + TRAINERS.format("GPUConfig, GPUMonitor") + "gpu_config = GPUConfig()\n",
        after=ITS_USAGE,
        why="a simulated GPU",
    ),
    5: Case(
        awaits=True,
        before=TRAINERS.format("OptimizedFineTuningService") + SIMULATED_COMMAND,
        after=THREE_TRAININGS,
        why="the command that trains is simulated here, in blocks 6 to 8 it is real",
    ),
    6: Case(
        is_long=True,
        awaits=True,
        mends=(import_line("optimized_finetuning "),),
        before=GPT2 + f"training_texts = {TEXTS}\n",
        after=IS_TRAINED,
        timeout_s=600.0,
    ),
    7: Case(
        is_long=True,
        before=IN_THE_SCRIPT
        + "    import json\n    import os\n    from pathlib import Path\n"
        + '    Path("gpt2").symlink_to(Path(os.environ["SEED_MODELS"]) / "llama")\n'
        + f"    texts = {TEXTS}\n"
        + '    dataset = asyncio.run(OptimizedFineTuningService().prepare_dataset(texts, "gpt2", 64))\n'
        + "    training_config = {'epochs': 1}\n",
        mends=(
            import_line("multi_gpu_training "),
            Mend("not valid Python", "def train_function", "async def train_function"),
            Mend(
                "not valid Python",
                "\nlaunch_distributed_training(",
                '\nif __name__ == "__main__":\n    results = launch_distributed_training(',
            ),
            Mend("GPU count", "world_size=4", "world_size=2"),
        ),
        after=ONE_TRAINING,
        why="`await` in a plain function; processes are started below `__main__`",
        timeout_s=600.0,
    ),
    8: Case(before=SERVICE, after=ANSWERED, why="the service is started for these calls", timeout_s=900.0),
    9: Case(
        before=SIMULATED_GPU,
        mends=(import_line("multi_gpu_training import ", "import GPUConfig, "),),
        after=ITS_USAGE,
        why="a simulated GPU",
    ),
    10: Case(
        awaits=True,
        before=TRAINERS.format("OptimizedFineTuningService, gpu_monitoring_context, performance_context")
        + "import logging\nlogging.basicConfig(level=logging.INFO, filename='log')\n"
        + "finetuning_service = OptimizedFineTuningService()\n",
        after=ABSENT,
    ),
    11: Case(mends=(import_line("multi_gpu_api "),), after=MOUNTED),
    12: Case(
        before=TRAINERS.format("MultiGPUTrainingManager") + "from fastapi import FastAPI\n\napp = FastAPI()\n",
        after=STARTED,
    ),
    13: Case(
        awaits=True,
        before=TRAINERS.format("MultiGPUTrainingManager")
        + "from types import SimpleNamespace\n"
        + ADS
        + "before = model.weight.detach().clone()\n",
        after="metrics = await custom_training_loop(model, dataset, SimpleNamespace(epochs=2))\n"
        "assert (metrics['epoch'], metrics['samples'], metrics['updates']) == (1, 96, 12), metrics\n"
        "assert metrics['loss'] > 0 and not torch.equal(model.weight, before)\n",
    ),
}
