#!/usr/bin/env bash
# The hand-written loop and drumline's Trainer in turn, on every GPU there is: A B A B A B, then the ratio of medians.
# Usage: PEERS=folder/of/raw_ddp.py benchmarks/gpt2.sh OUT_FOLDER [PAIRS]
set -u
out=${1:?folder for logs and results}
pairs=${2:-3}
here=$(cd "$(dirname "$0")" && pwd)
gpus=$(nvidia-smi -L | wc -l)
start() { if [ "$gpus" -gt 1 ]; then torchrun --standalone --nproc-per-node "$gpus" "$@"; else python3 "$@"; fi; }
mkdir -p "$out"
export OMP_NUM_THREADS=4 PEERS PYTHONUNBUFFERED=1
for i in $(seq "$pairs"); do
    (cd "$PEERS" && start raw_ddp.py) >"$out/raw.$i.log" 2>&1
    BENCH_RUN=$$-$i start "$here/gpt2_trainer.py" >"$out/drumline.$i.log" 2>&1
done
grep -h '^RESULT' "$out"/*.log | sed 's/^RESULT //' >"$out/results.jsonl"
grep -L '^RESULT' "$out"/*.log | while read -r f; do echo "NO RESULT: $f"; tail -25 "$f"; done
python3 - "$out/results.jsonl" <<'EOF'
import json, statistics, sys

rows = [json.loads(line) for line in open(sys.argv[1])]
by_name = {}
for row in rows:
    by_name.setdefault(row["peer"], []).append(row["tokens_per_s"])
medians = {name: statistics.median(values) for name, values in by_name.items()}
for name, values in by_name.items():
    print(f"{name:20} median {medians[name]:>10,.0f} tokens/s  runs {values}")
if len(medians) == 2:
    print(f"drumline / hand-written: {medians['drumline Trainer'] / medians['raw torch DDP']:.4f} on {rows[0]['gpus']} x {rows[0]['device']}")
EOF
