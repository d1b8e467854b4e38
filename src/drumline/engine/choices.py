"""What is computed how, where the recipe leaves it open: kinds of attention and the compiler, tried out on a GPU."""

from __future__ import annotations

import gc
import logging
import math
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from drumline.config.model import HuggingFaceModel
from drumline.config.schema import RunConfig
from drumline.data.loader import LoaderOptions, Piece, RowLoader
from drumline.data.seeds import ROWS
from drumline.data.source import Source
from drumline.engine.device_memory import Memory, device_memory
from drumline.engine.ending import with_causes
from drumline.engine.preflight import traceless
from drumline.engine.process import empty_cache
from drumline.engine.recover import finds_no_memory
from drumline.models.attention_choice import Attention, candidates, set_attention
from drumline.parallel.compile import compiled_blocks, run_as_written, uncompiled
from drumline.parallel.groups import Groups
from drumline.parallel.strategy import MicroBatch, Strategy, Task
from drumline.plan.record import Plan

logger = logging.getLogger("drumline")

WARM_UP, TIMED, IN_A_ROW = 2, 2, 3
"""Passes that are thrown away, in which kernels are chosen and code is compiled; rows of passes whose quickest counts;
and passes of such a row: the GPU begins after the host, which is no time lost in a run and should count little here."""
FASTER = 0.97
"""Share of the time of the one before it that makes another kind the better one; less is what one run differs from
the next."""
MOST_TOKENS = 2**14
"""Of a batch that is tried: enough to fill a GPU, and little of its memory."""
SHORT_RUN_S = 60.0
"""A run that takes less without the compiler is over before the compiler has paid for itself."""


@dataclass
class Choices:
    """What was chosen, for an event `choices`; nothing where nothing was open."""

    facts: dict[str, Any] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def note(self, what: str, chosen: str, seconds: Mapping[str, float | None], why: str) -> None:
        """Keep one choice; seconds None: it does not work, or memory ran out."""
        times = {name: None if each is None else round(each, 6) for name, each in seconds.items()}
        self.facts[what] = {"chosen": chosen, "seconds": times, "reason": why}
        self.messages.append(f"{what}: {chosen} ({why})")
        logger.info("%s", self.messages[-1])


@dataclass
class Trials:
    """Passes of one batch on all ranks together: how long they take the slowest."""

    strategy: Strategy
    groups: Groups
    micro_batches: Sequence[MicroBatch]

    def seconds(self) -> float | None:
        """Of a pass in the quickest row, on the slowest rank; None where a pass failed on one of them.

        What fails is the choice that is tried, unless all choices do: then the run itself will say why. All ranks begin
        to time together, so that none has the others' compilers beside it; what else disturbs a pass makes it longer.
        """
        if not all(self.groups.side.exchange("passes that warm up", self._passes(WARM_UP, 1) is not None)):
            return None
        answers = self.groups.side.exchange("seconds of a pass", self._passes(TIMED, IN_A_ROW))
        return None if None in answers else max(answers)

    def _passes(self, rows: int, passes: int) -> float | None:
        """Seconds of a pass in the quickest of so many rows of passes; None where one failed."""
        try:
            return min(self.strategy.trial(self.micro_batches, passes) for _ in range(rows)) / passes
        except Exception as error:
            # Where a forward pass is a collective, the others are stuck in it: no choice is worth that.
            if self.strategy.forwards_together and self.groups.world.size > 1:
                raise
            logger.info("a choice is not taken: %s: %s", type(error).__name__, str(error).partition("\n")[0])
            if not finds_no_memory(error):
                logger.debug("it failed", exc_info=True)
            for each in with_causes(error):
                traceback.clear_frames(each.__traceback__)
        gc.collect()
        empty_cache()
        return None


