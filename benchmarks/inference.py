"""Prediction beside what one would otherwise write, on one GPU, in one call.

    python benchmarks/inference.py generate                         # Llama 8B's shape, prompts of 64 to 1,024 tokens
    python benchmarks/inference.py generate --layers 8 --prompts 64 --modes drumline batch:32
    python benchmarks/inference.py embed                            # MiniLM's shape, beside a padded loop
    python benchmarks/inference.py classify
    python benchmarks/inference.py roads --shape gpt_oss_20b        # by the four roads of examples/hate_speech
    python benchmarks/inference.py generate --shape tiny            # any of them in seconds, on a CPU too

All weights are random. `generate`: 64 new tokens a prompt, greedily; drumline is the whole way of a run (ledger, plans,
budget by trial, engine by measurement), the others are loops around transformers' `generate` in the order of the file,
and its continuous batching. Times begin after each mode's first pass; drumline's also stand with everything before it.
`embed` and `classify`: the rows are the paragraphs of Moby Dick, tokenising included, both sides in one type.
A table is printed, and JSON lines go to --out.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from inference_shapes import SHAPES, save_folder

from drumline.config.inference import GenerateTask, InferenceConfig
from drumline.data.tokenizers import load_tokenizer
from drumline.infer.records import Answer, Facts, Prepared, Row
from drumline.predictions import PredictionDir
from drumline.rundir import RunDir

NEW_TOKENS = 64
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
GENERATE_MODES = ["drumline", "drumline:padded", "drumline:static", "batch:32", "batch:128", "continuous"]


class Timed:
    """A predictor that knows when its first and its last batch was run after it had settled."""

    def __init__(self, predictor: Any) -> None:
        self._predictor = predictor
        self.first = self.last = 0.0
        self.batches: list[tuple[int, int]] = []
        """Rows and width of each."""
        self.facts: Facts = {}

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self._predictor.columns)

    def prepare(self, rows: Sequence[Row]) -> list[Prepared | str]:
        return self._predictor.prepare(rows)  # type: ignore[no-any-return]

    def survey(self, prepared: Sequence[Prepared]) -> Facts:
        return self._predictor.survey(prepared)  # type: ignore[no-any-return]

    def settle(self, facts: Facts) -> None:
        self._predictor.settle(facts)
        self.facts = {key: value for key, value in facts.items() if key != "prefix"}
        self.batches.clear()

    def run(self, rows: Sequence[Prepared | None], width: int) -> list[Answer]:
        begin = time.perf_counter()
        answers = self._predictor.run(rows, width)
        self.last = time.perf_counter()
        self.first = self.first if self.batches else begin
        self.batches.append((len(rows), width))
        return answers  # type: ignore[no-any-return]


class GivenIds:
    """Prompts that are ids already."""

    def ids(self, row: Row) -> Any:
        return np.asarray(row.values["ids"], dtype=np.int64)


def prompts_of(count: int, vocabulary: int, longest: int) -> list[list[int]]:
    """Log-uniform lengths up to `longest`, of which the shortest is a sixteenth."""
    generator = torch.Generator().manual_seed(1)
    lengths = (longest / 16 * 16 ** torch.rand(count, generator=generator)).long().tolist()
    return [torch.randint(2, vocabulary - 256, (n,), generator=generator).tolist() for n in lengths]


def run_ours(predictor: Any, rows: Sequence[Mapping[str, Any]], sections: Mapping[str, Any]) -> dict[str, Any]:
    """All rows through a run directory, as a worker has it."""
    from drumline.infer.work import WorkSettings, work

    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "rows.jsonl"), Path(folder, "answers.jsonl")
        source.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        config = InferenceConfig.model_validate(
            {"rows": {"files": [str(source)]}, "output": {"file": str(out)}, **sections}
        )
        RunDir.create(config.directory)
        timed = Timed(predictor)
        begin = time.perf_counter()
        work(PredictionDir(config.directory), timed, WorkSettings(config, DEVICE))
        whole_s = time.perf_counter() - begin
        answers = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    failed = [answer["error"] for answer in answers if answer.get("error")]
    assert len(answers) == len(rows) and not failed, failed[:3]
    figures = {"seconds": timed.last - timed.first, "whole_s": round(whole_s, 2), **timed.facts}
    return figures | {"batches": len(timed.batches), "most_rows": max(rows for rows, _ in timed.batches)}


def generate(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One line a mode."""
    from transformers import AutoModelForCausalLM

    from drumline.infer.generate import GeneratePredictor

    shape = SHAPES[chosen.shape or "llama_8b"](chosen.layers)
    tiny = shape.hidden_size < 1000
    dtype = torch.bfloat16 if CUDA else torch.float32
    with DEVICE:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(shape, dtype=dtype).eval().requires_grad_(False)
    prompts = prompts_of(chosen.prompts or (16 if tiny else 256), shape.vocab_size, 128 if tiny else 1024)
    new = 8 if tiny else NEW_TOKENS
    for mode in chosen.modes or (GENERATE_MODES if CUDA else ["drumline", "drumline:static", "batch:4", "continuous"]):
        kind, _, detail = mode.partition(":")
        with measured() as figures:
            if kind == "drumline":
                task = {"max_new_tokens": new, "engine": detail or "auto"}
                predictor = GeneratePredictor(model, load_tokenizer("byte"), GenerateTask(**task), GivenIds(), ())
                rows = [{"ids": ids} for ids in prompts]
                figures |= run_ours(predictor, rows, {"model": {"path": "-"}, "task": {"kind": "generate", **task}})
                del predictor
            else:
                loop: Callable[[Sequence[list[int]]], None] = peer_loop(model, mode, new)
                loop(prompts[:1])
                synchronize()
                begin = time.perf_counter()
                loop(prompts)
                synchronize()
                figures["seconds"] = time.perf_counter() - begin
        figures |= {"task": f"generate {chosen.shape or 'llama_8b'}/{shape.num_hidden_layers}", "mode": mode}
        yield figures | {"rows": len(prompts), "new_tokens_per_s": round(len(prompts) * new / figures["seconds"], 1)}


