"""What is told of GPUs: their state, health, and who has them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from drumline.service.views import View

Status = Literal["ok", "degraded", "failing"]


class Check(View):
    """One thing that was looked at."""

    name: str = Field(description="store, supervisor, nodes, disk, driver or gpus.", examples=["store"])
    status: Status
    message: str = Field("", description="What is wrong, or what is there.", examples=["sqlite answers in 1 ms"])
    fix: str = ""


class MachineHealth(View):
    """Whether the service does its work, and what of it is degraded and why."""

    status: Status = Field(description="The gravest of the checks.")
    checks: list[Check]
    gpus: int = Field(description="GPUs that the driver tells of.", examples=[8])
    usable_gpus: int = Field(description="Of them those that a job can be given, or holds.", examples=[7])
    degraded: list[str] = Field(description="Names of the checks that are not ok.", examples=[["gpus"]])


class FindingView(View):
    """One thing that is wrong with a GPU."""

    code: str = Field(examples=["row_remap_pending"])
    status: Literal["ok", "warn", "fail"]
    message: str
    action: str


class GpuHealth(View):
    """Whether a GPU is fit to be used."""

    status: Literal["ok", "warn", "fail", "unknown"] = Field(examples=["ok"])
    reason: str = ""
    findings: list[FindingView] = Field([], description="The gravest first.")


class Holder(View):
    """Who has a GPU."""

    kind: Literal["job", "stranger"]
    job_id: str | None = Field(None, description="Of a job that you may see.")
    owner: str | None = None
    since: str | None = None
    message: str = Field(examples=["held by job-20260102-030405-0a1b2c3d4e"])


class GpuProcessView(View):
    """One process on a GPU; told to admins."""

    pid: int = Field(examples=[4711])
    kind: str = Field(description="compute, graphics, or compute+graphics.")
    name: str | None = None
    user: str | None = None
    memory_bytes: int | None = None
    ours: bool = Field(description="Whether a training of this service started it.")


class GpuStats(View):
    """One GPU at one moment; null where nobody says."""

    gpu_id: int = Field(description="As nvidia-smi counts; a MIG instance has its GPU's.", examples=[0])
    uuid: str = Field(examples=["GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"])
    name: str = Field(examples=["NVIDIA H100 80GB HBM3"])
    gpu_utilization: float | None = Field(
        None, description="Percent of the last second with a kernel.", examples=[97.0]
    )
    memory_utilization: float | None = Field(None, description="Percent of its memory that is in use.", examples=[61.5])
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: float | None = Field(None, examples=[54.0])
    slowdown_temperature_c: float | None = None
    power_w: float | None = Field(None, examples=[612.0])
    power_limit_w: float | None = None
    fan: float | None = Field(None, description="0 to 1.")
    sm_clock_mhz: int | None = None
    throttled_by: list[str] | None = None
    activity: str = Field("unknown", description="idle, working, communicating, waiting or unknown.")
    activity_reason: str = ""
    health: GpuHealth
    available: bool = Field(description="Whether a job could be given it now.")
    unavailable_because: str | None = Field(None, description="Why not.")
    held_by: Holder | None = None
    processes: list[GpuProcessView] | None = Field(None, description="Null where you may not see them, or nobody says.")
    sampled_at: str = Field(examples=["2026-01-02T03:04:05.678Z"])


class StatsView(View):
    """All GPUs of the machine."""

    available_gpus: list[int] = Field(description="gpu_id of those that a job could be given now.", examples=[[0, 1]])
    gpu_info: list[GpuStats]
    gpu_count: int = Field(examples=[2])
    gpu_source: str = Field(description="Where this is known from, or why there is nothing.", examples=["nvml 580.159"])
    late: str | None = Field(None, description="Why nothing newer is known: the driver did not answer in time.")
    total_memory_bytes: int | None = None
    used_memory_bytes: int | None = None
    power_w: float | None = Field(None, description="Of all GPUs together.")
    devices_free: int = Field(description="Devices that a job could be given now; on a machine without GPU, slots.")
    devices_held: int = Field(description="Devices that jobs hold.")


class TestView(View):
    """What one test said of one GPU, of a pair, or of all together."""

    __test__ = False

    name: str = Field(examples=["memory"])
    uuid: str
    others: list[str] = Field([], description="UUIDs of the other GPUs that took part.")
    status: Literal["ok", "warn", "fail"]
    value: float | None = None
    unit: str = ""
    expected: float | None = Field(None, description="The least that is right.")
    message: str = ""
    fix: str | None = None


class GpuTestView(View):
    """What the tests found."""

    success: bool = Field(description="Whether no test failed.")
    tested: list[str] = Field(description="UUIDs of the GPUs that were tested.")
    skipped: dict[str, str] = Field(description="By UUID or name, why a GPU was not tested.")
    results: list[TestView]
    message: str = Field(examples=["this machine has no GPU to test (no NVIDIA driver)"])
    seconds: float


class GpuAdvice(View):
    """What is to be done about one GPU, or about how trainings use all of them."""

    subject: str = Field(description="UUID of a GPU, or machine.", examples=["machine"])
    level: Literal["info", "warn", "fail"]
    message: str
    action: str = ""
    source: str = Field("", description="Whose rule this is, or the run that was measured.")


class RecommendationsView(View):
    """How this machine's GPUs are used best."""

    recommended_method: Literal["dataparallel", "distributed", "auto"] = Field(
        description="Path under /multigpu/training that fits this machine."
    )
    recommended_config: dict[str, Any] = Field(
        description="For POST /multigpu/config.", examples=[{"use_multi_gpu": True, "backend": "nccl"}]
    )
    reasons: dict[str, str] = Field(description="By field, why.")
    usable_gpus: list[int]
    advice: list[GpuAdvice]
    gpu_source: str
