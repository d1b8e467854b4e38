"""Chooses every number of a fine-tuning run from what model, data and machine are, and says why: pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drumline.config.finetuning_task import WRITES, ColumnSeen, Family, TaskFound

EVAL_FRACTION = 0.05
"""Share of the rows that is held out where no others are named."""
UPDATES_AN_EPOCH = 50
"""So many at least, while the batch is above its least: with fewer the learning rate has no time to do anything."""
LEAST_BATCH = 4
LEAST_PACKED = 8 * LEAST_BATCH
"""Rows of several texts that make eight updates of the least batch; texts that make fewer are better left alone."""
MOST_TOKENS_TWICE = 20_000_000
MOST_ROWS_TWICE = 200_000
"""More than so many learned tokens, or rows, are gone through once; fewer, three times."""
FULL_BYTES = 18
"""A trained parameter: itself, gradient and two moments in float32 (16), and autocast's copy of it (2)."""
FROZEN_BYTES = {"bfloat16": 2.0, "nf4": 0.6}
"""One that is not trained; nf4 with its blocks' scales."""
STATE_SHARE = 0.6
"""Of a device's memory that parameters and their state may take: the rest is for activations."""
TIGHT_SHARE = 0.3
"""From here on activations are computed again in the backward pass."""

UNLIMITED = 1_000_000
"""Tokens of a row where a model says nothing of its most."""

Values = dict[str, Any]


@dataclass(frozen=True)
class ModelSeen:
    """What a model's config.json says."""

    path: str
    family: Family
    num_parameters: int
    longest: int | None = None
    """Most tokens of a row; None where nothing is said."""
    has_template: bool = True
    """Whether its tokenizer says how a chat becomes text."""


@dataclass(frozen=True)
class DataSeen:
    """What the first rows of the data tell."""

    kind: str
    """Of the data section: text, records, text_folders, datasets."""
    source: tuple[str, ...]
    """Files, globs or folders; of datasets its one path."""
    columns: Mapping[str, ColumnSeen]
    num_rows: int
    """About; of running text 0."""
    usual_tokens: int
    """Half of the rows have no more."""
    longest_tokens: int
    """Of the rows that were looked at."""
    num_tokens: int
    """About, over all rows."""
    num_seen: int = 0
    eval_split: str | None = None
    """Of datasets: one that looks like held-out rows."""


@dataclass(frozen=True)
class Machine:
    """The devices that a run would get."""

    num_devices: int
    memory_bytes: int | None
    """Of the smallest; None where nobody says."""
    is_gpu: bool


@dataclass(frozen=True)
class Choice:
    """Settings as a recipe writes them, and for each dotted name why it is so."""

    values: Values
    reasons: dict[str, str]


def choose(
    model: ModelSeen,
    data: DataSeen,
    found: TaskFound,
    machine: Machine,
    said: Mapping[str, Any],
    held_out: tuple[str, ...] = (),
) -> Choice:
    """Every setting that matters, but for those in `said` (sections and settings that somebody gave), which count.

    held_out: files of held-out rows, or the name of a split; empty: a share of the training rows.
    """
    work = _Chooser(model, data, found, machine, said)
    work.data_section(held_out)
    work.how_weights_are_kept()
    work.numbers()
    return Choice(work.values, work.reasons)


