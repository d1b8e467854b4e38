"""An adapter for vLLM, where it is installed. Unverified: nobody has run it yet.

vLLM loads the model itself, from its folder, beside nothing else on the GPU, and batches as it likes; what is promised
is what it promises.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

from drumline.errors import ConfigError
from drumline.infer.decoding import Prompt
from drumline.infer.endings import Endings, Written
from drumline.infer.sampling import Sampling


class Vllm:
    """vLLM's engine with one model. Unverified."""

    def __init__(self, folder: str, dtype: str = "auto", **options: Any) -> None:
        """folder: with config.json and weights; options: of vllm.LLM. Raises ConfigError."""
        try:
            self._vllm: Any = importlib.import_module("vllm")
        except ImportError as error:
            raise ConfigError(
                "task.engine is vllm, and the package vllm is not installed",
                "pip install vllm, or set task.engine to auto",
            ) from error
        try:
            self._engine = self._vllm.LLM(model=folder, dtype=dtype, skip_tokenizer_init=True, **options)
        except (ValueError, RuntimeError) as error:
            raise ConfigError(f"vLLM does not take {folder}: {error}", "set task.engine to auto") from error

    def write(self, prompts: Sequence[Prompt], sampling: Sampling, endings: Endings) -> list[Written]:
        """Answers of the prompts, in their order. Its random streams are its own: other draws than other engines'."""
        settings = [
            self._vllm.SamplingParams(
                max_tokens=prompt.limit,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k or -1,
                repetition_penalty=sampling.repetition_penalty,
                seed=sampling.seed * 1_000_003 + prompt.number,
                stop_token_ids=list(endings.ends),
                detokenize=False,
            )
            for prompt in prompts
        ]
        given = [{"prompt_token_ids": prompt.ids.tolist()} for prompt in prompts]
        outputs = self._engine.generate(given, settings, use_tqdm=False)
        found = []
        for prompt, output in zip(prompts, outputs, strict=True):
            written = endings.judge(list(output.outputs[0].token_ids), prompt.limit)
            if written is None:
                raise RuntimeError(f"vLLM ended early, with {output.outputs[0].finish_reason!r}")
            found.append(written)
        return found
