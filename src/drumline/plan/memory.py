"""What training takes of a device's memory, by arithmetic, before anything is put there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from drumline.config.parallel import DdpParallel, FsdpParallel
from drumline.config.problem import listed
from drumline.config.schema import RunConfig
from drumline.config.train import TrainConfig
from drumline.hardware.records import Gpu

GIB = 1 << 30

RESERVE_BYTES = 2 * GIB
"""Left out of every plan for what is no tensor of ours: CUDA's context, NCCL's buffers, workspaces of cuBLAS."""
FRAGMENTATION = 0.1
"""Share of what is left that the allocator may hold in pieces too small to be used."""
UNKNOWN_ACTIVATIONS = 0.5
"""Share of the usable memory that the state may take where nothing is known of the activations."""
GATHERED_UNITS = 3
"""Units of parameters that FSDP holds whole at a time: the one in use, the one gathered ahead, and one's gradients."""
HALF = ("bf16", "fp16")

INT8_BYTES = 1 + 4 / 64
"""Of one moment in 8 bits: its code, and its share of the scale of the smallest block."""


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model before a run, as torch's side counts it."""

    num_parameters: int
    num_trainable: int
    parameter_bytes: int
    """Of all parameters, in the types that they have."""
    buffer_bytes: int
    block_bytes: int
    """Of the parameters of the largest block that the model repeats, or of all outside such blocks if that is more."""
    activation_bytes: int | None = None
    """What one sample's forward pass keeps for the backward pass; None where not known."""
    transient_bytes: int = 0
    """What a sample takes for a moment at the backward pass's beginning: the gradient of the largest kept tensor, under
    autocast in half precision besides; with activation checkpointing also what one block computes again."""
    fixed_bytes: int = 0
    """What a forward pass keeps whatever the number of samples: under autocast the weights in half precision."""
    note: str = ""
    """Why activation_bytes is None, or what it leaves out."""

    def to_json(self) -> dict[str, Any]:
        """As a child process prints them."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ModelFacts:
        """What `to_json` gave."""
        return cls(**values)


class Need(NamedTuple):
    """Bytes that training takes of one device."""

    state: int
    """Parameters, gradients, optimizer, average and buffers, or this device's shard of them."""
    gathered: int
    """Parameters that FSDP holds whole for the moment."""
    activations: int | None
    """Of one micro-batch; None where not known."""
    per_trained: float
    """Bytes of state for each trained parameter, over all its shards."""
    shards: int = 1

    @property
    def total(self) -> int:
        """What is known of it."""
        return self.state + self.gathered + (self.activations or 0)


class Room(NamedTuple):
    """Memory of the device that has the least."""

    whole: int
    usable: int
    """What a plan may fill; see RESERVE_BYTES and FRAGMENTATION."""


def room(gpus: tuple[Gpu, ...], memory_fraction: float) -> Room | None:
    """The room on the smallest of these GPUs; None without GPU, or where one does not say what it has."""
    sizes = [gpu.memory_bytes for gpu in gpus]
    known = [size for size in sizes if size is not None]
    if not sizes or len(known) < len(sizes):
        return None
    least = min(known)
    free = min(least * memory_fraction, least - RESERVE_BYTES)
    return Room(least, int(max(0.0, free) * (1 - FRAGMENTATION)))


def replicated(facts: ModelFacts, config: RunConfig, precision: str, micro_batch: int) -> Need:
    """What a device takes that has the whole model: single, data_parallel and ddp."""
    parallel = config.parallel
    copied = isinstance(parallel, DdpParallel) and not parallel.gradient_as_bucket_view
    width = _width(facts)
    per_trained = trained_bytes(config.train, width) + (width if copied else 0.0)
    frozen = width * (facts.num_parameters - facts.num_trainable)
    if precision in HALF and facts.activation_bytes is None:
        # Autocast's copies of the weights, which the count of the activations has where there is one.
        per_trained, frozen = per_trained + 2, frozen + 2 * (facts.num_parameters - facts.num_trainable)
    state = per_trained * facts.num_trainable + frozen + 2 * facts.buffer_bytes  # one copy to put them back
    return Need(int(state), 0, activations(facts, micro_batch, facts.fixed_bytes), per_trained)