def peer_loop(model: Any, mode: str, new: int) -> Callable[[Sequence[list[int]]], None]:
    """What one would write around transformers: batches in order, padded at the left, or its continuous batching."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    settings = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}
    generation = GenerationConfig(**settings, eos_token_id=None)

    def batches(prompts: Sequence[list[int]]) -> None:
        size = int(mode.partition(":")[2])
        for begin in range(0, len(prompts), size):
            rows = prompts[begin : begin + size]
            width = max(map(len, rows))
            ids = torch.zeros(len(rows), width, dtype=torch.long)
            mask = torch.zeros_like(ids)
            for place, row in enumerate(rows):
                ids[place, width - len(row) :], mask[place, width - len(row) :] = torch.tensor(row), 1
            model.generate(ids.to(DEVICE), attention_mask=mask.to(DEVICE), generation_config=generation)

    def continuous(prompts: Sequence[list[int]]) -> None:
        # On a CPU it would take nearly all of the machine's memory.
        few = {} if CUDA else {"num_blocks": 64, "max_batch_tokens": 512}
        attention = model.config._attn_implementation
        made = model.generate_batch(
            inputs=list(prompts),
            generation_config=generation,
            continuous_batching_config=ContinuousBatchingConfig(**few),
            progress_bar=False,
        )
        if model.config._attn_implementation != attention:  # it stays with its own, which the other modes have not
            model.set_attn_implementation(attention)
        assert len(made) == len(prompts) and all(len(one.generated_tokens) == new for one in made.values())

    return continuous if mode == "continuous" else batches


def texts_of(count: int) -> list[str]:
    """Paragraphs of Moby Dick, again and again."""
    from drumline.config.recipes import recipes_folder

    found: list[str] = []
    for file in sorted((recipes_folder() / "moby_dick").glob("chapter_*.txt")):
        found += [" ".join(part.split()) for part in file.read_text(encoding="utf-8").split("\n\n") if part.strip()]
    return [f"{number} {found[number % len(found)]}" for number in range(count)]


def read_whole(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """`embed` or `classify`, beside a loop over padded batches of 32."""
    from drumline.infer.loading import make_predictor

    kind = chosen.task
    name = chosen.shape or "minilm"
    texts = texts_of(chosen.prompts or (64 if name == "tiny_encoder" else 20_000))
    with tempfile.TemporaryDirectory() as folder:
        save_folder(Path(folder), SHAPES[name](chosen.layers))
        sections = {
            "model": {"path": folder, "random_weights": True},
            "task": {"kind": kind, "context": 256, "too_long": "cut"},
        }
        for mode in chosen.modes or ["drumline", "batch:32"]:
            with measured() as figures:
                if mode == "drumline":
                    config = InferenceConfig.model_validate(
                        {**sections, "rows": {"files": ["-"]}, "output": {"file": "out.jsonl"}}
                    )
                    predictor = make_predictor(config, DEVICE)
                    figures |= run_ours(predictor, [{"text": text} for text in texts], sections)
                else:
                    figures["seconds"] = padded_loop(Path(folder), kind, texts, int(mode.partition(":")[2]))
            yield figures | {"task": f"{kind} {name}", "mode": mode, "rows": len(texts)}


def padded_loop(folder: Path, kind: str, texts: Sequence[str], size: int) -> float:
    """Seconds for all texts, of which each batch is tokenised, padded, answered and brought to Python in turn."""
    import transformers

    auto = transformers.AutoModel if kind == "embed" else transformers.AutoModelForSequenceClassification
    dtype = torch.bfloat16 if CUDA else torch.float32
    shape = transformers.AutoConfig.from_pretrained(folder)
    with DEVICE:
        model: Any = auto.from_config(shape, dtype=dtype).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)

    def answer(rows: Sequence[str]) -> list[Any]:
        options = {"padding": True, "truncation": True, "max_length": 256, "return_tensors": "pt"}
        batch = tokenizer(list(rows), **options).to(DEVICE)
        output = model(**batch)
        if kind == "classify":
            return output.logits.float().softmax(-1).cpu().tolist()  # type: ignore[no-any-return]
        weights = batch["attention_mask"][..., None].float()
        mean = (output.last_hidden_state.float() * weights).sum(1) / weights.sum(1)
        return torch.nn.functional.normalize(mean, dim=-1).cpu().tolist()  # type: ignore[no-any-return]

    with torch.inference_mode():
        answer(texts[:size])
        synchronize()
        begin = time.perf_counter()
        answers: list[Any] = []
        for start in range(0, len(texts), size):
            answers += answer(texts[start : start + size])
    assert len(answers) == len(texts)
    return time.perf_counter() - begin


def roads(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The example's table, on a model of this shape with random weights."""
    name = chosen.shape or "gpt_oss_20b"
    script = Path(__file__).resolve().parents[1] / "examples/hate_speech/four_roads.py"
    with tempfile.TemporaryDirectory() as folder:
        save_folder(Path(folder, "model"), SHAPES[name](chosen.layers))
        command = [sys.executable, str(script), "--model", str(Path(folder, "model")), "--folder", folder]
        command += ["--rows", str(chosen.prompts or 400), "--set", "model.random_weights=true"]
        command += ["--json", str(Path(folder, "figures.jsonl")), "--roads", *map(str, chosen.roads)]
        command += [] if chosen.write is None else ["--write", str(chosen.write)]
        subprocess.run(command, check=True)
        lines = Path(folder, "figures.jsonl").read_text(encoding="utf-8").splitlines()
    for line in lines:
        figures = json.loads(line)
        yield {"task": f"roads {name}", "mode": f"road {figures['road']}", **figures}


