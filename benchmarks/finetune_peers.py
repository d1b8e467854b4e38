"""Fine-tuning on real texts of many lengths: tokens of text a second, and the most memory, beside peers.

    python benchmarks/finetune_peers.py prepare WORK --tokenizer FOLDER [--shape 135m]
    python benchmarks/finetune_peers.py run WORK --peers drumline+compiled hf_trainer sft --rounds 2 --out results.jsonl
    python benchmarks/finetune_peers.py run WORK --gpus 2 --peers ...

The texts are the paragraphs of Moby Dick, 8 to 1,024 tokens, each four times an epoch; the model has random weights
in the shape of SmolLM2-135M (or of a Llama with a billion parameters), in bf16 autocast over float32 weights, with
fused AdamW. Each contestant is a process of its own that makes the same epochs over the same texts; the first
`--warm` are not timed. With --gpus N it is a process a GPU, by torchrun, each with the batch that one has alone.
hf_trainer: the Trainer of transformers, batches of similar length; sft: TRL's SFTTrainer, packed by cutting one stream
of texts into rows, since its better packings make one row of a whole batch, which without the flash-attn package took
1.7 s an update on an H200; with +compiled each is compiled (drumline by blocks, and with +whole in one piece;
hf_trainer for batches of any shape, since at torch's defaults it did not get through in seven minutes, and with
+regional by blocks). Drumline takes a kind of attention too, as drumline+compiled+sdpa.
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
from typing import Any

import torch
from rows import end

CONTEXT = 1024
TOKENS_AN_UPDATE = 32 * CONTEXT
"""About as many real tokens an update for all."""
HF_PASSES = 4
"""Of hf_trainer an update: as one batch its longest rows, some 290, fit no card."""
REPEATS = 4
"""Of each text, so that an epoch takes seconds."""
SHAPES: dict[str, dict[str, Any]] = {
    "135m": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
    | {"num_key_value_heads": 3, "tie_word_embeddings": True, "vocab_size": 49152},
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32}
    | {"num_key_value_heads": 8, "tie_word_embeddings": True, "vocab_size": 49152},
}


def prepare(work: Path, tokenizer_folder: Path, shape: str) -> None:
    """Write texts.jsonl, the model's folder and facts.json."""
    from transformers import AutoTokenizer, LlamaConfig

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder, local_files_only=True)
    recipes = Path(__file__).resolve().parents[1] / "recipes/moby_dick"
    texts = []
    for file in sorted(recipes.glob("chapter_*.txt")):
        texts += [" ".join(part.split()) for part in file.read_text(encoding="utf-8").split("\n\n") if part.strip()]
    lengths = [len(ids) + 1 for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]  # and the end token
    kept = [(text, length) for text, length in zip(texts, lengths, strict=True) if 8 <= length <= CONTEXT]
    kept *= REPEATS
    random.Random(0).shuffle(kept)
    work.mkdir(parents=True, exist_ok=True)
    with (work / "texts.jsonl").open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps({"text": text}) + "\n" for text, _ in kept)
    model = work / "model"
    tokenizer.save_pretrained(model)
    config = LlamaConfig(
        **SHAPES[shape],
        max_position_embeddings=8192,
        architectures=["LlamaForCausalLM"],
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
    )
    config.save_pretrained(model)
    tokens = sum(length for _, length in kept)
    (work / "facts.json").write_text(json.dumps({"rows": len(kept), "tokens": tokens, "shape": shape}))


