"""What a request for a job may say, and who asks. Sizes are bounded here; what may be named is intake's matter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from drumline.config.section import Section

Role = Literal["viewer", "user", "admin"]
Label = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]*$")]
Text = Annotated[str, Field(max_length=10_000_000)]
Texts = Annotated[list[Text | dict[str, Any]], Field(fail_fast=True)]
"""Rows. The first that is wrong ends the look at them: an error of each of a million would take gigabytes."""
Chosen = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00-\x1f\x7f]*$")]
Uuid = Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9/-]+$")]
ChosenPaths = Annotated[list[Chosen], Field(max_length=1000, fail_fast=True)]


@dataclass(frozen=True)
class Who:
    """Who asks."""

    owner: str
    """Whose jobs are seen and changed; `*` of a viewer that reads all."""
    role: Role = "user"
    """viewer: changes nothing; user: its owner's jobs; admin: all jobs."""
    key_id: str | None = None

    @property
    def name(self) -> str:
        """Owner, and the key by which it came if there was one: what the audit log calls who did something."""
        return self.owner if self.key_id is None else f"{self.owner} ({self.key_id})"


class Request(Section):
    """Base of what comes from outside: a number is a number, never a text or truth value that could be read as one."""

    model_config = ConfigDict(strict=True)


class ResourcesRequest(Request):
    """What a job needs of the machine."""

    devices: Annotated[int, Field(ge=1, le=100_000)] | Literal["auto"] = Field(
        "auto", description="GPUs, or on a machine without any processes; auto: all that are free when it starts."
    )
    min_devices: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        None, description="With max_devices: its number follows the queue, by checkpoint and resume."
    )
    max_devices: Annotated[int, Field(ge=1, le=100_000)] | None = Field(None, description="See min_devices.")
    memory_bytes: Annotated[int, Field(ge=1, le=2**62)] | None = Field(
        None, description="Free memory that each of its GPUs must have."
    )
    gpus: Annotated[list[Uuid], Field(max_length=1024)] = Field(
        default=[], description="UUIDs of the only GPUs that it may be given; it waits for them. Empty: any."
    )
    priority: Annotated[int, Field(ge=-100, le=100)] = Field(0, description="The higher goes first.")
    time_limit_s: Annotated[float, Field(gt=0, le=1e9)] | None = Field(
        None, description="Seconds that it may run, over all attempts."
    )
    retries: Annotated[int, Field(ge=0, le=100)] = Field(
        0, description="How often it starts again by itself after a failure that another try may cure."
    )
    preemptible: bool = Field(True, description="Whether a job of higher priority may stop it, to go on later.")


class JobRequest(Request):
    """A job that somebody asks for."""

    kind: Literal["train", "finetune", "infer"] = Field(
        "finetune", description="A whole RunConfig, or a model and data to learn from, or a model and rows to answer."
    )
    config: dict[str, Any] | None = Field(None, description="train: a RunConfig, as a recipe has it.")
    model_name: Chosen | None = Field(
        None,
        description="finetune, infer: a name of the configured table, a folder, or a name on the hub that is allowed.",
    )
    texts: Texts | None = Field(
        None, description="finetune: the rows to learn from, infer: those to answer; each a text or named values."
    )
    path: Chosen | ChosenPaths | None = Field(
        None, description="finetune, infer: files or folders instead of texts, below the configured roots."
    )
    max_length: Annotated[int, Field(ge=1, le=2**31)] | None = Field(
        None, description="finetune: most tokens of a row; none: by the rows."
    )
    columns: dict[str, str] = Field(
        default={},
        description="finetune: names that the task asks for, and the data's own. infer: text, text_pair, label, id.",
    )
    settings: dict[str, Any] = Field(
        default={},
        description="finetune: short names as epochs and learning_rate, or the schema's own (train.lr). infer: those "
        "of an InferenceConfig (batching.tokens) beside its task.",
    )
    task: dict[str, Any] | None = Field(
        None,
        description="infer: what is asked, by kind: generate, choose, classify, token_classify, embed or score.",
    )
    output: Literal["jsonl", "csv", "parquet"] = Field("jsonl", description="infer: what the answers are written as.")
    parallel: Literal["auto", "data_parallel", "distributed"] = Field(
        "auto", description="data_parallel: one process with a thread a GPU; else a process a GPU."
    )
    resources: ResourcesRequest | None = Field(None, description="None: as the defaults say.")
    name: Annotated[str, Field(max_length=200, pattern=r"^[^\x00-\x1f\x7f]*$")] = Field("", description="For people.")
    tags: Annotated[list[Label], Field(max_length=50)] = Field(default=[], description="For people, and to find it by.")
    user_id: Annotated[int, Field(ge=-(2**63), lt=2**63)] | Label | None = Field(
        None, description="A label of the caller's own."
    )
    training_type: Label | None = Field(None, description="As the caller named it: dataparallel, distributed, auto.")
