"""Settings of the service, in one schema for its YAML file, --set and Python."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from drumline.config.section import Fraction, Section

MIB = 2**20


class AccessConfig(Section):
    """Who may ask for what."""

    keys: Literal["auto", "required", "off"] = Field(
        "auto",
        description="Whether requests need an API key (see drumline tokens). auto: unless the service is bound to "
        "loopback; off is refused elsewhere.",
    )
    requests_per_minute: PositiveInt = Field(600, description="Reading requests a key, or without keys an address.")
    changes_per_minute: PositiveInt = Field(60, description="POST and DELETE requests a key, or an address.")
    session_hours: PositiveFloat = Field(12.0, description="How long a login of the web page lasts.")
    audit_days: PositiveFloat = Field(
        365.0, description="How long it is known who did what (GET /audit); what is older is removed."
    )
    allowed_hosts: list[str] = Field(
        default=["localhost", "127.0.0.1", "[::1]"],
        description="Host names under which it answers who has no key, besides the one that it is bound to; * is any.",
    )
    allowed_origins: list[str] = Field(
        default=[], description="Other sites whose pages may call the API from a browser (CORS)."
    )


class FilesConfig(Section):
    """Which files and models a request may name."""

    data_roots: list[Path] = Field(
        default=[], description="Folders below which dataset_config.path may lie, besides data/ of the data directory."
    )
    model_roots: list[Path] = Field(
        default=[],
        description="Folders below which models may be named by path, besides models/ of the data directory.",
    )
    model_names: dict[str, Path] = Field(
        default={}, description="Names of models, each with its folder, as gpt2: /models/gpt2. Looked up first."
    )
    hub_models: list[str] = Field(
        default=[], description="Names of models that may be fetched from the hub; * in a name stands for anything."
    )


class LimitsConfig(Section):
    """How much one request, one owner and one operation may take."""

    max_body_bytes: PositiveInt = Field(32 * MIB, description="Largest body of a request.")
    max_texts: PositiveInt = Field(100_000, description="Texts in one request.")
    max_queued: PositiveInt = Field(10_000, description="Jobs of one owner that may wait.")
    max_user_priority: int = Field(
        50, ge=-100, le=100, description="Highest priority that others than admins may ask for; theirs may be 100."
    )
    gpu_operation_s: PositiveFloat = Field(
        20.0, description="Seconds after which an answer about GPUs comes without what the driver has not said."
    )
    gpu_test_s: PositiveFloat = Field(120.0, description="Seconds that POST /multigpu/gpu/test may take.")
    max_streams: PositiveInt = Field(1000, description="Streams of events that are open at once.")
    max_wait_s: PositiveFloat = Field(3600.0, description="Longest that ?wait=true holds a call.")


class SchedulingConfig(Section):
    """Which job runs next, and on what."""

    cpu_slots: PositiveInt | None = Field(
        None, description="Processes of jobs at once on a machine without GPU; none: its cores."
    )
    exclude: list[str] = Field(default=[], description="GPUs that no job is given, by UUID or index.")
    ageing_s: PositiveFloat = Field(600.0, description="Seconds of waiting that count as one step of priority.")
    fair_share_hours: PositiveFloat = Field(
        24.0, description="Half-life of what an owner has used, by which equal priorities are ordered."
    )
    preempt: bool = Field(
        True, description="Whether a job of higher priority may stop a preemptible one, to go on later."
    )
    least_run_s: NonNegativeFloat = Field(
        60.0,
        description="Seconds that a job runs before it is preempted or its size changed; twice that in its second "
        "attempt, and so on up to ten times.",
    )
    stop_grace_s: PositiveFloat = Field(120.0, description="Seconds for saving before a job that must stop is killed.")
    lease_s: PositiveFloat = Field(30.0, description="Seconds that a lease lasts without being renewed.")
    cost_per_gpu_hour: NonNegativeFloat = Field(0.0, description="For the costs that are shown.")
    currency: str = Field("EUR", max_length=8, description="Of cost_per_gpu_hour.")


class ServiceConfig(Section):
    """Everything that `drumline serve` can be told."""

    host: str = Field("127.0.0.1", description="Address that is listened on.")
    port: int = Field(8000, ge=0, le=65535, description="0: any that is free.")
    prefix: str = Field("", pattern=r"^(/[A-Za-z0-9._~-]+)*$", description="Before every path, as /api/v1.")
    data_dir: Path = Field(
        Path("drumline-data"), description="Jobs, uploaded texts, and the store unless database says other."
    )
    database: str | None = Field(
        None,
        description="SQLAlchemy URL, as postgresql+psycopg://user@host/name; a password is better kept in a file that "
        "libpq reads. None: SQLite in the data directory.",
    )
    node: str | None = Field(
        None, description="Name of this machine in the store; none: its host name. Services on one machine share it."
    )
    access: AccessConfig = Field(AccessConfig(), description="Who may ask for what.")
    files: FilesConfig = Field(FilesConfig(), description="Which files and models a request may name.")
    limits: LimitsConfig = Field(LimitsConfig(), description="How much a request may take.")
    scheduling: SchedulingConfig = Field(SchedulingConfig(), description="Which job runs next.")
    memory_fraction: Fraction = Field(1.0, description="Share of each GPU's memory that a job's process may allocate.")
