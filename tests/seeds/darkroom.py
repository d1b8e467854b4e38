"""Blocks of document 003: Algorithm Distillation on the dark room."""

from __future__ import annotations

from dataclasses import replace

import yaml

from tests.seeds.blocks import blocks_of
from tests.seeds.cases import Case, Mend
from tests.seeds.running import ROOT

EXAMPLE = ROOT / "examples/darkroom"
TINY = {
    "train_batch_size": 4,
    "num_workers": 0,
    "tf_n_embd": 8,
    "tf_n_layer": 1,
    "n_transit": 20,
    "histories_per_goal": 1,
    "episodes_per_history": 2,
    "steps": 2,
    "warmup_steps": 0,
    "log_every": 1,
}
FULL = "config/model/ad_dr_compressed.yaml"
WRITTEN = (".py", ".sh", ".slurm")
HERE = (
    (FULL, yaml.safe_dump(yaml.safe_load((EXAMPLE / FULL).read_text(encoding="utf-8")) | TINY)),
    *((file.name, file.read_text(encoding="utf-8")) for file in sorted(EXAMPLE.iterdir()) if file.suffix in WRITTEN),
)
"""The example as its reader has it, with a config of two updates."""
ASKS = Mend("endless made finite", "accelerate config", "accelerate config default")
"""It waits for answers; drumline needs none of them."""
AT_HOME = "export HF_HOME=$PWD/home\n"
"""accelerate keeps its answers there."""


def trained(*world_sizes: int) -> str:
    """Check of the runs that there must be, by their numbers of processes."""
    return f"""python - <<'END'
import glob, json
found = sorted(json.load(open(file))["world_size"] for file in glob.glob("runs/*/plan.json"))
assert found == {sorted(world_sizes)}, found
assert len(glob.glob("runs/*/exit.json")) == len(glob.glob("runs/*/model.pt")) == len(found)
END
"""


def text_of(number: int) -> str:
    """A block's text."""
    return blocks_of("darkroom")[number - 1].text


def reads(check: str) -> str:
    """A program that lays block.yaml over values that are none of the document's, and checks what arrives."""
    return f"""
import sys
from pathlib import Path
from tests.seeds.darkroom import EXAMPLE, text_of
sys.path.insert(0, str(EXAMPLE))
from settings import read_settings, run_config
Path("others.yaml").write_text(
    "{{mixed_precision: no, gradient_accumulation_steps: 3, train_batch_size: 7, test_batch_size: 7, num_workers: 1,"
    " tf_n_embd: 8, tf_n_layer: 1, n_transit: 20}}"
)
settings = read_settings(["others.yaml", "block.yaml"])
config = run_config(settings, has_gpu=True)
batch = (config.train.precision, config.train.gradient_accumulation_steps, config.train.batch_size_per_gpu)
{check}
"""


def preset(number: int, num_gpus: int, expected: str) -> Case:
    """A block that is one of the presets."""
    file = f"config/model/ad_dr_compressed_{num_gpus}gpu.yaml"
    same = f"import yaml\nassert yaml.safe_load((EXAMPLE / '{file}').read_text()) == yaml.safe_load(text_of({number}))"
    return Case(after=reads(f"assert batch == {expected} and config.loader.num_workers == 4, config\n{same}"))


TWO = Mend("GPU count", "--num_processes 2", "--multi_gpu --num_processes 2")
FOUR = Mend("GPU count", "--num_processes 4", "--multi_gpu --num_processes 2")
LAUNCH = Case(files=HERE, after=trained(1))
BANNER = """torchrun --nproc_per_node=2 train.py > said.txt
python - <<'END'
from tests.seeds.darkroom import text_of
shown, said = text_of(15).splitlines(), open("said.txt").read().splitlines()
def keys(lines):
    return [line.split(":")[0] for line in lines]
assert keys(said[: len(shown)]) == keys(shown), said
assert said[3:6] == ["Number of processes: 2", "Distributed type: DistributedType.MULTI_CPU", "Mixed precision: fp16"]
assert keys(said).count("Number of processes") == 1 and sum("step 2/2 | loss" in line for line in said) == 1, said
END
"""
"""The banner key by key; one process shows it, and the progress."""
SLURM = """bash -n multi_gpu_train.slurm
eval "$(grep '^accelerate' multi_gpu_train.slurm)"
"""
NO_CLUSTER = "module() { :; }\nmkdir -p .venv/bin\ntouch .venv/bin/activate\n"
IS_THE_FILE = "python -c 'from tests.seeds.darkroom import *; assert (EXAMPLE / \"{}\").read_text() == text_of({})'\n"
STEP = """
import sys
import torch
from tests.seeds.darkroom import EXAMPLE
sys.path.insert(0, str(EXAMPLE))
from model import HistoryModel, loss
model, tokens = HistoryModel(8, 1, 1, 20), torch.zeros(2, 20, 4, dtype=torch.uint8)
"""