def synchronize() -> None:
    """Wait for the GPU."""
    if CUDA:
        torch.cuda.synchronize()


@contextmanager
def measured() -> Iterator[dict[str, Any]]:
    """Figures of one mode, with its most memory; what it leaves is freed."""
    figures: dict[str, Any] = {}
    if CUDA:
        torch.cuda.reset_peak_memory_stats()
    yield figures
    if CUDA:
        figures["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    gc.collect()
    if CUDA:
        torch.cuda.empty_cache()


def main(chosen: argparse.Namespace) -> None:
    """Print a line a mode as it comes, with how it stands to the best that is not ours."""
    import transformers

    logging.basicConfig(format="%(message)s")
    logging.getLogger("drumline").setLevel(logging.INFO)  # which engine was taken, and why
    work = {"generate": generate, "embed": read_whole, "classify": read_whole, "roads": roads}[chosen.task]
    card = torch.cuda.get_device_name() if CUDA else "cpu"
    versions = {"device": card, "torch": torch.__version__, "transformers": transformers.__version__}
    rates: dict[str, float] = {}
    for figures in work(chosen):
        rate = figures["rows"] / figures["seconds"]
        rates[figures["mode"]] = rate
        line = {**figures, "seconds": round(figures["seconds"], 3), "rows_per_s": round(rate, 3), **versions}
        print(
            f"{line['task']:<28}{line['mode']:<18}{rate:10.2f} rows/s  {line.get('peak_gib', 0):6.1f} GiB", flush=True
        )
        print("RESULT " + json.dumps(line), flush=True)
        if chosen.out is not None:
            with chosen.out.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(line) + "\n")
    ours = [rate for mode, rate in rates.items() if mode.startswith("drumline")]
    others = [rate for mode, rate in rates.items() if not mode.startswith(("drumline", "road"))]
    if ours and others:
        print(f"best of drumline / best of the others on {card}: {max(ours) / max(others):.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["generate", "embed", "classify", "roads"])
    parser.add_argument("--shape", choices=list(SHAPES), help="of the model")
    parser.add_argument("--layers", type=int, help="fewer than the shape has")
    parser.add_argument("--prompts", "--rows", type=int, help="how many rows")
    parser.add_argument("--modes", nargs="+", help="drumline[:ENGINE], batch:N, continuous")
    parser.add_argument("--roads", type=int, nargs="+", default=[1, 2, 3, 4])
    parser.add_argument("--write", type=int, metavar="TOKENS", help="roads: write so many tokens instead of choosing")
    parser.add_argument("--out", type=Path, help="file to which JSON lines are added")
    main(parser.parse_args())
