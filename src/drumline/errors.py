"""Exceptions with stable codes. Every one says what is wrong and what to do about it."""

from __future__ import annotations


class DrumlineError(Exception):
    """Base of all errors that a user can do something about.

    `code` is stable and machine-readable; `exit_status` is what a command ends with: 1 failed, 2 bad request,
    3 interrupted and resumable.
    """

    code = "error"
    exit_status = 1

    def __init__(self, problem: str, fix: str) -> None:
        super().__init__(problem, fix)
        self.problem = problem
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.problem}\n  fix: {self.fix}"


class ConfigError(DrumlineError):
    """A recipe, an override or an argument that cannot be meant as written."""

    code = "config"
    exit_status = 2


class RunDirExists(DrumlineError):
    """The run directory is already another run's."""

    code = "run_dir_exists"
    exit_status = 2


class DataError(DrumlineError):
    """A data source that cannot be read as what it was said to be."""

    code = "data"
    exit_status = 2


class LoaderKilled(DataError):
    """A loader process was killed or crashed; the data may well be what it was said to be."""

    code = "loader_killed"
    exit_status = 1


class HardwareError(DrumlineError):
    """The machine does not have what the run asks for."""

    code = "hardware"
    exit_status = 2


class MissingExtra(DrumlineError):
    """An optional package is needed and not installed."""

    code = "missing_extra"
    exit_status = 2

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"the package {package} is not installed", f"pip install 'drumline[{extra}]'")
        self.args = (package, extra)


class ServeError(DrumlineError):
    """Nothing can be served at the address that was given."""

    code = "serve"
    exit_status = 2


class ServiceUnreachable(DrumlineError):
    """No service answers at the address, or no longer."""

    code = "unreachable"


class RemoteError(DrumlineError):
    """What a service answered where no other error has its code; `code` and `status` are the answer's."""

    code = "remote"

    def __init__(self, problem: str, fix: str, code: str, status: int) -> None:
        super().__init__(problem, fix)
        self.args = (problem, fix, code, status)
        self.code = code
        self.status = status


class ValueRangeError(DrumlineError):
    """Token ids or labels outside of what the model can take, caught before the device sees them."""

    code = "value_range"


class NonFiniteError(DrumlineError):
    """The loss or the gradient is NaN or infinite and the policy says stop."""

    code = "non_finite"


class GroupError(DrumlineError):
    """Ranks that did not meet, or met in different places."""

    code = "group"


class BackendError(DrumlineError):
    """A communication backend failed its check at start."""

    code = "backend"


class PeerFailed(DrumlineError):
    """Another rank failed; this one ends because of it."""

    code = "peer_failed"


class LaunchError(DrumlineError):
    """Workers could not be started, or one of them failed."""

    code = "launch"


class HangError(DrumlineError):
    """No progress within faults.hang_timeout_s; the message says who was where."""

    code = "hang"


class OutOfMemory(DrumlineError):
    """Memory does not suffice even for the smallest piece of work."""

    code = "out_of_memory"


class RestartNeeded(DrumlineError):
    """The run can only go on in new processes, from the state that was saved just before."""

    code = "restart"


class Unauthorized(DrumlineError):
    """No API key where one is needed, or one that is unknown, revoked or past its end."""

    code = "unauthorized"
    exit_status = 2


class RateLimited(DrumlineError):
    """More requests than a key or an address may make; `retry_after_s` says when there may be another."""

    code = "rate"

    def __init__(self, problem: str, fix: str, retry_after_s: float = 1.0) -> None:
        super().__init__(problem, fix)
        self.retry_after_s = retry_after_s


class Busy(DrumlineError):
    """As much as is allowed goes on already; later there may be room."""

    code = "busy"
    retry_after_s = 5.0


class StoreError(DrumlineError):
    """The store of jobs cannot be reached, read or written; nothing of the change was kept."""

    code = "store"


class Conflict(DrumlineError):
    """What was to be changed has been changed by somebody else meanwhile."""

    code = "conflict"


class IdempotencyConflict(Conflict):
    """An idempotency key that was used before, for another request."""

    code = "idempotency_conflict"


class Forbidden(DrumlineError):
    """Who asks is known, and may not do this."""

    code = "forbidden"
    exit_status = 2


class NotFound(DrumlineError):
    """There is no such thing, or it is another owner's."""

    code = "not_found"
    exit_status = 2


class TooLarge(DrumlineError):
    """A request with more in it than one may have."""

    code = "too_large"
    exit_status = 2


class Quota(DrumlineError):
    """An owner has as much as one may have already."""

    code = "quota"


class Interrupted(SystemExit):
    """The run was asked from outside to stop; it is saved and can be gone on with.

    No Exception: a script that does not catch it ends with status 3, and does not go on as if the run were done.
    `reason` says what asked.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = 3