CASES = {
    1: Case(
        is_long=True,
        files=HERE,
        before=AT_HOME,
        mends=(ASKS, TWO),
        after=trained(1, 2, 1),
    ),
    2: Case(
        is_long=True,
        files=HERE,
        mends=(Mend("GPU count", "--nproc_per_node=4", "--nproc_per_node=2"),),
        after=trained(2, 2, 2),
    ),
    3: LAUNCH,
    4: Case(instead="true\n", why="the questions of accelerate config: drumline needs no answer to them"),
    5: Case(after=reads("assert batch == ('fp16', 1, 512) and config.evaluate.batch == 2048, config")),
    6: Case(
        after=reads(
            "assert batch == ('bf16', 3, 7), batch  # of its two values the later one\n"
            "first = read_settings([], ['mixed_precision=fp16'])\n"
            "assert run_config(first, has_gpu=True).train.precision == 'fp16'"
        )
    ),
    7: Case(after=reads("assert batch == ('fp32', 4, 7), batch")),
    8: preset(8, 2, "('fp16', 1, 512)"),
    9: preset(9, 4, "('fp16', 1, 256)"),
    10: preset(10, 8, "('fp16', 2, 128)"),
    11: Case(after=reads("assert batch == ('fp32', 3, 256), batch")),
    12: Case(after=reads("assert batch == ('fp32', 2, 7), batch")),
    13: Case(after=reads("assert (settings.tf_n_embd, settings.tf_n_layer) == (32, 2), settings")),
    14: Case(after=reads("assert settings.n_transit == 160, settings")),
    15: Case(files=HERE, instead=BANNER, why="the banner, compared key by key with the example's"),
    16: Case(
        files=HERE,
        before="python train.py\n",
        mends=(Mend("endless made finite", "--logdir runs/", "--inspect --logdir runs/ | tee found.txt"),),
        after="grep -q train/loss found.txt\ngrep -q eval/loss found.txt\n[ $(ls runs/*/tensorboard | wc -l) = 1 ]\n",
    ),
    17: Case(
        mends=(Mend("import line", "torch.backends.cudnn.det", "import torch\ntorch.backends.cudnn.det"),),
        after="from pathlib import Path\nPath('block.yaml').write_text('deterministic: true')\n"
        + reads("assert config.train.deterministic  # how the example says it"),
    ),
    18: Case(
        is_long=True,
        before=AT_HOME,
        mends=(ASKS,),
        after="ls home/accelerate/default_config.yaml\n",
    ),
    19: replace(LAUNCH, is_long=True),
    20: replace(LAUNCH, is_long=True),
    21: Case(
        files=HERE,
        instead=SLURM,
        why="there is no SLURM; its script was checked, and its last line run",
        is_gpu_only=True,
        after=trained(1),
    ),
    22: Case(
        before=STEP,
        mends=(Mend("not valid Python", "# training step\n", "loss(model, tokens).backward()  # training step\n"),),
    ),
    23: Case(is_long=True, files=HERE, mends=(FOUR,), after=trained(2) + IS_THE_FILE.format("train_multi_gpu.sh", 23)),
    24: Case(files=HERE, before=NO_CLUSTER, after=trained(1) + IS_THE_FILE.format("multi_gpu_train.slurm", 24)),
    25: Case(is_long=True, files=HERE, mends=(FOUR,), after=trained(2)),
    26: Case(instead="drumline gpus\n", why="drumline gpus ran, which says that there is none", is_gpu_only=True),
    27: Case(is_long=True, files=HERE, before=AT_HOME, mends=(ASKS,), after=trained(1)),
}
