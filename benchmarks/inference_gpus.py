"""`drumline infer` on one GPU and on all of them: the rate of two should be 1.9 times one's.

    python benchmarks/inference_gpus.py [--rows 2000] [--layers N] [--out FILE]
    python benchmarks/inference_gpus.py --shape tiny --rows 40          # does the script itself work? On a CPU too.

A model of Llama 8B's shape with random weights writes 64 tokens for each text; the texts are parts of Moby Dick, some
64 to 1,024 tokens long, in an order by chance. `computing`: seconds in the model of the worker that computed longest;
`all of it`: the whole command, which makes the weights and finds its engine and its batches before.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from inference_shapes import SHAPES, save_folder

from drumline.config.recipes import recipes_folder

NEW_TOKENS = 64
WORDS = (45, 720)
"""Shortest and longest text; a word is some 1.4 tokens."""
BAR = 1.9


def write_rows(file: Path, count: int) -> None:
    """Texts with lengths between WORDS, log-uniform."""
    chapters = sorted((recipes_folder() / "moby_dick").glob("chapter_*.txt"))
    words = " ".join(chapter.read_text(encoding="utf-8") for chapter in chapters).split()
    chance, (shortest, longest) = random.Random(0), WORDS
    with file.open("w", encoding="utf-8") as stream:
        for _ in range(count):
            length = round(shortest * (longest / shortest) ** chance.random())
            begin = chance.randrange(len(words) - length)
            stream.write(json.dumps({"text": " ".join(words[begin : begin + length])}) + "\n")


def infer(folder: Path, name: str, workers: int, *, gpus: bool) -> tuple[float, float]:
    """Seconds in the model, and of the whole command; its answers must all be there."""
    out = folder / f"{name}.jsonl"
    command = [sys.executable, "-m", "drumline", "infer", "--model", str(folder / "model"), "--task", "generate"]
    command += ["--data", str(folder / "rows.jsonl"), "--out", str(out)]
    settings = ["model.random_weights=true", f"task.max_new_tokens={NEW_TOKENS}", "task.prompt.prompt='{text}'"]
    for setting in (*settings, f"run_dir={folder / name}"):
        command += ["--set", setting]
    command += [] if gpus else ["--set", f"hardware.num_processes={workers}"]
    shown = {"CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in range(workers))} if gpus else {}
    begin = time.perf_counter()
    subprocess.run(command, check=True, env={**os.environ, **shown})
    whole_s = time.perf_counter() - begin
    answers = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert all(answer["error"] is None for answer in answers), answers[0]
    assert len(answers) == len((folder / "rows.jsonl").read_text(encoding="utf-8").splitlines())
    lines = [file.read_text(encoding="utf-8").splitlines()[-1] for file in folder.glob(f"{name}/**/workers/*.jsonl")]
    assert len(lines) >= workers, f"{len(lines)} workers, where {workers} were asked for"
    return max(json.loads(line)["busy_s"] for line in lines), whole_s


def main(chosen: argparse.Namespace) -> None:
    """Run both, and print the ratio."""
    count = torch.cuda.device_count()
    card = torch.cuda.get_device_name() if count else "cpu"
    rates = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        save_folder(folder / "model", SHAPES[chosen.shape](chosen.layers))
        write_rows(folder / "rows.jsonl", chosen.rows)
        for workers in (1, max(2, count)):
            computing_s, whole_s = infer(folder, f"on-{workers}", workers, gpus=count > 0)
            rates.append(chosen.rows / computing_s)
            line = {"shape": chosen.shape, "rows": chosen.rows, "workers": workers, "computing_s": computing_s}
            line |= {"whole_s": round(whole_s, 1), "device": card, "torch": torch.__version__}
            print("RESULT " + json.dumps(line), flush=True)
            if chosen.out is not None:
                with chosen.out.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(line) + "\n")
    print(f"{rates[0]:.2f} and {rates[1]:.2f} rows/s computing on {card}: {rates[1] / rates[0]:.3f} times (bar {BAR})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="llama_8b")
    parser.add_argument("--layers", type=int, help="fewer than the shape has")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--out", type=Path, help="file to which JSON lines are added")
    main(parser.parse_args())
