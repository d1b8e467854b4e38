"""The thread beside the one that trains: it sends heart-beats, and ends a run that hangs."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch.distributed import DistError

from drumline.engine.stragglers import Comparison, Straggler
from drumline.engine.verdict import Account, hangs, lowest_living, report
from drumline.engine.wake import wake
from drumline.engine.whereabouts import (
    SHOWN,
    born,
    is_debugged,
    line_of,
    other_threads,
    process_space,
    stack_of,
    state_of,
)
from drumline.errors import HangError, PeerFailed
from drumline.launcher.failures import LAST_SEEN_MARK, place_of_record, record_failure
from drumline.launcher.spec import MARK
from drumline.parallel.flight_recorder import pending_collectives
from drumline.parallel.heartbeats import Beat, Heartbeats
from drumline.rundir import LineWriter, write_json
from drumline.track.alarm import show

if TYPE_CHECKING:
    from drumline.engine.hang import Pulse

logger = logging.getLogger("drumline")

BEAT_S = 1.0
"""Between two heart-beats; less under a limit of a few seconds."""
LOST_BEATS = 6
"""Beats that may be missing before a rank counts as silent."""
ACCOUNT_S = 1.5
"""How long the reporting rank waits for the full accounts of the others."""
FILES_S = 1.0
"""How long files may take that the report is written to: they may be what the run hangs in."""
DYING_S = 0.3
"""How long a killed process may take to be gone after its connections broke."""
LEAVE_S = 2.0
"""How long the training thread may take to come back before the process is ended."""


class Watcher(threading.Thread):
    """Beats for one rank while it is in a call of the trainer's. A daemon: it keeps no process alive."""

    def __init__(self, pulse: Pulse, hearts: Heartbeats | None) -> None:
        super().__init__(name="drumline-pulse", daemon=True)
        groups = pulse.groups
        assert groups is not None
        self._pulse = pulse
        self._rank, self._size = groups.world.rank, groups.world.size
        self._trains = threading.get_ident()
        self._beat_s = min(BEAT_S, pulse.limit_s / 12)
        self._lost_s = LOST_BEATS * self._beat_s
        self._hearts = hearts
        self._host, self._space, self._pid = socket.gethostname(), process_space(), os.getpid()
        self._born = born(self._pid)
        self._count = int(time.time() * 1000)  # above those of an earlier thread of this rank
        self._idle_s = 0.0
        self._marks = -1
        self._comparison, self._compared = Comparison(), time.monotonic()
        self._left = threading.Event()
        self._raised = False
        self.error: HangError | PeerFailed | None = None

    @property
    def limit_s(self) -> float:
        """Half the limit once there was an update: what is slow for once, such as a compiler, is over then."""
        return self._pulse.limit_s / 2 if self._pulse.updates else self._pulse.limit_s

    def run(self) -> None:
        """Beat until `stop`, or until the run hangs."""
        last = time.monotonic()
        while True:
            now = time.monotonic()
            # No more than was watched: a machine that slept, or a run that was stopped as a whole, does not hang.
            elapsed, last = min(now - last, 2 * self._beat_s), now
            try:
                reporter = self._look(elapsed)
            except DistError as lost:
                # The training thread meets that as well; should it be stuck, this thread goes on by itself.
                logger.debug("the heart-beats have lost the store: %s", lost)
                self._hearts, reporter = None, None
            if reporter is not None:
                problem, fix = self._concluded(reporter)
                self._end(HangError(problem, fix))
                return
            if (dead := next(self.dead(), None)) is not None:
                self._end(lost_peer(dead))
                return
            if self._left.wait(self._beat_s):
                return

    def stop(self, line: str) -> None:
        """End the thread; the rank leaves the trainer's call, which stands at `line` of the user's."""
        self._left.set()
        self.join(LEAVE_S)  # a store that answers no more does not keep the training thread
        if self._hearts is not None and not self.is_alive() and self._size > 1:
            with suppress(DistError):
                self._hearts.post(replace(self._beat(), away=True, stack=(), place=f"{self._pulse.place}{line}"))

    def raise_here(self) -> None:
        """Raise the hang in this thread, once."""
        if self.error is not None and not self._raised:
            self._raised = True
            raise self.error

    def last_seen(self) -> list[Account]:
        """Ranks whose process is gone though they had not left; for after `stop`, in the thread that trains."""
        if self._hearts is None or self.is_alive():
            return []
        limit = time.monotonic() + DYING_S
        while not (found := list(self.dead())) and time.monotonic() < limit:
            time.sleep(0.02)  # its sockets are closed a moment before it is gone
        return found

    def dead(self) -> Iterator[Account]:
        """Ranks of this machine whose process is gone though they had not left; costs a look into /proc for each."""
        for rank, heard in enumerate(self._hearts.heard if self._hearts is not None else ()):
            beat = None if heard is None else heard.beat
            if beat is None or not self._is_near(beat) or state_of(beat.pid, beat.born) != "dead":
                continue
            with suppress(DistError):
                assert self._hearts is not None
                self._hearts.listen(0.0)  # it may have left just before
            heard = self._hearts.heard[rank] if self._hearts is not None else None
            if heard is not None and not heard.beat.away:
                yield Account(rank, heard.beat, self._lost_s, "dead")

    def _is_near(self, beat: Beat) -> bool:
        """Whether this process can see what became of the other one."""
        return bool(beat.space) and beat.space == self._space and not beat.away

    def _look(self, elapsed: float) -> int | None:
        """One beat; returns the rank that is to report a hang, once there is one."""
        pulse, hearts = self._pulse, self._hearts
        self._idle_s = self._idle_s + elapsed if pulse.marks == self._marks and not pulse.long_work else 0.0
        self._marks = pulse.marks
        beat = self._beat()
        stuck = self._idle_s >= self.limit_s and beat.busy is None
        if hearts is None:
            return self._rank if stuck else None
        hearts.post(beat)
        # A rank that comes on needs no more of the others than to know once who they are.
        if self._idle_s >= self.limit_s / 3 or None in hearts.heard:
            hearts.listen(elapsed)
        if self._rank == 0 and time.monotonic() - self._compared > pulse.period_s:
            self._compare(hearts)
        if stuck and hangs(hearts.heard, self.limit_s, self._lost_s):
            hearts.raise_alarm(lowest_living(hearts.heard, self._lost_s) or 0)
        return hearts.alarm()

    def _compare(self, hearts: Heartbeats) -> None:
        """Name stragglers, in the log and in events.jsonl."""
        now = time.monotonic()
        elapsed, self._compared = now - self._compared, now
        hearts.listen(0.0)
        beats = [heard.beat for heard in hearts.heard if heard is not None]
        if len(beats) == self._size:
            for each in self._comparison.take(beats, elapsed):
                within(FILES_S, partial(self._tell_of, each))

    def _tell_of(self, straggler: Straggler) -> None:
        logger.warning("%s", straggler)
        self._event({"event": "straggler", "message": str(straggler), **straggler._asdict()})

    def _beat(self) -> Beat:
        pulse, stack = self._pulse, stack_of(self._trains)
        self._count += 1
        busy = next(iter(pulse.long_work), None) or ("a debugger" if is_debugged(stack) else None)
        return Beat(
            self._count,
            pulse.step,
            pulse.place,
            round(self._idle_s, 1),
            busy,
            stack=tuple(stack[:SHOWN]),
            line=line_of(stack),
            host=self._host,
            space=self._space,
            pid=self._pid,
            born=self._born,
            own_s=pulse.own_s,
            updates=pulse.updates,
        )

    def _full_beat(self) -> Beat:
        """With what is looked for only now."""
        pending = within(FILES_S, pending_collectives) or []
        threads = other_threads(but=(self._trains, threading.get_ident()))
        return replace(self._beat(), pending=tuple(pending[:SHOWN]), threads=threads)

    def _concluded(self, reporter: int) -> tuple[str, str]:
        """Problem and fix of a hang."""
        beat = self._full_beat()
        try:
            return self._agree(reporter, beat)
        except DistError as lost:
            logger.debug("the report of a hang has lost the store: %s", lost)
            self._hearts = None
            return self._report({self._rank: beat})

    def _end(self, error: HangError | PeerFailed) -> None:
        """End this process: by an exception where the training thread takes it, else at once."""
        self.error = error
        if self._left.is_set():
            return
        wake(self._trains)
        if self._left.wait(LEAVE_S) or (self._size == 1 and self._trains != threading.main_thread().ident):
            return  # a notebook server or a service is not ended for one of its threads
        within(FILES_S, self._last_words)
        os._exit(error.exit_status)

    def _agree(self, reporter: int, beat: Beat) -> tuple[str, str]:
        """Problem and fix, by the one rank that reports; by this one too where that does not."""
        hearts = self._hearts
        if hearts is None:
            return self._report({self._rank: beat})
        hearts.testify(beat)
        if reporter != self._rank:
            found: tuple[str, str] | None = wait_for(hearts.published, 2 * ACCOUNT_S + FILES_S)
            if found is not None:
                return found
        hearts.listen(0.0)
        living = [rank for rank, heard in enumerate(hearts.heard) if heard is not None and not heard.beat.away]
        living = [rank for rank in living if not self._is_lost(rank)]
        wait_for(lambda: all(hearts.testimonies()[rank] for rank in living) or None, ACCOUNT_S)
        given = {rank: each for rank, each in enumerate(hearts.testimonies()) if each is not None}
        problem, fix = self._report(given)
        hearts.publish(problem, fix)
        return problem, fix

    def _is_lost(self, rank: int) -> bool:
        heard = self._hearts.heard[rank] if self._hearts is not None else None
        return heard is not None and heard.silent_s > self._lost_s

    def _report(self, given: dict[int, Beat]) -> tuple[str, str]:
        """Make the report, and put it into events.jsonl."""
        accounts = self._accounts(given)
        made = report(accounts, self.limit_s, self._pulse.limit_s)
        facts = {"event": "hang", "rank": self._rank, "message": made.problem, "fix": made.fix, **made.facts}
        within(FILES_S, partial(self._event, facts))
        for each in accounts:
            if each.state == "stopped" and each.beat is not None:
                end(each.beat)  # it takes no other signal, and the launcher would wait for it
        return made.problem, made.fix

    def _accounts(self, given: dict[int, Beat]) -> list[Account]:
        """What is known of each rank; given: the full accounts of those that have given one."""
        if self._hearts is None:
            return [Account(self._rank, given.get(self._rank))]
        found = []
        for rank, heard in enumerate(self._hearts.heard):
            if rank in given:
                found.append(Account(rank, given[rank]))
            elif heard is None:
                found.append(Account(rank, None))
            else:
                beat = heard.beat
                state = state_of(beat.pid, beat.born) if self._is_near(beat) else "unknown"
                found.append(Account(rank, beat, max(heard.silent_s, 0.1), state))
        return found

    def _event(self, facts: dict[str, Any]) -> None:
        """Write a line to events.jsonl, from whichever rank it is seen by."""
        if self._pulse.directory is not None:
            events = LineWriter(self._pulse.directory.events)
            events.write(facts)
            events.close()

    def _last_words(self) -> None:
        """Leave the failure where the launcher, or else a person, finds it: the training thread will not."""
        error, directory = self.error, self._pulse.directory
        assert error is not None
        if directory is not None and not directory.exit.exists():
            facts = {"exit_status": error.exit_status, "reason": "failed", "message": str(error)}
            write_json(directory.exit, {**facts, "steps": self._pulse.step})
        path = place_of_record()
        if path is not None:
            record_failure(path, self._rank, error)
        if MARK not in os.environ:
            show(f"rank {self._rank}: {error}")


