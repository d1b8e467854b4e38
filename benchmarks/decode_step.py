"""What reading prompts and one step of writing take by the static engine, with transformers' attention and with ours.

    python benchmarks/decode_step.py                   # Llama 8B's shape, the 90 longest of 256 prompts and the others
    python benchmarks/decode_step.py --shape tiny      # on a CPU, too

Random weights; every batch once to record the step, and once to be timed. On a GPU the kernels that take the most time
in a step stand below.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from inference import CUDA, DEVICE, NEW_TOKENS, prompts_of, synchronize
from inference_shapes import SHAPES
from torch.profiler import ProfilerActivity, profile

from drumline.infer import step_attention
from drumline.infer.causal import Causal
from drumline.infer.decoding import Prompt
from drumline.infer.static_decoding import Static

STEPS = 16


def as_it_comes(model: Any) -> AbstractContextManager[None]:
    """transformers' own attention, also for single tokens."""
    return nullcontext()


def main(shape_name: str) -> None:
    """Print a line for each batch and kind of attention."""
    from transformers import AutoModelForCausalLM

    shape = SHAPES[shape_name](None)
    tiny = shape.hidden_size < 1000
    with DEVICE:
        torch.manual_seed(0)
        dtype = torch.bfloat16 if CUDA else torch.float32
        model = AutoModelForCausalLM.from_config(shape, dtype=dtype).eval().requires_grad_(False)
    prompts = sorted(prompts_of(16 if tiny else 256, shape.vocab_size, 128 if tiny else 1024), key=len, reverse=True)
    cut = 6 if tiny else 90
    ours = step_attention.for_steps
    ways: dict[str, Callable[[Any], Any]] = {"transformers": as_it_comes, "ours": ours}
    for name, attention in ways.items():
        step_attention.for_steps = attention
        stepper = Static(Causal(model), 0)
        for batch in (prompts[:cut], prompts[cut:]):
            rows = [Prompt(number, np.array(ids), NEW_TOKENS) for number, ids in enumerate(batch)]
            with torch.inference_mode():
                stepper.start(rows, len(batch[0]), NEW_TOKENS)
                synchronize()
                began = time.perf_counter()
                scores = stepper.start(rows, len(batch[0]), NEW_TOKENS)
                synchronize()
                start_s = time.perf_counter() - began
                began = time.perf_counter()
                for _ in range(STEPS):
                    scores = stepper.step(scores.argmax(-1))
                synchronize()
                step_ms = (time.perf_counter() - began) / STEPS * 1e3
                print(
                    f"{name:13}{len(rows):4} x {len(batch[0]):5}: start {start_s:.2f} s, step {step_ms:.1f} ms",
                    flush=True,
                )
                if CUDA:
                    with profile(activities=[ProfilerActivity.CUDA]) as seen:
                        stepper.step(scores.argmax(-1))
                        synchronize()
                    for event in sorted(seen.key_averages(), key=lambda each: -each.device_time_total)[:5]:
                        print(f"    {event.device_time_total / 1e3:8.2f} ms {event.count:5} {event.key[:100]}")
        stepper.release()
    step_attention.for_steps = ours


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=list(SHAPES), default="llama_8b")
    main(parser.parse_args().shape)
