"""How GPUs and runs are watched: sampling, prices, alerts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from drumline.config.section import Section

Severity = Literal["info", "warning", "critical"]
AlertMetric = Literal[
    "temperature_c",
    "heat_margin_c",
    "memory_temperature_c",
    "memory_share",
    "utilization",
    "sm_active",
    "use",
    "idle",
    "throttled",
    "power_capped",
    "power_w",
    "health_failures",
    "health_warnings",
    "xid_failures",
    "xid_warnings",
    "step_age_s",
    "overdue_s",
    "loss_not_finite",
    "loss_rise",
    "failed",
    "disk_room",
    "energy_j",
    "cost",
    "driver_age_s",
]
"""Values that an alert may look at; monitor.alert_rules.METRICS says what they are."""
ShippedAlert = Literal[
    "temperature",
    "throttling",
    "memory_nearly_full",
    "idle",
    "low_use",
    "health_failed",
    "health_warning",
    "xid_failed",
    "xid_warning",
    "no_step",
    "loss_not_finite",
    "loss_rising",
    "run_failed",
    "disk_filling",
    "over_budget",
    "driver_silent",
]
"""Rules that are there without being asked for, see monitor.alert_rules."""


class AlertRule(Section):
    """One alert: a value that stays past a limit for some time."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$", description="Its name; one of the shipped rules is replaced.")
    metric: AlertMetric = Field(description="A value of a GPU, of a run or of the machine, see docs/monitor.md.")
    above: float | None = Field(None, description="It fires while the value is greater.")
    below: float | None = Field(None, description="It fires while the value is smaller.")
    for_s: NonNegativeFloat = Field(0.0, description="How long that must hold before it fires.")
    severity: Severity = Field("warning", description="How bad it is.")


class EmailSink(Section):
    """A mail server that takes alerts."""

    host: str = Field(description="Name of the SMTP server.")
    port: PositiveInt = Field(587, description="Its port.")
    security: Literal["starttls", "tls", "none"] = Field("starttls", description="How the connection is encrypted.")
    username: str | None = Field(None, description="Who logs in; none: nobody.")
    password_env: str | None = Field(
        None, description="Name of the environment variable that holds the password, which is kept nowhere else."
    )
    sender: str = Field(description="From whom.")
    recipients: Annotated[list[str], Field(min_length=1)] = Field(description="To whom.")


class AlertsConfig(Section):
    """What raises an alarm, and who is told. Alerts are always lines in the log and, of a run, in events.jsonl."""

    enabled: bool = Field(True, description="Whether alerts are looked for.")
    rules: list[AlertRule] = Field(default=[], description="Further rules, or other limits for shipped ones.")
    disabled: list[ShippedAlert] = Field(default=[], description="Names of shipped rules that are not looked at.")
    min_severity: Severity = Field("warning", description="What webhook, e-mail and file are told of at least.")
    webhook_env: str | None = Field(
        None,
        description="Name of the environment variable that holds the URL which gets each alert as JSON, by POST; who "
        "knows such a URL can use it, so that it is kept nowhere else.",
    )
    email: EmailSink | None = Field(None, description="Mail server and addresses.")
    file: Path | None = Field(None, description="File that gets a line of JSON an alert.")


class MonitorConfig(Section):
    """What is watched while something runs, and what it costs."""

    record: bool | Literal["auto"] = Field(
        "auto",
        description="Whether each machine of a run has a process that records its GPUs into metrics.jsonl and looks "
        "for alerts. auto: where the run is on GPUs.",
    )
    every_s: PositiveFloat = Field(1.0, description="Seconds between two looks at the GPUs.")
    record_every_s: PositiveFloat = Field(15.0, description="Seconds between two records of a run, each of all looks.")
    price_per_kwh: NonNegativeFloat = Field(0.0, description="Price of energy, in any currency.")
    price_per_gpu_hour: NonNegativeFloat = Field(0.0, description="Price of having a GPU, whatever it does.")
    budget: PositiveFloat | None = Field(None, description="What a run may cost before an alert; none: anything.")
    no_step_s: PositiveFloat = Field(
        900.0, description="Longest time without a log line, beyond the usual time between two, before an alert."
    )
    alerts: AlertsConfig = AlertsConfig()