def wait_for(look: Callable[[], Any], limit_s: float) -> Any:
    """What `look` gives once that is not None; None after limit_s."""
    limit = time.monotonic() + limit_s
    while (found := look()) is None and time.monotonic() < limit:
        time.sleep(0.02)
    return found


def within(limit_s: float, function: Callable[[], Any]) -> Any:
    """What a function gives within limit_s; None where it takes longer, which it then does by itself, or fails."""
    found: list[Any] = []

    def call() -> None:
        try:
            found.append(function())
        except Exception:
            logger.warning("a part of a report on hangs or stragglers failed", exc_info=True)

    thread = threading.Thread(target=call, name="drumline-report", daemon=True)
    thread.start()
    thread.join(limit_s)
    return found[0] if found else None


def end(beat: Beat) -> None:
    """Kill the process that sent this beat, if it is still that one and stopped."""
    if state_of(beat.pid, beat.born) == "stopped":
        with suppress(ProcessLookupError, PermissionError):
            os.kill(beat.pid, signal.SIGKILL)


def lost_peer(account: Account) -> PeerFailed:
    """The error of a rank that sees another one gone."""
    beat = account.beat
    assert beat is not None
    seen = seen_at(beat)
    error = PeerFailed(
        f"rank {account.rank} is gone without a word (process {beat.pid}); last seen: {seen}",
        "see that rank's log, and the kernel's for an out-of-memory kill",
    )
    error.add_note(f"{LAST_SEEN_MARK}{account.rank}: {seen}")
    return error


def seen_at(beat: Beat) -> str:
    """Where a rank was."""
    return f"{beat.place}, step {beat.step}, at {beat.line}"
