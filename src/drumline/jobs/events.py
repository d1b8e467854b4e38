"""What happens to a job, and what is then to be done: the words of its state machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Stop = Literal["cancel", "preempt", "resize", "time_limit"]


@dataclass(frozen=True)
class Granted:
    """A queued job gets devices."""

    devices: tuple[str, ...]
    now: float


@dataclass(frozen=True)
class Started:
    """The keeper of an attempt lives."""

    pid: int
    pid_began: float
    now: float
    attempt: int | None = None
    """Of which attempt this is told, here and below; None: the present one."""


@dataclass(frozen=True)
class Began:
    """Its run directory is there."""

    now: float
    attempt: int | None = None


@dataclass(frozen=True)
class Asked:
    """It is to stop."""

    stop: Stop
    now: float
    by: str = ""
    """Who asks, for the message."""


@dataclass(frozen=True)
class Overdue:
    """It was asked to stop longer ago than its grace."""

    now: float
    attempt: int | None = None


@dataclass(frozen=True)
class End:
    """How the commands of an attempt ended."""

    exit_status: int | None
    """None where a signal ended it."""
    signal: int | None = None
    message: str = ""
    fix: str = ""
    step: Literal["train", "export", "infer"] = "train"
    """Which command was the last."""
    code: str | None = None
    """Of the error, where it is known."""


@dataclass(frozen=True)
class Ended:
    """The keeper says how an attempt ended."""

    end: End
    now: float
    attempt: int | None = None


@dataclass(frozen=True)
class Refused:
    """An attempt could not be started."""

    reason: str
    message: str
    fix: str
    now: float
    attempt: int | None = None


@dataclass(frozen=True)
class Gone:
    """Its process has vanished without a word."""

    now: float
    attempt: int | None = None


@dataclass(frozen=True)
class Restarted:
    """The machine has been restarted since the attempt began."""

    now: float
    attempt: int | None = None
    ran_s: float = 0.0
    """How long the attempt is known to have lasted; how much of the time since then the machine was down is not."""


@dataclass(frozen=True)
class Missing:
    """Its folder is gone."""

    now: float


@dataclass(frozen=True)
class Silent:
    """Nobody on its machine has looked after it for long; whether its processes live cannot be known from elsewhere."""

    since: float
    """The last moment of which it is known that somebody did."""
    now: float


@dataclass(frozen=True)
class Heard:
    """Its machine answers again."""

    now: float


@dataclass(frozen=True)
class GivenUp:
    """Somebody says of a job whose machine does not answer that it is lost."""

    seen: float
    """Until when its attempt counts as having had its devices."""
    now: float
    by: str


Event = (
    Granted
    | Started
    | Began
    | Asked
    | Overdue
    | Ended
    | Refused
    | Gone
    | Restarted
    | Missing
    | Silent
    | Heard
    | GivenUp
)


@dataclass(frozen=True)
class StartKeeper:
    """Start the keeper of the job's present attempt."""


@dataclass(frozen=True)
class AskToStop:
    """Let its run save and end; once only, as a second signal ends it at once."""


@dataclass(frozen=True)
class Kill:
    """End what is left of its processes."""


@dataclass(frozen=True)
class Release:
    """Give its leases back."""


@dataclass(frozen=True)
class TellResult:
    """Read from its folder what became of it, and keep that."""


Instruction = StartKeeper | AskToStop | Kill | Release | TellResult