class Epochs:
    """Seconds of the epochs after the warm ones, by calls at each epoch's end."""

    def __init__(self, warm: int) -> None:
        self._warm = warm
        self._ends: list[float] = []
        self.choices: list[str] = []
        """What drumline found out at its start."""

    def end(self) -> None:
        """An epoch is through."""
        torch.cuda.synchronize()
        self._ends.append(time.perf_counter())
        if len(self._ends) == self._warm:
            torch.cuda.reset_peak_memory_stats()

    def seconds(self) -> float:
        """Of one epoch, the median."""
        spans = [later - earlier for earlier, later in zip(self._ends, self._ends[1:], strict=False)]
        spans = sorted(spans[self._warm - 1 :])
        return spans[len(spans) // 2]


def world_size() -> int:
    """Processes of this contestant."""
    return int(os.environ.get("WORLD_SIZE", 1))


def drumline(work: Path, epochs: int, warm: int, how: str) -> Epochs:
    """The road of `drumline finetune`."""
    from drumline import RunConfig
    from drumline.build.parts import build_trainer
    from drumline.rundir import RunDir

    words = how.split("+")
    attention = next((word for word in words if word in ("sdpa", "varlen")), "auto")
    compiled = "whole" if "whole" in words else "blocks" if "compiled" in words else "none"
    config = RunConfig.model_validate(
        {
            "model": {"kind": "huggingface", "path": str(work / "model"), "random_weights": True}
            | {"attention": attention},
            "data": {"kind": "records", "train": [str(work / "texts.jsonl")], "context": CONTEXT, "check": False}
            | {"cache_dir": str(work / "cache")},
            "train": {"global_batch": world_size() * TOKENS_AN_UPDATE // CONTEXT, "epochs": epochs, "lr": 1e-4}
            | {"micro_batch": TOKENS_AN_UPDATE // CONTEXT, "compile": compiled},
            "checkpoint": {"at_end": False},
            "track": {"every": 50, "console": False},
        }
    )
    clock, before = Epochs(warm), 0
    run = RunDir.create(Path(tempfile.mkdtemp()) / "run")
    with build_trainer(config, run) as trainer:
        for info in trainer.steps():
            if info.epoch != before:
                clock.end()
                before = info.epoch
    events = [json.loads(line) for line in run.events.read_text(encoding="utf-8").splitlines()]
    clock.choices = [each["message"] for each in events if each["event"] == "choices"]
    return clock


def rows_an_update(work: Path) -> int:
    """Rows of unpacked text with about as many tokens."""
    facts = json.loads((work / "facts.json").read_text())
    return round(TOKENS_AN_UPDATE / (facts["tokens"] / facts["rows"]))


def peer_parts(work: Path, warm: int) -> tuple[Any, Any, Any, Epochs]:
    """Model, tokenizer and a callback that tells the clock, for the peers."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, TrainerCallback

    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(work / "model", local_files_only=True)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(work / "model"), dtype=torch.float32)
    model.config.use_cache = False
    clock = Epochs(warm)

    class Clock(TrainerCallback):
        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            clock.end()

    return model, tokenizer, Clock(), clock


def peer_arguments(epochs: int, rows: int, passes: int, compiled: bool) -> dict[str, Any]:
    """What both peers are told."""
    return {
        "output_dir": tempfile.mkdtemp(),
        "per_device_train_batch_size": rows // passes,
        "gradient_accumulation_steps": passes,
        "num_train_epochs": epochs,
        "bf16": True,
        "optim": "adamw_torch_fused",
        "learning_rate": 1e-4,
        "torch_compile": compiled,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 50,
        "disable_tqdm": True,
        "dataloader_num_workers": 4,
        "dataloader_persistent_workers": True,
    }


def hf_trainer(work: Path, epochs: int, warm: int, how: str) -> Epochs:
    """The Trainer of transformers, batches of similar length."""
    import inspect

    from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments

    os.environ["ACCELERATE_DYNAMO_USE_DYNAMIC"] = "true"
    os.environ["ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION"] = str("regional" in how)
    model, tokenizer, callback, clock = peer_parts(work, warm)
    texts = [json.loads(line)["text"] for line in (work / "texts.jsonl").read_text(encoding="utf-8").splitlines()]
    ends = [[*ids, tokenizer.eos_token_id] for ids in tokenizer(texts, add_special_tokens=False)["input_ids"]]
    rows = [{"input_ids": ids, "attention_mask": [1] * len(ids)} for ids in ends]
    by_length: dict[str, Any] = {"group_by_length": True}
    if "group_by_length" not in inspect.signature(TrainingArguments).parameters:
        by_length = {"train_sampling_strategy": "group_by_length"}
    arguments = TrainingArguments(**peer_arguments(epochs, rows_an_update(work), HF_PASSES, bool(how)), **by_length)
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False, pad_to_multiple_of=64)
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collator, callbacks=[callback])
    trainer.train()
    return clock


def sft(work: Path, epochs: int, warm: int, how: str) -> Epochs:
    """TRL's SFTTrainer, packed."""
    from datasets import load_dataset
    from trl import SFTConfig, SFTTrainer

    model, tokenizer, callback, clock = peer_parts(work, warm)
    rows = load_dataset("json", data_files=str(work / "texts.jsonl"), split="train", cache_dir=str(work / "datasets"))
    settings = peer_arguments(epochs, TOKENS_AN_UPDATE // CONTEXT, 1, bool(how))
    packed: dict[str, Any] = {"packing": True, "packing_strategy": "wrapped", "max_length": CONTEXT}
    arguments = SFTConfig(**settings, **packed, gradient_checkpointing=False)
    trainer = SFTTrainer(
        model=model, args=arguments, train_dataset=rows, processing_class=tokenizer, callbacks=[callback]
    )
    trainer.train()
    return clock


CONTESTANTS = {"drumline": drumline, "hf_trainer": hf_trainer, "sft": sft}


def contest(work: Path, name: str, epochs: int, warm: int) -> None:
    """One contestant in this process; prints its RESULT."""
    peer, _, how = name.partition("+")
    torch.set_float32_matmul_precision("high")
    clock = CONTESTANTS[peer](work, epochs, warm, how)
    facts = json.loads((work / "facts.json").read_text())
    result = {
        "peer": name,
        "shape": facts["shape"],
        "gpus": world_size(),
        "tokens_per_s": round(facts["tokens"] / clock.seconds()),
        "peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 2),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "choices": clock.choices,
    }
    if not int(os.environ.get("RANK", 0)):
        print("RESULT " + json.dumps(result), flush=True)


def main() -> None:
    """Prepare, run all, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["prepare", "run", "one"])
    parser.add_argument("work", type=Path)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--shape", choices=list(SHAPES), default="135m")
    parser.add_argument("--peers", nargs="+", default=["drumline+compiled", "hf_trainer", "hf_trainer+compiled", "sft"])
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--warm", type=int, default=2)
    parser.add_argument("--limit-s", type=float, default=240.0, help="of one contestant")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.what == "prepare":
        prepare(asked.work, asked.tokenizer, asked.shape)
        return
    if asked.what == "one":
        contest(asked.work, asked.peers[0], asked.epochs, asked.warm)
        return
    shown = ",".join(os.environ.get("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7").split(",")[: asked.gpus])
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={asked.gpus}"]
    for _ in range(asked.rounds):
        for name in asked.peers:
            settings = ["--peers", name, "--epochs", str(asked.epochs), "--warm", str(asked.warm)]
            command = [
                sys.executable,
                *(launcher if asked.gpus > 1 else ()),
                __file__,
                "one",
                str(asked.work),
                *settings,
            ]
            child = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": shown},
                start_new_session=True,
            )
            try:
                output, _ = child.communicate(timeout=asked.limit_s)
            except subprocess.TimeoutExpired:
                print(f"{name}: not through in {asked.limit_s:g} s", flush=True)
                continue
            finally:
                if child.poll() is None:
                    end(child)
            lines = [line[7:] for line in output.splitlines() if line.startswith("RESULT ")]
            if not lines:
                print(f"{name} failed:\n{output[-4000:]}", flush=True)
                continue
            print(lines[-1], flush=True)
            if asked.out is not None:
                with asked.out.open("a", encoding="utf-8") as stream:
                    stream.write(lines[-1] + "\n")


if __name__ == "__main__":
    main()
