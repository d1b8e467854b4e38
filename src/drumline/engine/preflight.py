"""Before a run: how many samples a pass can have, for training and for evaluation each, agreed by all ranks."""

from __future__ import annotations

import copy
import gc
import logging
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from drumline.config.schema import RunConfig
from drumline.data.loader import Counted
from drumline.data.prefetch import MOST_BYTES
from drumline.data.probe import largest_row
from drumline.data.sharing import tensors
from drumline.data.source import Source
from drumline.engine.batch_size import Peak, Trial, decide
from drumline.engine.device_memory import Memory, device_memory
from drumline.engine.ending import with_causes
from drumline.engine.evaluate import evaluation_pass, in_mode
from drumline.engine.learners import loader_task
from drumline.engine.measure import Measurement
from drumline.engine.recover import finds_no_memory
from drumline.engine.run import Run
from drumline.errors import DrumlineError, OutOfMemory
from drumline.parallel.compile import one_shape, uncompiled
from drumline.parallel.groups import Groups
from drumline.parallel.objective import preserved
from drumline.parallel.strategy import MAIN, MicroBatch, Strategy, Task
from drumline.plan.devices import count
from drumline.plan.memory import gib
from drumline.plan.record import Plan

if TYPE_CHECKING:
    from drumline.engine.start import Parts

logger = logging.getLogger("drumline")

RECORDED_PASSES = 3
"""Of a proof with CUDA graphs: one warms up, one is recorded, one is replayed."""