def sharded(facts: ModelFacts, config: RunConfig, precision: str, micro_batch: int, num_processes: int) -> Need:
    """What a device takes under fsdp, over all processes or as many as parallel.shard_size says."""
    settings = config.parallel if isinstance(config.parallel, FsdpParallel) else FsdpParallel()
    shards = min(settings.shard_size or num_processes, num_processes)
    width = _width(facts)
    per_trained = trained_bytes(config.train, width)
    whole = per_trained * facts.num_trainable + width * (facts.num_parameters - facts.num_trainable)
    state = 0.0 if settings.offload else whole / shards
    # Units are gathered in the run's precision, so that autocast has nothing to copy; gradients stay as they are.
    narrow = 2 / width if precision in HALF and width > 2 else 1.0
    gathered = facts.block_bytes * ((GATHERED_UNITS - 1) * narrow + 1)
    kept = activations(facts, micro_batch)
    return Need(int(state) + 2 * facts.buffer_bytes, int(gathered), kept, per_trained, shards)


def activations(facts: ModelFacts, micro_batch: int, fixed: int = 0) -> int | None:
    """Of one micro-batch at its peak, the beginning of the backward pass; None where not known."""
    if facts.activation_bytes is None:
        return None
    return micro_batch * (facts.activation_bytes + facts.transient_bytes) + fixed


def trained_bytes(train: TrainConfig, width: float) -> float:
    """Bytes for each trained parameter of `width` bytes: itself, gradient, optimizer state and average.

    AdamW has two moments, SGD one where it has momentum; an average is in float32 or wider.
    """
    optimizer = train.optimizer
    if optimizer.name == "adamw":
        moments = 2 * {"same": width, "int8": INT8_BYTES}.get(optimizer.state_precision, 2.0)
    else:
        moments = width if optimizer.momentum else 0.0
    average = 0.0 if train.averaging is None else max(width, 4.0)
    return 2 * width + moments + average


def fits(need: Need, there: Room) -> bool:
    """Whether that much fits; where activations are not known, the state may take UNKNOWN_ACTIVATIONS of the room."""
    share = 1.0 if need.activations is not None else UNKNOWN_ACTIVATIONS
    return need.total <= there.usable * share


def described(facts: ModelFacts, need: Need) -> str:
    """The sum in words: '124,439,808 parameters x 16 bytes = 1.9 GiB and 12 GiB of activations'."""
    parts = [gib(need.state)]
    if need.shards > 1 or need.gathered:
        parts = [f"over {need.shards} shards {gib(need.state)} each", f"{gib(need.gathered)} of gathered blocks"]
    else:
        frozen = facts.num_parameters - facts.num_trainable
        sums = f"{facts.num_trainable:,} {'trained ' if frozen else ''}parameters x {need.per_trained:g} bytes"
        parts = [f"{sums}{f' and {frozen:,} frozen ones' if frozen else ''} = {gib(need.state)}"]
    if need.activations is not None:
        parts.append(f"{gib(need.activations)} of activations{f' ({facts.note})' if facts.note else ''}")
    return listed(parts, "and")


def verdict(facts: ModelFacts, need: Need, there: Room) -> str:
    """Whether it fits, with the numbers."""
    does, planned = fits(need, there), f"{gib(there.whole)} ({gib(there.usable)} of them to be planned with)"
    if need.activations is not None:
        return f"{described(facts, need)} {f'fit {gib(there.whole)}' if does else f'do not fit {planned}'}"
    left = f"{'half or more' if does else 'less than half'} of {planned}"
    return f"{described(facts, need)} leave {left} to activations, which are not known ({facts.note or 'not counted'})"


def gib(number: float) -> str:
    """Bytes for people: '1.9 GiB', '80 GiB', '0.3 MiB'."""
    for unit, size in (("GiB", GIB), ("MiB", 1 << 20)):
        if number >= size / 10 or unit == "MiB":
            value = number / size
            return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    raise AssertionError("every number has a unit")


def _width(facts: ModelFacts) -> float:
    """Mean bytes of a parameter."""
    return facts.parameter_bytes / max(1, facts.num_parameters)
