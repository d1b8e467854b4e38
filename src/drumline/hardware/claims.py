"""Which launch of this machine has which GPU: file locks in a folder that all its users share."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import pwd
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import psutil

logger = logging.getLogger("drumline")

FOLDER = Path("/tmp/drumline-gpus")
"""Where the locks are: one place for all users, whatever their TMPDIR. A container's own /tmp has claims of its own."""

WAIT_S = 10.0
"""How long one launch waits while another one chooses, which takes milliseconds unless its process is stopped."""
_LOOK_S = 0.01
_TURN = "choosing"
_HELD = (errno.EWOULDBLOCK, errno.EACCES)
_MOST_CHARACTERS = 200


class Claims:
    """What this process has claimed: nobody else's launch takes these GPUs until it ends or they are released.

    A claim bridges the time until the workers compute on their GPUs, which everybody sees. The kernel drops it with the
    process, however that ends; the files stay, since removing one could hide it from somebody who has it open. Where
    claims cannot be made there is one warning, and nothing is kept from anybody.
    """

    def __init__(
        self, run: str | None = None, folder: Path | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """run: what the GPUs are claimed for, for others to read; None: nothing is claimed, only looked at.

        folder: where; None: FOLDER.
        """
        self.run = run
        self._folder = FOLDER if folder is None else folder
        self._clock = clock
        self._held: dict[str, int] = {}
        """Descriptor of each claimed GPU's file, by UUID."""
        self._warned = False

    @property
    def held(self) -> tuple[str, ...]:
        """UUIDs of the GPUs that are claimed here."""
        return tuple(self._held)

    @contextmanager
    def choosing(self) -> Iterator[None]:
        """Inside, no other launch of this machine chooses: two that want the same two GPUs do not get one each."""
        descriptor = None
        with self._or_warn("choosing"), suppress(FileNotFoundError):
            descriptor = self._open(_TURN, create=self.run is not None)
        try:
            if descriptor is not None:
                self._wait_for_turn(descriptor)
            yield
        finally:
            if descriptor is not None:
                _close(descriptor)

    def of_others(self, uuids: Iterable[str]) -> dict[str, str]:
        """Those of these GPUs that somebody else has claimed, each with who, in words; call it inside `choosing`."""
        found = {}
        for uuid in uuids:
            holder = None if uuid in self._held else self._holder(uuid)
            if holder is not None and not _is_ancestor(holder):
                found[uuid] = _in_words(holder)
        return found

    def take(self, uuids: Iterable[str]) -> dict[str, str]:
        """Claim these GPUs; returns those that somebody else has after all, each with who."""
        taken: dict[str, str] = {}
        if self.run is None:
            return taken
        for uuid in uuids:
            if uuid in self._held:
                continue
            descriptor = None
            with self._or_warn(f"GPU {uuid}"):
                descriptor = self._open(uuid, create=True)
            if descriptor is None:
                continue
            with self._or_warn(f"GPU {uuid}"):
                if _lock(descriptor):
                    self._held[uuid] = descriptor
                    with self._or_warn(f"GPU {uuid}"):  # on a full disk the claim holds, and nobody reads whose it is
                        self._sign(descriptor)
                    continue
                holder = _read(descriptor)
                if not _is_ancestor(holder):  # what has started this process has claimed it for it
                    taken[uuid] = _in_words(holder)
            os.close(descriptor)
        return taken

    def keep(self, uuids: Iterable[str]) -> None:
        """Give back what is none of these."""
        for uuid in set(self._held) - set(uuids):
            _close(self._held.pop(uuid))

    def release(self) -> None:
        """Give all of it back, also for processes that were forked meanwhile; releasing twice is allowed."""
        self.keep(())

    def __enter__(self) -> Self:
        """The claims themselves."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release."""
        self.release()

    def _wait_for_turn(self, descriptor: int) -> None:
        limit = self._clock() + WAIT_S
        with self._or_warn("choosing"):
            while not _lock(descriptor):
                if self._clock() > limit:
                    logger.warning("another launch has been choosing its GPUs for %g s; going on beside it", WAIT_S)
                    return
                time.sleep(_LOOK_S)

    def _holder(self, uuid: str) -> dict[str, Any] | None:
        """What is known of who has claimed a GPU; None where nobody has."""
        try:
            descriptor = self._open(uuid, create=False)
        except OSError:
            return None  # mostly no such file; where no claim can be made at all, `take` says so
        try:
            # Shared, so that two that look do not see each other; nobody is about to claim while this one chooses.
            return None if _lock(descriptor, fcntl.LOCK_SH) else _read(descriptor)
        except OSError:
            return None
        finally:
            os.close(descriptor)

    def _open(self, name: str, *, create: bool) -> int:
        """A lock's file. Raises OSError where it cannot be had."""
        if create:
            with suppress(FileExistsError):
                self._folder.mkdir()
                self._folder.chmod(0o1777)  # everybody makes files there, and removes only his own
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            file = f"{name}.lock".replace("/", "_")  # an old driver's MIG instance has slashes in its UUID
            try:
                # Not to be created, since Linux refuses that for others' files in such a folder (sysctl
                # fs.protected_regular).
                return os.open(file, os.O_RDWR | os.O_NOFOLLOW, dir_fd=folder)
            except FileNotFoundError:
                if not create:
                    raise
            try:
                made = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666, dir_fd=folder)
            except FileExistsError:  # somebody was quicker
                return os.open(file, os.O_RDWR | os.O_NOFOLLOW, dir_fd=folder)
            os.fchmod(made, 0o666)  # whatever the umask: the next user must be able to lock it
            return made
        finally:
            os.close(folder)

    def _sign(self, descriptor: int) -> None:
        own = psutil.Process()
        record = {"pid": own.pid, "started": own.create_time(), "user": user_name(os.getuid()), "run": self.run}
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(record).encode(), 0)

    @contextmanager
    def _or_warn(self, what: str) -> Iterator[None]:
        """Go on without a claim where there can be none, and say so once."""
        try:
            yield
        except OSError as error:
            if not self._warned:
                logger.warning("%s: nothing keeps another launch from the same GPUs: %s", what, error)
            self._warned = True


def user_name(uid: int) -> str:
    """A user's name, or its number where it has none, as in many containers."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Whether the lock could be had at once. Raises OSError where the file system has no locks."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return False
        raise
    return True


def _close(descriptor: int) -> None:
    with suppress(OSError):  # a file system without locks
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _read(descriptor: int) -> dict[str, Any]:
    """What the holder wrote, or anybody else: it is shown and no more."""
    try:
        record = json.loads(os.pread(descriptor, 4096, 0))
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}


def _in_words(holder: Mapping[str, Any]) -> str:
    who = f"process {holder.get('pid', '?')} of {holder.get('user', 'somebody')}" if holder else "another launch"
    run = f" for {holder['run']}" if holder.get("run") else ""
    text = f"claimed by {who}{run}"
    return "".join(c if c.isprintable() else "?" for c in text[:_MOST_CHARACTERS])


def _is_ancestor(holder: Mapping[str, Any]) -> bool:
    """Whether the holder is a process that this one descends from, such as a launcher whose worker launches again."""
    try:
        above = [(each.pid, each.create_time()) for each in psutil.Process().parents()]
    except psutil.Error:
        return False
    return (holder.get("pid"), holder.get("started")) in above