@dataclass
class Chooser:
    """Tries out on all ranks together, after the strategy is set up; but for what is chosen all is as before.

    On a GPU only. Two steps, since how many samples a pass can have depends on the compiler, and which attention is the
    quickest depends on how many a pass has.
    """

    strategy: Strategy
    model: nn.Module
    source: Source
    task: Task
    config: RunConfig
    groups: Groups
    choices: Choices = field(default_factory=Choices)

    def choose_compiler(self, plan: Plan) -> None:
        """Whether to compile, where train.compile is auto; before the size of a pass is looked for."""
        blocks = compiled_blocks(self.model) if self.config.train.compile == "auto" else []
        memory = self._memory(plan)
        if memory is None:
            run_as_written(blocks)
        elif blocks:
            with traceless(self.model, self.groups, memory):
                batch = self._rows(plan, MOST_TOKENS)
                trials = Trials(self.strategy, self.groups, [batch])
                choose_compile(blocks, trials, self.choices, passes_of(plan, batch))
                self._forget(batch, plan)

    def choose_attention(self, plan: Plan) -> None:
        """The kind of attention, where model.attention is auto; on as many samples as a pass of the run has."""
        settings, memory = self.config.model, self._memory(plan)
        if memory is None or not isinstance(settings, HuggingFaceModel) or settings.attention != "auto":
            return
        is_tried = self.config.train.compile != "whole"
        with traceless(self.model, self.groups, memory):
            batch = self._rows(plan, math.inf if is_tried else 1)
            packed = isinstance(batch.batch, Mapping) and "cu_seqlens" in batch.batch
            names = candidates(self.model, settings, packed=packed)
            agreed = self.groups.side.exchange("kinds of attention", names)
            names = [name for name in names if all(name in each for each in agreed)]
            trials = Trials(self.strategy, self.groups, [batch])
            choose_attention(self.model, names, trials if is_tried else None, self.choices)
            self._forget(batch, plan)

    def _memory(self, plan: Plan) -> Memory | None:
        """None where nothing can be tried: what is measured differs from run to run, and a stream is read once."""
        if self.source.is_stream or self.config.train.deterministic or plan.kind == "data_parallel":
            return None
        return device_memory(self.groups, self.config)

    def _rows(self, plan: Plan, most_tokens: float) -> MicroBatch:
        """One row where a forward pass is a collective: if memory ran out on one rank, the others would be stuck."""
        most_tokens = 1 if self.strategy.forwards_together else most_tokens
        return some_rows(self.source, self.task, self.config, plan, most_tokens)

    def _forget(self, batch: MicroBatch, plan: Plan) -> None:
        """Drop code for a size that the run never has: its own would be compiled for any size after that."""
        if compiled_blocks(self.model) and batch.samples != plan.micro_batch:
            import torch._dynamo as dynamo  # slow to import, and not needed where nothing is compiled

            dynamo.reset()


def choose_attention(model: nn.Module, names: Sequence[Attention], trials: Trials | None, choices: Choices) -> None:
    """Set the quickest of these kinds, in passes as the run makes them; the first where it is the only one.

    Compiled where the run is, and of its size: small passes, or a small model's as they are written, take the host
    longer than the GPU, and one kind was seen to lose by that, which was 1.15 times as fast in the run. trials: None
    where each kind would be compiled with the whole model, which takes minutes; then the first one is taken.
    """
    if not names:
        return
    seconds: dict[str, float | None] = {}
    if trials is not None and len(names) > 1:
        for name in names:
            set_attention(model, name)
            seconds[name] = trials.seconds()
    chosen = quickest(seconds) if seconds else names[0]
    for name in names:
        if name == chosen:
            set_attention(model, name)
    if seconds:
        choices.note("attention", chosen, seconds, f"auto: {described(seconds)}")
    elif len(names) > 1:
        choices.note(
            "attention", chosen, {}, "auto: the first, since to compile the whole model for each takes minutes"
        )


def choose_compile(blocks: Sequence[nn.Module], trials: Trials, choices: Choices, passes: float | None) -> None:
    """Leave blocks compiled where that is quicker, and the run long enough; passes: as the tried one, in all of it."""
    with uncompiled():
        written = trials.seconds()
    seconds: dict[str, float | None] = {"none": written}
    if written is not None and passes is not None and written * passes < SHORT_RUN_S:
        why = f"auto: the run takes about {written * passes:.0f} s without the compiler, which takes nearly as long"
        chosen = "none"
    else:
        seconds["blocks"] = trials.seconds()
        chosen = quickest(seconds)
        why = f"auto: {described(seconds)}"
    if chosen == "none":
        run_as_written(blocks)
    choices.note("compile", chosen, seconds, why)


def quickest(seconds: Mapping[str, float | None]) -> str:
    """Pure: the first kind, unless a later one is noticeably quicker; kinds that failed are none, unless all are."""
    names = list(seconds)
    best = names[0]
    for name in names[1:]:
        mine, other = seconds[name], seconds[best]
        if mine is not None and (other is None or mine < FASTER * other):
            best = name
    return best


def described(seconds: Mapping[str, float | None]) -> str:
    """In words: 'varlen 12.1 ms a pass, sdpa 30.4 ms'."""
    times = [f"{name} {'failed' if each is None else f'{1000 * each:.3g} ms'}" for name, each in seconds.items()]
    return f"{', '.join(times)} a pass"


def passes_of(plan: Plan, batch: MicroBatch) -> float | None:
    """How many passes of such a batch a shard makes in the whole run; None where its length is not known."""
    if plan.steps is None:
        return None
    return plan.steps * plan.global_batch / plan.num_shards / max(1, batch.samples)


def some_rows(source: Source, task: Task, config: RunConfig, plan: Plan, most_tokens: float) -> MicroBatch:
    """Rows of the first update as a pass has them, with at most so many tokens, but one; read in this process."""
    order = source.epoch_order(config.seed, 0, shuffle=config.train.shuffle)
    loader = RowLoader(source, task, LoaderOptions())

    def read(count: int) -> MicroBatch:
        return loader.read_one(Piece((ROWS, config.seed, 0, 0), order[:count].tolist()))

    first = read(1)
    ids = first.batch.get("input_ids") if isinstance(first.batch, Mapping) else None
    if not isinstance(ids, Tensor):
        return first
    return read(int(max(1, min(plan.micro_batch, plan.global_batch, most_tokens // max(1, ids.numel())))))
