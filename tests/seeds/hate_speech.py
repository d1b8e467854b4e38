"""Blocks of document 004: a data set labelled by a large model on all GPUs."""

from __future__ import annotations

from tests.seeds.blocks import blocks_of
from tests.seeds.cases import Case, Mend

MODEL = "mkdir -p openai data/processed/unified\nln -sfn $SEED_MODELS/llama openai/gpt-oss-20b\n"
"""A tiny model with random weights stands where the large one is looked for."""
ROWS = """python - <<'END'
import json
rows = [{"text": f"text number {i}", "label": "normal"} for i in range(10)]
json.dump(rows, open("data/processed/unified/unified_val.json", "w"))
END
"""
GIVEN = MODEL + ROWS
PORT = "PORT=$(python -c 'from drumline.adapters.email_sequences import get_free_port; print(get_free_port())')\n"
RUNNER = (
    "finetuning/pipeline/baseline/runner.py",
    "from drumline.adapters.hate_speech import LocalModelConnector, main, run_baseline\n"
    "if __name__ == '__main__':\n    main()\n",
)
"""What is left of the reader's own runner.py."""
DISTRIBUTED = ("finetuning/pipeline/baseline/runner_distributed.py", blocks_of("hate_speech")[6].text)
"""Block 7 under the name that the document gives it."""
ALL_ROWS = """python - {pattern} {rows} <<'END'
import csv, glob, sys
found = [list(csv.DictReader(open(file))) for file in sorted(glob.glob(sys.argv[1]))]
print(found)
assert sorted(map(len, found)) == sorted(map(int, sys.argv[2].split(","))), [len(rows) for rows in found]
assert all(row["prediction"] in ("hate", "normal") and not row["error"] for rows in found for row in rows)
END
"""
SHARDS = """
import json
from pathlib import Path
rows = [{"text": f"text number {i}", "label": "normal"} for i in range(10)]
Path("data.json").write_text(json.dumps(rows))
for i in range(4):
    folder = Path(f"finetuning/outputs/multi_gpu/gpu{i}/run_20260101_000000")
    folder.mkdir(parents=True)
    lines = [f"text number {n},normal,normal," for n in (2 * i, 2 * i + 1)]
    (folder / "strategy_combined_optimized.csv").write_text("\\n".join(["text,label,prediction,error", *lines, ""]))
"""
MERGE = """
import subprocess
assert len(merged_df) == 8  # of ten rows: cutting into four equal parts has lost two, and nothing says so
shards = [str(file) for file in sorted(output_base.glob("gpu*/run_*/strategy_*.csv"))]
command = ["drumline", "merge", *shards, "--out", "merged.csv", "--data", "data.json", "--id", "text"]
ours = subprocess.run(command, capture_output=True, text=True)
assert ours.returncode == 2 and "2 " in ours.stderr and not Path("merged.csv").exists(), ours
"""
TRANSFORMERS = """
import os
from pathlib import Path
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
model_name, dtype, use_auth_token, cache_dir = os.environ["SEED_MODELS"] + "/llama", torch.float32, None, Path("cache")
"""
SAME_LOGITS = """
from drumline.adapters.hate_speech import LocalModelConnector
ids = torch.tensor([[5, 6, 7]])
ours = LocalModelConnector(model_name, device_map="balanced").load_model_once()
assert torch.equal(ours(ids).logits, model(ids).logits)
"""