@dataclass(frozen=True)
class Sizes:
    """What was found: samples of a pass and shard. None: what the plan says."""

    micro_batch: int | None = None
    evaluation_batch: int | None = None
    facts: Mapping[str, Any] | None = None
    """Of an event `preflight`; None where there was none."""

    def planned(self, plan: Plan) -> Plan:
        """The plan with that micro-batch; neither the global batch nor the number of updates depends on it."""
        micro, share = self.micro_batch, plan.micro_batch
        if micro is None or micro == share:
            return plan
        passes = -(-share // micro)
        why = f"auto: {micro} of a shard's share of {share} were found to fit"
        reasons = {**plan.reasons, "micro_batch": why, "accumulation": f"{passes} passes for a share of {share}"}
        return replace(plan, micro_batch=micro, accumulation=passes, reasons=reasons)

    def stated(self, config: RunConfig) -> RunConfig:
        """The config as if it asked for that evaluation batch."""
        if self.evaluation_batch is None:
            return config
        evaluate = config.evaluate.model_copy(update={"batch": self.evaluation_batch})
        return config.model_copy(update={"evaluate": evaluate})

    def settle(self, run: Run) -> None:
        """Keep them with the run, once it stands where it goes on from, and write the event.

        A size that a checkpoint brought along stays, so that the run goes on bit by bit as it would have; on another
        number of shards it is the smaller of both. One that is larger than what the config asks for by now is dropped.
        """
        progress, plan = run.progress, run.plan
        same = progress.num_shards == plan.num_shards
        asked = None if run.config.train.micro_batch == "auto" else plan.micro_batch
        progress.micro_batch = settled(progress.micro_batch, self.micro_batch, asked, same=same)
        progress.evaluation_batch = settled(
            progress.evaluation_batch, self.evaluation_batch, run.config.evaluate.batch, same=same
        )
        progress.num_shards = plan.num_shards
        if self.facts is not None:
            run.event("preflight", **self.facts)


def settled(kept: int | None, found: int | None, asked: int | None, *, same: bool) -> int | None:
    """The size that a run goes on with: of those that were kept and found, and that the config asks for."""
    if kept is None:
        return found
    if asked is not None and kept >= asked:
        return None
    return kept if same or found is None else min(kept, found)


def find_sizes(parts: Parts, strategy: Strategy, config: RunConfig, plan: Plan, groups: Groups) -> Sizes:
    """Find both sizes with trial passes on the largest rows, where train.micro_batch is auto and there is a GPU.

    All ranks call it, after the strategy is set up. Weights, gradients, optimizers, buffers, modes and random streams
    are as before afterwards.
    """
    num_local = plan.num_shards // plan.world_size
    memory, train = device_memory(groups, config), config.train
    if memory is None or train.micro_batch != "auto" or train.batch_size_per_gpu is not None or plan.micro_batch == 1:
        return Sizes()
    began, search = time.perf_counter(), Search(strategy, groups, memory, num_local, plan.num_workers > 0)
    compiled = train.compile != "none" or has_compiled(parts.model)
    learn = TrainingPasses(strategy, plan.micro_batch, compiled=compiled, recorded=train.cuda_graphs)
    task, held_out, found = loader_task(parts.tasks), parts.evaluation, None
    with traceless(parts.model, groups, memory):
        trained = search.largest("training", parts.train, task, plan.micro_batch, learn)
        if held_out is not None and config.evaluate.batch is None and held_out.batch_size is None:
            share = plan.micro_batch
            if held_out.num_rows is not None:
                share = max(1, min(share, -(-held_out.num_rows // plan.num_shards)))
            passes = EvaluationPasses(strategy, parts.model, parts.tasks, groups.device, compiled=compiled)
            found = search.largest("evaluation", held_out, task, share, passes)
    facts = {
        "message": "; ".join(each.described() for each in (trained, found) if each is not None),
        "training": None if trained is None else trained.facts(),
        "evaluation": None if found is None else found.facts(),
        "target": train.out_of_memory.target,
        "seconds": round(time.perf_counter() - began, 3),
    }
    logger.info("preflight: %s (%.1f s)", facts["message"], facts["seconds"])
    return Sizes(None if trained is None else trained.rows, None if found is None else found.rows, facts)


def has_compiled(model: nn.Module) -> bool:
    """Whether the user has compiled it, or a part of it, himself."""
    kinds = [type(module).__name__ for module in model.modules() if module._compiled_call_impl is None]
    return len(kinds) < len(list(model.modules())) or "OptimizedModule" in kinds


@contextmanager
def traceless(model: nn.Module, groups: Groups, memory: Memory) -> Iterator[None]:
    """Buffers, random streams, modes and peaks are as before afterwards, and what trials held is given back."""
    try:
        with in_mode(model, training=True), preserved(model, groups.device):
            yield
    finally:
        gc.collect()
        memory.begin()


class TrainingPasses:
    """Forward and backward passes as training makes them, of every learner."""

    def __init__(self, strategy: Strategy, share: int, *, compiled: bool, recorded: bool) -> None:
        """share: rows of a shard in an update; recorded: whether there are CUDA graphs."""
        self._strategy = strategy
        self._share = share
        self._compiled = compiled
        self._recorded = recorded
        self.even = compiled
        """Whether passes should all be of one size: each is compiled for itself."""

    def __call__(self, batches: Sequence[MicroBatch], rows: int, *, is_proof: bool) -> None:
        """One trial with a batch a shard; only a proof compiles."""
        passes = 1 if rows >= self._share else 2  # the second one beside the gradients of the first
        if self._recorded and is_proof:
            passes = RECORDED_PASSES
        with (one_shape() if is_proof else uncompiled()) if self._compiled else nullcontext():
            self._strategy.trial([*batches] * passes)


class EvaluationPasses:
    """Forward passes as an evaluation makes them, uncompiled."""

    even = False

    def __init__(
        self,
        strategy: Strategy,
        model: nn.Module,
        tasks: Mapping[str, Task],
        device: torch.device,
        *,
        compiled: bool,
    ) -> None:
        self._strategy = strategy
        self._model = model
        self._tasks = tasks
        self._device = device
        self._compiled = compiled

    def __call__(self, batches: Sequence[MicroBatch], rows: int, *, is_proof: bool) -> None:
        """One trial with a batch a shard."""
        stance = uncompiled() if self._compiled else nullcontext()
        with in_mode(self._model, training=False), self._strategy.averaged(), stance:
            for name, task in self._tasks.items():
                measurement = Measurement(task, self._device, "" if name == MAIN else f"{name}/")
                for batch in batches:
                    evaluation_pass(self._strategy, name, task, measurement, batch)


class Found(NamedTuple):
    """What the search for one size came to."""

    what: str
    rows: int
    share: int
    trials: tuple[Trial, ...]

    def described(self) -> str:
        """In words: '22 of 64 samples a pass in training fill 60 GiB of 72 GiB'."""
        text = f"{self.rows} of {self.share} samples a pass in {self.what}"
        peaks = [trial.peaks for trial in self.trials if trial.rows == self.rows and trial.peaks is not None]
        if not peaks:
            return f"{text}, though memory runs out"
        fullest = max(peaks[-1], key=lambda peak: peak.used / peak.limit)
        return f"{text} fill {gib(fullest.used)} of {gib(fullest.limit)}"

    def facts(self) -> dict[str, Any]:
        """For the event: sizes, and each trial's rows with the most bytes that a rank held, None where it ran out."""
        trials = [[t.rows, None if t.peaks is None else int(max(p.used for p in t.peaks))] for t in self.trials]
        limits = [int(min(p.limit for p in t.peaks)) for t in self.trials if t.peaks is not None]
        return {"rows": self.rows, "share": self.share, "trials": trials, "limit_bytes": min(limits, default=None)}


@dataclass
class Search:
    """Tries out sizes on this rank together with the others: each trial's outcome is agreed before the next."""

    strategy: Strategy
    groups: Groups
    memory: Memory
    num_local: int
    apart: bool
    """Whether rows are read in a process of their own, since loader processes will be forked from this one."""

    def largest(
        self, what: str, source: Source, task: Task, share: int, passes: TrainingPasses | EvaluationPasses
    ) -> Found | None:
        """The largest size, at most `share`, that fits all ranks; None where no row could be found out about."""
        row = largest_row(source, apart=self.apart)
        if not all(self.groups.side.exchange("the largest row", row is not None)) or row is None:
            if self.groups.world.rank == 0:
                logger.warning(
                    "no row of the %s data could be read beforehand: %d samples a pass are taken", what, share
                )
            return None
        collate = Counted(source.collate, task)

        def make(rows: int) -> MicroBatch:
            # Copies, since some collate functions take rows apart.
            made = collate([copy.deepcopy(row.row) for _ in range(rows)])
            if isinstance(made, DrumlineError):
                raise made
            return made

        self._try(make, passes, share, 1, is_proof=False)  # not counted: it loads kernels and takes workspaces
        trials = [self._nothing()] if self.strategy.forwards_together else []
        while not (verdict := decide(trials, share, even=passes.even)).is_found:
            peaks = self._try(make, passes, share, verdict.rows, is_proof=verdict.is_proof)
            trials.append(Trial(verdict.rows, peaks, verdict.is_proof))
        if not any(trial.fits for trial in trials) and self.groups.world.rank == 0:
            logger.warning("a single sample of the %s data fills memory beyond train.out_of_memory.target", what)
        return Found(what, verdict.rows, share, tuple(trials))

    def _nothing(self) -> Trial:
        """What is held before any trial."""
        self.memory.begin()
        return Trial(
            0, tuple(Peak(*answer) for answer in self.groups.side.exchange("before", self.memory.peak())), False
        )

    def _try(
        self,
        make: Callable[[int], MicroBatch],
        passes: TrainingPasses | EvaluationPasses,
        share: int,
        rows: int,
        *,
        is_proof: bool,
    ) -> tuple[Peak, ...] | None:
        """One trial on all ranks: what each held at most; None where memory ran out on one of them."""
        batch, mine = make(rows), None
        self.memory.begin()
        try:
            passes([batch._replace(shard=shard) for shard in range(self.num_local)], rows, is_proof=is_proof)
            used, limit = self.memory.peak()
            mine = Peak(used + self._due(batch, rows, share), limit)
        except Exception as error:
            if not finds_no_memory(error):
                raise
            # Where a forward pass is a collective, the others are stuck in it; only what is foretold to fit is tried.
            if self.strategy.forwards_together and self.groups.world.size > 1:
                raise OutOfMemory(
                    f"memory ran out while the preflight tried passes of {count(rows, 'sample')}",
                    "set train.micro_batch to less, use train.checkpointing, or more devices",
                ) from error
            for each in with_causes(error):
                traceback.clear_frames(each.__traceback__)
        if mine is None:
            gc.collect()  # what the failed pass has left in cycles
        answers = self.groups.side.exchange(f"trial of {rows}", mine)
        return None if None in answers else tuple(Peak(*answer) for answer in answers)

    def _due(self, batch: MicroBatch, rows: int, share: int) -> int:
        """Bytes that a run holds beside this trial: state that the first update makes, and windows sent ahead."""
        window = sum(tensor.nbytes for tensor in tensors(batch.batch)) * share // rows
        ahead = 2 * window if self.groups.device.type == "cuda" and window <= MOST_BYTES else 0
        return self.strategy.due_bytes + ahead
