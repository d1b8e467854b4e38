"""What is told of resources: devices, leases, the queue, strangers, the disk, and what was done about them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from drumline.service.routes.multigpu.gpu_views import Holder, StatsView
from drumline.service.views import View


class DeviceView(View):
    """One device that jobs can be given: a GPU, or on a machine without any a slot for a process."""

    id: str = Field(description="UUID, or cpu:<number>.", examples=["cpu:0"])
    gpu_id: int | None = Field(None, description="As nvidia-smi counts.")
    free_memory_bytes: int | None = None
    group: int = Field(description="Devices with the same number are connected best.")
    usable: bool
    unusable_because: str | None = None
    held_by: Holder | None = None


class LeaseView(View):
    """One device that a job holds."""

    node: str = Field(description="The machine of the device.", examples=["trainer-1"])
    device: str = Field(examples=["cpu:0"])
    job_id: str | None = Field(description="Null where you may not see the job.")
    owner: str | None = None
    since: str
    expires: str = Field(description="Renewed all the time while somebody looks after the job.")
    run_out: bool = Field(
        description="Nobody has renewed it in time. It is held all the same, until its job has ended.", examples=[False]
    )


class QueuedView(View):
    """One job that waits."""

    id: str = Field(examples=["job-20260102-030405-0a1b2c3d4e"])
    position: int = Field(description="Its place in the queue, from 1.", examples=[1])
    name: str = ""
    owner: str
    priority: int
    devices: int | str
    waits_for: str = Field(description="Why it does not run yet.", examples=["waits for 4 GPUs: 3 are free"])
    queued_s: float = Field(description="Seconds that it has waited.")


class QueueView(View):
    """Who waits for devices of this machine."""

    total: int = Field(description="All jobs that wait, also those that you may not see.", examples=[2])
    items: list[QueuedView] = Field(
        description="Those that you may see, in the order in which the scheduler looks at them; at most 200."
    )


class StrangerView(View):
    """A GPU that somebody outside of this service uses."""

    gpu_id: int = Field(examples=[1])
    uuid: str
    message: str = Field(examples=["taken by a process outside of this service"])


class DiskView(View):
    """Room for runs, models and data."""

    total_bytes: int | None = Field(None, examples=[2000000000000])
    free_bytes: int | None = None


class ResourcesStatusView(View):
    """Everything that jobs share."""

    node: str = Field(description="This machine's name.", examples=["trainer-1"])
    has_gpus: bool
    devices: list[DeviceView]
    leases: list[LeaseView] = Field(description="Of this machine; and of others that do not answer any more.")
    jobs: dict[str, int] = Field(description="How many there are by state, of those that you may see.")
    queue: QueueView
    strangers: list[StrangerView]
    disk: DiskView
    gpu_source: str
    late: str | None = Field(None, description="Why nothing newer is known of the GPUs.")


class CleanupView(View):
    """What was given back."""

    leases_released: list[str] = Field(description="Devices that no job used any more.", examples=[["cpu:0"]])
    processes_ended: list[int] = Field(description="Processes that ended jobs had left.")
    processes_stuck: list[int] = Field(description="Those that could not be ended: a driver or a disk holds them.")
    removed: int = Field(description="Folders and files.")
    freed_bytes: int
    jobs_lost: list[str] = Field(
        description="Jobs of machines that were given up.", examples=[["job-20260102-030405-0a1b2c3d4e"]]
    )
    notes: list[str] = Field(description="What stays, and why.")


class RunningView(View):
    """One job that runs."""

    id: str = Field(examples=["job-20260102-030405-0a1b2c3d4e"])
    name: str = ""
    state: str
    devices: list[str]
    step: int | None = None
    num_steps: int | None = None
    loss: float | None = None
    units_per_s: float | None = None
    unit: str | None = None
    mfu: float | None = None
    eta_s: float | None = None


class MonitorView(View):
    """What is in use now."""

    gpus: StatsView
    running: list[RunningView] = Field(description="Those that you may see.", examples=[[]])


class OptimumView(View):
    """What the measured runs of one model on so many devices speak for."""

    model: str
    device: Literal["cuda", "cpu"] | str
    num_devices: int
    settings: dict[str, Any] = Field(
        description="Of the fastest run, by dotted names; training_config takes them.",
        examples=[{"train.micro_batch": 8, "train.precision": "bf16"}],
    )
    units_per_s: float
    unit: str
    measured_by: str = Field(description="The run that was the fastest.", examples=["job-20260102-030405-0a1b2c3d4e"])
    compared: list[str] = Field(description="All runs that were looked at, the fastest first.")
    reason: str


class OptimizeView(View):
    """Settings that measured runs speak for; where nothing was measured there are none."""

    recommendations: list[OptimumView]
    runs: int = Field(description="How many ended runs have measured something.", examples=[12])
    message: str = Field(examples=["12 runs measured this"])


class ManageView(View):
    """What was done; one of the three is there."""

    action: Literal["cleanup", "monitor", "optimize"] = Field(examples=["cleanup"])
    cleanup: CleanupView | None = None
    monitor: MonitorView | None = None
    optimize: OptimizeView | None = None
