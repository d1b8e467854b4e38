"""The task `generate`: an answer in words to each row."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from torch import nn

from drumline.config.inference import GenerateTask
from drumline.data.tokenizers import Ids, Tokenizer
from drumline.errors import ConfigError, DataError
from drumline.infer.causal import Causal, takes_cache
from drumline.infer.continuous import write_continuously
from drumline.infer.decoding import Padded, Prompt, Recomputed, Stepper, decode
from drumline.infer.endings import Endings, Written
from drumline.infer.engine_choice import fastest, tried_rows
from drumline.infer.padding_trial import way_of_writing
from drumline.infer.prefix import PrefixCache, is_worth_it, shared_prefix
from drumline.infer.records import ERROR, Answer, Facts, Prepared, Row
from drumline.infer.sampling import Sampling
from drumline.infer.static_decoding import Static, is_static
from drumline.infer.steady_room import room_note, steady_room
from drumline.infer.vllm_engine import Vllm
from drumline.infer.vocabulary import unknown_token, vocabulary_of
from drumline.models.huggingface import is_pretrained

PADDED, STATIC, CONTINUOUS, VLLM = "padded", "static", "continuous", "vllm"
_logger = logging.getLogger(__name__)
NOT_FINITE = "the model's scores are no numbers (NaN or infinite)"
TRIED_TOKENS = 64
"""Most new tokens of a row while engines are tried."""


class PromptSource(Protocol):
    """What makes prompts of rows; see infer.prompts.PromptMaker."""

    def ids(self, row: Row) -> Ids:
        """The tokens that the model goes on from; raises DataError for what is wrong with the row."""


class GeneratePredictor:
    """Writes answers with a causal model: of transformers, or any that maps ids [B, T] to scores [B, T, V]."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Tokenizer,
        task: GenerateTask,
        prompts: PromptSource,
        ends: Sequence[int],
        seed: int = 0,
        folder: Path | None = None,
    ) -> None:
        """ends: ids that end an answer; seed: with a row's number it decides what is drawn for that row; folder:
        of these very weights, for an engine that reads them itself.

        Raises ConfigError where the task's engine cannot do what the task or the model asks for.
        """
        self._model, self._task, self._prompts = model.eval(), task, prompts
        self._endings = Endings(tokenizer, ends, task.stop)
        self._folder, self._vocabulary = folder, vocabulary_of(model)
        self._pad = int(tokenizer.pad_id)
        if self._pad < 0 or (self._vocabulary is not None and self._pad >= self._vocabulary):
            self._pad = 0  # a token that was added to the tokenizer alone; of what stands there nothing is seen
        self._sampling = Sampling(task.temperature, task.top_p, task.top_k, task.repetition_penalty, seed)
        self._room = steady_room(model)
        self._causal = Causal(model) if is_pretrained(model) and takes_cache(model) else None
        way = way_of_writing(model, self._causal, self._pad) if is_pretrained(model) else "recomputed"
        self._causal, self._is_alone = None if way == "recomputed" else self._causal, way == "alone"
        self._engines = self._possible_engines()
        if task.engine != "auto" and task.engine not in self._engines:
            raise ConfigError(
                f"task.engine {task.engine} does not fit {type(model).__name__} or the way of sampling",
                f"set task.engine to auto, or to one of {', '.join(self._engines)}",
            )
        self.engine = self._engines[0] if task.engine == "auto" else task.engine
        """What generates from now on; `settle` may change it."""
        self._stepper: Stepper | None = None
        self._vllm: Vllm | None = None
        self._prefix: list[int] = []

    @property
    def columns(self) -> tuple[str, ...]:
        """The answer, how it ended, and its number of tokens."""
        return ("answer", "finish", "new_tokens")

    def prepare(self, rows: Sequence[Row]) -> list[Prepared | str]:
        """Prompts as ids; a row whose prompt leaves the model no room has a problem."""
        return [self._prepared(row) for row in rows]

    def _prepared(self, row: Row) -> Prepared | str:
        if row.problem is not None:
            return row.problem
        try:
            ids = self._prompts.ids(row)
        except DataError as error:
            return error.problem
        if len(ids) == 0:
            return "its prompt is empty"
        if (problem := unknown_token(ids, self._vocabulary)) is not None:
            return problem
        limit = self._task.max_new_tokens
        if self._room is not None:
            if len(ids) >= self._room:
                told = f"its prompt has {len(ids):,} tokens, and the model takes {self._room:,} with the answer"
                return told + room_note(self._model)
            limit = min(limit, self._room - len(ids))
        return Prepared(row.number, len(ids), len(ids) + limit, Prompt(row.number, ids, limit))

    def survey(self, prepared: Sequence[Prepared]) -> Facts:
        """The beginning that all prompts share, and on a GPU the engine that is the fastest with these rows."""
        facts: Facts = {}
        prompts: list[Ids] = [each.payload.ids for each in prepared]
        if self._causal is not None and self._causal.allows_gaps:
            prefix = shared_prefix(prompts)
            facts["prefix"] = prefix if is_worth_it(prefix, prompts) else []
        if self._task.engine == "auto" and self._causal is not None and self._causal.device.type == "cuda":
            facts |= self.measure(prepared)
        return facts

    def measure(self, prepared: Sequence[Prepared]) -> Facts:
        """The fastest engine for these rows, found by running some of them with each."""
        rows = tried_rows(prepared)
        if not rows or len(self._engines) == 1:
            return {"engine": self.engine}
        before, most = self.engine, min(TRIED_TOKENS, self._task.max_new_tokens)
        prompts: list[Prompt] = [replace(row.payload, limit=min(row.payload.limit, most)) for row in rows]

        def trial(name: str) -> object:
            self._take_engine(name)
            return self._write(prompts, rows[0].length, most)

        try:
            while rows:
                try:
                    return {"engine": fastest({name: partial(trial, name) for name in self._engines if name != VLLM})}
                except torch.OutOfMemoryError:
                    self._release()
                # Outside of the handler, which holds on to what was on the device.
                del rows[: -(-len(rows) // 2)], prompts[: -(-len(prompts) // 2)]
            return {"engine": before}
        finally:
            self._take_engine(before)

    def settle(self, facts: Facts) -> None:
        """Take the engine and the shared beginning; without facts as the task says. ConfigError without vLLM."""
        self._prefix = list(facts.get("prefix", []))
        self._take_engine(str(facts.get("engine", self.engine)), anew=True)
        if self.engine == VLLM:
            self._own_vllm()
        if self.engine == CONTINUOUS:
            _logger.info("continuous batching promises the same tokens from run to run in float32 only, ties aside")

    def run(self, rows: Sequence[Prepared | None], width: int) -> list[Answer]:
        """Answers of the rows that are there; see infer.records.Predictor."""
        prompts: list[Prompt | None] = [None if row is None else row.payload for row in rows]
        written = self._write(prompts, width, self._task.max_new_tokens)
        return [
            {ERROR: NOT_FINITE}
            if each is None
            else {"answer": each.text, "finish": each.finish, "new_tokens": each.num_tokens}
            for each in written
        ]

    def rehearse(self, rows: Sequence[Prepared], width: int) -> None:
        """Need as much memory as `run` does for answers of full length, in two steps; see infer.budget."""
        if self._causal is None or self.engine not in (PADDED, STATIC):
            self.run(rows, width)
            return
        # What another batch has left would hide what this one takes.
        self._release()
        stepper = self._new_stepper()
        assert isinstance(stepper, Padded)
        # Written one by one, rows need what the longest does.
        prompts = [row.payload for row in (rows[:1] if self._is_alone else rows)]
        try:
            with torch.inference_mode():
                stepper.rehearse(prompts, width, self._task.max_new_tokens)
        finally:
            stepper.release()

    def _write(self, prompts: Sequence[Prompt | None], width: int, most: int) -> Sequence[Written | None]:
        present = [prompt for prompt in prompts if prompt is not None]
        if self.engine == CONTINUOUS:
            assert self._causal is not None
            return write_continuously(self._causal, self._pad, present, self._endings)
        if self.engine == VLLM:
            return self._own_vllm().write(present, self._sampling, self._endings)
        if self._stepper is None:
            self._stepper = self._new_stepper()
        batches = [([prompt], len(prompt.ids)) for prompt in present] if self._is_alone else [(prompts, width)]
        try:
            return [
                each
                for own, columns in batches
                for each in decode(self._stepper, own, (columns, most), self._sampling, self._endings)
            ]
        except torch.OutOfMemoryError:
            # A smaller batch comes next; what this one has taken must not be in its way.
            self._release()
            raise

    def _new_stepper(self) -> Stepper:
        if self._causal is None:
            return Recomputed(self._model, self._pad, self._room)
        prefix = PrefixCache(self._causal, self._prefix) if self._prefix else None
        return (Static if self.engine == STATIC else Padded)(self._causal, self._pad, prefix)

    def _possible_engines(self) -> list[str]:
        """Names of what can generate here; the first is taken where nobody has measured."""
        if self._task.engine == VLLM and self._folder is None:
            raise ConfigError(
                "task.engine is vllm, which reads weights from a folder itself, and there is no folder of these: the "
                "model is a run's or a program's, has an adapter or random weights, or is split or quantised",
                "export or merge it into a folder (drumline export), or set task.engine to auto",
            )
        if self._causal is None or self._is_alone:
            return [PADDED]
        found = [PADDED]
        if is_static(self._causal):
            found.insert(0 if self._causal.device.type == "cuda" else 1, STATIC)
        fits = self._sampling.is_plain and self._causal.is_on_one_device and hasattr(self._model, "generate_batch")
        # What it puts together depends on time: only in float32 are its tokens the same, ties aside, so in shorter
        # types it is for whoever asks for it.
        if fits and (self._task.engine == CONTINUOUS or next(self._model.parameters()).dtype == torch.float32):
            found.append(CONTINUOUS)
        if self._task.engine == VLLM:
            found.append(VLLM)
        return found

    def _take_engine(self, name: str, *, anew: bool = False) -> None:
        if name != self.engine or anew:
            self._release()
            self.engine = name

    def _release(self) -> None:
        """Give back the memory that steps hold between batches."""
        if isinstance(self._stepper, Padded):
            self._stepper.release()
        self._stepper = None

    def _own_vllm(self) -> Vllm:
        if self._vllm is None:
            assert self._folder is not None
            dtype = str(next(self._model.parameters()).dtype).removeprefix("torch.")
            # It loads the weights itself, and wants the GPU's memory for them.
            self._model.to("cpu")
            self._vllm = Vllm(str(self._folder), dtype)
        return self._vllm
