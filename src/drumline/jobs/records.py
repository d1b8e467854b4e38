"""What a job is: its work, what it needs, where it stands. Plain values, without effects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal["queued", "starting", "running", "stopping", "succeeded", "failed", "cancelled", "timed_out", "lost"]
END_STATES: frozenset[State] = frozenset({"succeeded", "failed", "cancelled", "timed_out", "lost"})
ACTIVE_STATES: frozenset[State] = frozenset({"starting", "running", "stopping"})
"""A job in one of these holds leases and, but for moments, a process."""

JobKind = Literal["train", "finetune", "infer"]
OutputForm = Literal["jsonl", "csv", "parquet"]


@dataclass(frozen=True)
class Resources:
    """What a job needs of one machine. A device is a GPU, or on a machine without any a slot for a process."""

    devices: int | Literal["auto"] = "auto"
    """auto: all that are free when it starts, one at least."""
    min_devices: int | None = None
    """With max_devices: an elastic job, whose number of devices follows the queue, by checkpoint and resume."""
    max_devices: int | None = None
    memory_bytes: int | None = None
    """Free memory that each of its GPUs must have."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the only GPUs that it may be given; empty: any."""
    priority: int = 0
    """-100 to 100; the higher goes first, and may stop a lower one that is preemptible."""
    time_limit_s: float | None = None
    """Seconds that its processes may run, over all attempts."""
    retries: int = 0
    """How often it starts again by itself after a failure that another try may cure."""
    preemptible: bool = True

    @property
    def is_elastic(self) -> bool:
        """Whether its number of devices may change while it runs."""
        return self.min_devices is not None

    @property
    def least(self) -> int:
        """Devices without which it does not start."""
        if self.min_devices is not None:
            return self.min_devices
        return 1 if self.devices == "auto" else self.devices

    @property
    def most(self) -> int | None:
        """Devices beyond which it takes none; None: as many as there are."""
        if self.max_devices is not None:
            return self.max_devices
        return None if self.devices == "auto" else self.devices


@dataclass(frozen=True)
class Work:
    """What a job does, in the words of the command that does it."""

    kind: JobKind
    settings: Mapping[str, Any]
    """train: a RunConfig as YAML has it. finetune: dotted settings beside those that are chosen from model and data.
    infer: an InferenceConfig without model, files and output."""
    model: str | None = None
    """finetune, infer: folder, or the hub name that was allowed."""
    model_name: str | None = None
    """As the request called it."""
    data: tuple[str, ...] = ()
    """finetune, infer: files. Texts that came with a request lie in the job's own folder."""
    parallel: Literal["auto", "data_parallel", "distributed"] = "auto"
    export: bool = False
    """Write a Hugging Face folder when it is done."""
    output: OutputForm = "jsonl"
    """infer: what the answers are written as."""
    defaults_version: int | None = None
    """Of the defaults that it took where it said nothing; 0: nobody had set any. None: it was not noted."""


@dataclass(frozen=True)
class Job:
    """A job as the store has it. Times are seconds since 1970."""

    id: str
    owner: str
    work: Work
    resources: Resources
    created: float
    state: State = "queued"
    reason: str | None = None
    """A code; see states.REASONS."""
    message: str = ""
    fix: str = ""
    name: str = ""
    user_id: str | None = None
    """A label of the request's own."""
    tags: tuple[str, ...] = ()
    training_type: str | None = None
    """As the request said: dataparallel, distributed, auto."""
    node: str = ""
    """The machine on which its files lie and its processes run."""
    retry_of: str | None = None
    version: int = 0
    """Grows with each change; a change that was made of an older one is refused."""
    queued_since: float = 0.0
    started: float | None = None
    """Of its first attempt."""
    ended: float | None = None
    attempt: int = 0
    """Its present or last attempt; 0: none yet."""
    failures: int = 0
    """Attempts that failed; compared with resources.retries."""
    interruptions: int = 0
    """Attempts in a row that nobody of ours ended, each shortly after it began."""
    devices: tuple[str, ...] = ()
    """UUIDs of the GPUs (or slots) that it holds; of an ended one those it held last."""
    attempt_began: float | None = None
    used_s: float = 0.0
    """Seconds that attempts before the present one ran."""
    pid: int | None = None
    """Of the process that keeps the attempt, while it runs."""
    pid_began: float | None = None
    stop: Literal["cancel", "preempt", "resize", "time_limit"] | None = None
    """Why it is stopping."""
    stop_asked: float | None = None
    waits_for: str = ""
    """Of a queued one: why it does not run yet."""
    progress: Mapping[str, Any] = field(default_factory=dict)
    """step, num_steps, loss, rates, … as monitor.runs.RunFacts has them; rows and rates of one that predicts. Written
    about once a second."""
    result: Mapping[str, Any] = field(default_factory=dict)
    """Of an ended one: success, model_path, training_time, best_loss, gpu_stats, and usage for accounting; of one that
    predicts output_path, rows, rows_failed and summary too."""

    @property
    def has_ended(self) -> bool:
        """Whether its state is final."""
        return self.state in END_STATES


@dataclass(frozen=True)
class Lease:
    """One device that one job holds."""

    device: str
    """UUID, or `cpu:<number>`."""
    node: str
    job_id: str
    since: float
    expires: float
    """Renewed while its job is looked after. One that has run out is held all the same, until the job has ended."""


@dataclass(frozen=True)
class Device:
    """One device that jobs can be given."""

    id: str
    """UUID of a GPU; `cpu:<number>` of a slot."""
    memory_bytes: int | None = None
    """Free memory, but for what a job of ours holds."""
    unusable: str | None = None
    """Why no job is started on it: sick, taken by a stranger, excluded."""
    group: int = 0
    """Devices with the same number are connected best; a job is put into one group where it fits."""


@dataclass(frozen=True)
class Inventory:
    """The devices of one machine at one moment."""

    node: str
    time: float
    devices: tuple[Device, ...] = ()
    has_gpus: bool = False
