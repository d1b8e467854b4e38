#!/usr/bin/env bash
# GPT-2 124M through every contestant in turn, on every GPU there is: A B C A B C A B C, then medians and ratios.
# Usage: PEERS=folder/of/raw_ddp.py benchmarks/gpt2.sh OUT_FOLDER [ROUNDS [CONTESTANT…]]
# A contestant is a script of the peers (raw_ddp accelerate_loop fabric_loop hf_trainer) or of this folder
# (gpt2_trainer gpt2_recipe decoder_by_hand); all of them unless named. What has run already is not run again, so a
# call that was cut off is gone on with.
set -u
out=${1:?folder for logs and results}
rounds=${2:-3}
shift; [ $# -gt 0 ] && shift
contestants=${*:-raw_ddp gpt2_trainer decoder_by_hand gpt2_recipe accelerate_loop fabric_loop hf_trainer}
here=$(cd "$(dirname "$0")" && pwd)
gpus=$(nvidia-smi -L | wc -l)
start() { if [ "$gpus" -gt 1 ]; then torchrun --standalone --nproc-per-node "$gpus" "$@"; else python3 "$@"; fi; }
mkdir -p "$out"
export OMP_NUM_THREADS=4 PEERS PYTHONUNBUFFERED=1
for i in $(seq "$rounds"); do
    for name in $contestants; do
        log="$out/$name.$i.log"
        grep -qs '^RESULT' "$log" && continue
        script="$here/$name.py"
        [ -e "$script" ] || script="$PEERS/$name.py"
        (cd "$PEERS" && BENCH_RUN=$$-$i start "$script") >"$log" 2>&1
    done
done
grep -h '^RESULT' "$out"/*.log | sed 's/^RESULT //' >"$out/results.jsonl"
grep -L '^RESULT' "$out"/*.log | while read -r f; do echo "NO RESULT: $f"; tail -25 "$f"; done
python3 "$here/medians.py" "$out/results.jsonl"