CASES = {
    1: Case(instead="drumline gpus\n", why="drumline gpus ran, which says that there is none", is_gpu_only=True),
    2: Case(before=TRANSFORMERS, after=SAME_LOGITS),
    3: Case(
        instead=TRANSFORMERS
        + """
import json, subprocess
parts = ["model.embed_tokens", "model.layers.0", "model.layers.1", "model.norm", "model.rotary_emb", "lm_head"]
by_hand = json.dumps({part: 0 for part in parts})
Path("rows.jsonl").write_text('{"text": "a"}\\n{"text": "b"}\\n')
command = ["drumline", "infer", "--model", model_name, "--data", "rows.jsonl", "--out", "answers.jsonl"]
command += ["--task", "choose", "--labels", "yes,no", "--prompt", "{text}", "--set", f"split.device_map={by_hand}"]
subprocess.run(command, check=True)
assert len(Path("answers.jsonl").read_text().splitlines()) == 2
""",
        why="it names four GPUs; drumline infer ran with a map of one device, in split.device_map",
        is_gpu_only=True,
    ),
    4: Case(
        files=(RUNNER,),
        before=GIVEN,
        after=ALL_ROWS.format(pattern="'finetuning/outputs/*/run_*/strategy_combined_optimized.csv'", rows="10"),
    ),
    5: Case(instead="python -c 'import drumline'\n", why="nothing is installed beside drumline"),
    6: Case(instead="drumline gpus\n", why="nothing is asked: drumline finds the GPUs"),
    7: Case(
        files=(("runner.py", RUNNER[1]),),
        before="import subprocess\n" + f"subprocess.run(['bash', '-euc', {GIVEN!r}], check=True)\n",
        mends=(Mend("stand-in", '"--max_samples", type=int, default=None', '"--max_samples", type=int, default=3'),),
    ),
    8: Case(
        files=(RUNNER, DISTRIBUTED),
        before=GIVEN,
        mends=(Mend("GPU count", "--num_processes 4", "--multi_gpu --num_processes 2"),),
        after=ALL_ROWS.format(pattern="'finetuning/outputs/*/run_*/strategy_combined_optimized.csv'", rows="10"),
    ),
    9: Case(
        before=GIVEN,
        mends=(Mend("address or path", "cd /home/azureuser/workspace/HateSpeechDetection_ver2", "cd ."),),
        after="""python - <<'END'
import glob, json
parts = [len(json.load(open(file))) for file in sorted(glob.glob("data/processed/unified_splits/*.json"))]
assert parts == [2, 2, 2, 2], parts  # of ten: two are lost, which drumline merge would not let pass
END
""",
    ),
    10: Case(
        is_long=True,
        files=(RUNNER,),
        before=GIVEN
        + """mkdir -p data/processed/unified_splits
for i in 0 1 2 3; do
    cp data/processed/unified/unified_val.json data/processed/unified_splits/unified_val_gpu$i.json
done
""",
        after=ALL_ROWS.format(pattern="'finetuning/outputs/multi_gpu/gpu*/run_*/strategy_*.csv'", rows="10,10,10,10"),
    ),
    11: Case(before=SHARDS, after=MERGE),
    12: Case(
        files=(RUNNER,),
        before=GIVEN,
        mends=(Mend("endless made finite", "watch -n 1 nvidia-smi", "drumline gpus"),),
        after=ALL_ROWS.format(pattern="'finetuning/outputs/*/run_*/strategy_combined_optimized.csv'", rows="10"),
    ),
    13: Case(
        is_long=True,
        files=(RUNNER,),
        before=GIVEN,
        after=ALL_ROWS.format(pattern="'finetuning/outputs/test_gpu*/run_*/strategy_*.csv'", rows="10,10"),
    ),
    14: Case(
        instead="drumline gpus\ndrumline monitor --once\n",
        why="drumline gpus and drumline monitor ran",
        is_gpu_only=True,
    ),
    15: Case(
        instead="drumline doctor | grep 'shared memory'\n",
        why="a container is started with it; drumline doctor says what there is, and loaders do with less",
    ),
    16: Case(
        files=(RUNNER,),
        before=GIVEN + PORT + "RUNNER=finetuning/pipeline/baseline/runner.py\n",
        mends=(
            Mend("GPU count", "--nproc_per_node=4", "--nproc_per_node=1", 2),
            Mend("GPU count", "--nnodes=4", "--nnodes=2", 2),
            Mend("address or path", "10.0.0.4", "127.0.0.1", 2),
            Mend("address or path", "29500", "$PORT", 2),
            Mend("address or path", "finetuning/pipeline/baseline/runner.py\n\n# Node 1", "$RUNNER &\n\n# Node 1"),
            Mend("address or path", "finetuning/pipeline/baseline/runner.py\n\n# Repeat", "$RUNNER &\n\n# Repeat"),
        ),
        after="wait %1\nwait %2\n"
        + ALL_ROWS.format(pattern="'finetuning/outputs/*/run_*/strategy_combined_optimized.csv'", rows="10"),
        why="both machines are this one",
    ),
}