class _Chooser:
    """One choice after another; later ones follow from earlier ones, and all from what was said."""

    def __init__(
        self, model: ModelSeen, data: DataSeen, found: TaskFound, machine: Machine, said: Mapping[str, Any]
    ) -> None:
        self.model, self.data, self.found, self.machine, self.said = model, data, found, machine, said
        self.values: Values = {"model": {"kind": "huggingface", "path": model.path}, "task": {"kind": found.task}}
        self.reasons: dict[str, str] = {"task.kind": found.why}
        self.adapter = False

    def put(self, name: str, value: Any, reason: str) -> Any:
        """Set what nobody has said; returns what counts."""
        given = _given(self.said, name)
        if given is not _NOTHING:
            return given
        section = self.values
        *outer, last = name.split(".")
        for part in outer:
            section = section.setdefault(part, {})
        section[last] = value
        self.reasons[name] = reason
        return value

    def data_section(self, held_out: tuple[str, ...]) -> None:
        """What is read, how long its rows are, and what is held out."""
        data = self.data
        if data.kind == "datasets":
            self.values["data"] = {"kind": "datasets", "path": data.source[0]}
            names = held_out or ((data.eval_split,) if data.eval_split else ())
            why = "you named it" if held_out else "its name says that it is held out"
            if names:
                self.put("data.eval_split", names[0], why)
        else:
            names = held_out
            self.values["data"] = {"kind": data.kind, "train": list(data.source)}
            if names:
                self.values["data"]["eval"] = list(names)
        if data.kind == "text":
            self.put("data.tokenizer", self.model.path, "the model's own")
        if self.found.columns:
            self.values["data"]["columns"] = dict(self.found.columns)
            told = ", ".join(f"{own} as {role}" for role, own in self.found.columns.items())
            self.reasons["data.columns"] = f"the task reads {told}"
        if self.found.row_format != "auto" and data.kind != "text":
            self.put("data.row_format", self.found.row_format, self.found.why)
        if self.found.row_format == "chat" and not self.model.has_template:
            self.put("data.template", "chatml", "the model's tokenizer has no chat template of its own")
        if not names and not _given_any(self.said, "data.eval", "data.eval_split"):
            why = "no held-out rows are named: so many are taken from these, by their content, 2,000 at most"
            self.put("data.eval_fraction", EVAL_FRACTION, why)
        self.context = int(self.put("data.context", *self._context()))

    def _context(self) -> tuple[int, str]:
        data, limit = self.data, self.model.longest or UNLIMITED
        if data.kind == "text":
            return min(1024, limit), f"running text, cut into rows; the model takes {_number(limit)}"
        longest, usual = f"{data.longest_tokens:,}", f"{data.usual_tokens:,}"
        seen = f"of {data.num_seen:,} rows the longest has {longest} tokens, half {usual} or fewer"
        if self.found.task in WRITES:
            # Packed rows waste less the more texts they hold.
            context = min(max(256, _power_above(data.longest_tokens)), 2048, limit)
        else:
            context = min(max(16, -(-data.longest_tokens * 5 // 4 // 32) * 32), 512, limit)
        cut = "; what is longer is cut" if data.longest_tokens > context else ""
        return context, f"{seen}{cut}"

    def how_weights_are_kept(self) -> None:
        """All weights trained where their state fits, else an adapter beside them, at the worst with them in 4 bits."""
        memory, count, number = self.machine.memory_bytes, self.model.num_parameters, self.machine.num_devices
        where = f"{_count(number, 'GPU')} of {_gib(memory)}" if self.machine.is_gpu and memory else "this machine"
        size = f"{_number(count)} parameters"
        asked = _given(self.said, "model.adapter")
        needed = FULL_BYTES * count
        # Under these kinds each GPU holds all of it.
        whole = not self.machine.is_gpu or _given(self.said, "parallel.kind") in ("data_parallel", "ddp", "single")
        shared = 1 if whole else number
        room = None if memory is None else STATE_SHARE * memory * shared
        quantised = _given(self.said, "model.quantise") not in (_NOTHING, "none")
        fits = (room is None or needed <= room) and not quantised
        self.adapter = not fits if asked is _NOTHING else asked is not None
        if asked is _NOTHING and fits:
            self.reasons["model.adapter"] = f"{size} and their state, {_gib(needed)}, fit {where}"
        elif asked is _NOTHING and quantised:
            self.put("model.adapter", {"kind": "lora", "rank": 16}, "quantised weights are trained through an adapter")
        elif asked is _NOTHING:
            why = f"{size} and their state would take {_gib(needed)}, and there is {where}"
            self.put("model.adapter", {"kind": "lora", "rank": 16}, why)
        if self.adapter and self.machine.is_gpu:
            self.put("model.weights", "bfloat16", "beside an adapter the model's own weights do not change")
            if room is not None and FROZEN_BYTES["bfloat16"] * count > room:
                self.put("model.quantise", "nf4", f"{_gib(2 * count)} in bfloat16 would not leave room either")
        state = FROZEN_BYTES["bfloat16"] * count if self.adapter else needed
        if memory is not None and state > TIGHT_SHARE * memory * shared and self.machine.is_gpu:
            self.put("train.checkpointing.kind", "full", f"weights and state take {_gib(state)} of {where}")

    def numbers(self) -> None:
        """Epochs, batch, rate and schedule."""
        task, data = self.found.task, self.data
        held = _given(self.values, "data.eval_fraction")
        left = 1 - (held if isinstance(held, float) else 0.0)
        rows = left * data.num_tokens / self.context
        # As packing: auto has it; running text is always packed.
        packed = task == "language_modelling" and (data.kind == "text" or rows >= LEAST_PACKED)
        packed = packed and _given(self.said, "data.packing") != "none"
        samples = max(1, round(rows if packed else left * data.num_rows))
        once = data.num_tokens > MOST_TOKENS_TWICE if packed else data.num_rows > MOST_ROWS_TWICE
        amount = f"about {_number(data.num_tokens)} tokens" if packed else f"about {data.num_rows:,} rows"
        if _given_any(self.said, "train.max_steps", "train.epochs"):
            epochs = float(_given(self.said, "train.epochs") or 1) if _given_any(self.said, "train.epochs") else 1.0
        else:
            count = 1 if once or task == "preference" else 3
            epochs = float(self.put("train.epochs", count, amount))
        batch = self._batch(samples, packed, amount)
        given = _given(self.said, "train.max_steps")
        updates = int(given) if isinstance(given, int) else max(1, math.ceil(epochs * math.ceil(samples / batch)))
        self.put("train.lr", *self._rate())
        warm_up = min(100, math.ceil(0.05 * updates))
        self.put("train.schedule.warmup_steps", warm_up, f"5% of about {updates:,} updates, 100 at most")
        self.put("train.optimizer.weight_decay", 0.01, "less than from scratch: the weights are good already")
        self.put("train.optimizer.betas", [0.9, 0.999], "as the published fine-tuning runs have it")
        if self.machine.is_gpu:
            self.put("train.compile", "auto", "used where it is measured to pay")
        self.put("evaluate.at_start", True, "shows what the model could do before")
        self.put("checkpoint.every_s", 900.0, "so that an interruption costs little")
        self.put("track.every", max(1, min(10, updates // 20)), f"about {updates:,} updates")

    def _batch(self, samples: int, packed: bool, amount: str) -> int:
        per_gpu = _given(self.said, "train.batch_size_per_gpu")
        if isinstance(per_gpu, int):
            steps = _given(self.said, "train.gradient_accumulation_steps")
            return per_gpu * (steps if isinstance(steps, int) else 1) * self.machine.num_devices
        batch = min(max(LEAST_BATCH, _power_below(samples / UPDATES_AN_EPOCH)), 32 if packed else 64)
        batch = min(max(batch, self.machine.num_devices), samples)
        rows = f", in rows of {self.context:,}," if packed else ""
        why = f"{amount}{rows} make {math.ceil(samples / batch):,} updates an epoch"
        return int(self.put("train.global_batch", batch, why))

    def _rate(self) -> tuple[float, str]:
        """Usual ones: Devlin et al. 2019 for BERT, Dettmers et al. 2023 for LoRA, Tunstall et al. 2023 for DPO."""
        count, task = self.model.num_parameters, self.found.task
        size = f"of {_number(count)} parameters"
        if task == "preference":
            return (5e-6 if self.adapter else 5e-7), "preferences move a model little by little"
        if self.adapter:
            return 2e-4, "usual for adapters, whose matrices begin at zero"
        if task == "sequence_to_sequence":
            return 1e-4, "usual for encoder and decoder"
        if task == "language_modelling":
            rate = 5e-5 if count < 1e9 else 2e-5 if count < 1e10 else 1e-5
            return rate, f"usual for a model {size}"
        return (1e-4 if count < 5e7 else 5e-5), f"usual for {task} with a model {size}"


_NOTHING = object()


def _given(values: Mapping[str, Any], name: str) -> Any:
    """The value at a dotted name, _NOTHING where nobody gave one."""
    found: Any = values
    for part in name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return _NOTHING
        found = found[part]
    return found


def _given_any(values: Mapping[str, Any], *names: str) -> bool:
    return any(_given(values, name) is not _NOTHING for name in names)


def _power_above(number: float) -> int:
    return 1 << max(0, math.ceil(math.log2(max(1.0, number))))


def _power_below(number: float) -> int:
    return 1 << max(0, math.floor(math.log2(max(1.0, number))))


def _number(count: float) -> str:
    """134.5M, 1.1B, 512."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.4g}{unit}"
    return f"{count:.0f}"


def _gib(number: float) -> str:
    return f"{number / 2**30:.3g} GiB"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
