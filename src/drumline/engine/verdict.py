"""What is made of heart-beats: whether a run hangs, and the report that says who was where. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from drumline.engine.whereabouts import SHOWN, State, doing, waits
from drumline.parallel.heartbeats import Beat, Heard

LISTED = 16
"""Ranks that are described one by one; the report of a large world names the others by number."""


class Account(NamedTuple):
    """What is known of one rank when a run hangs."""

    rank: int
    beat: Beat | None
    silent_s: float = 0.0
    """How long nothing has been heard of it; 0 where its heart beats."""
    state: State = "unknown"
    """Of its process, where it is on this machine."""

    @property
    def is_silent(self) -> bool:
        """Whether its heart beats no more."""
        return self.beat is None or self.silent_s > 0

    @property
    def waits(self) -> bool:
        """Whether it has arrived: it waits for others, as far as it can say."""
        beat = self.beat
        return beat is not None and not self.is_silent and not beat.away and (waits(beat.stack) or bool(beat.pending))


class Report(NamedTuple):
    """A hang as its event, its error and the screen have it."""

    problem: str
    fix: str
    facts: dict[str, Any]


def hangs(heard: Sequence[Heard | None], limit_s: float, lost_s: float) -> bool:
    """Whether no rank has come on for limit_s, of those that can; called by one that has not.

    One that has said nothing for lost_s will not come on, nor one that is in no call of the trainer's.
    """
    for each in heard:
        if each is None or each.silent_s > lost_s or each.beat.away:
            continue
        if each.beat.busy is not None or each.beat.idle_s + each.silent_s < limit_s:
            return False
    return True


def lowest_living(heard: Sequence[Heard | None], lost_s: float) -> int | None:
    """The rank that is to report."""
    for rank, each in enumerate(heard):
        if each is not None and each.silent_s <= lost_s and not each.beat.away:
            return rank
    return None


def report(accounts: Sequence[Account], limit_s: float, setting_s: float) -> Report:
    """Say who was where, the missing ranks first and with their stacks. setting_s: what the limit was made from."""
    arrived = [each for each in accounts if each.waits]
    missing = [each for each in accounts if not each.waits]
    half = ", half of it after an update" * (limit_s < setting_s)
    lines = [f"no progress for {limit_s:g} s (faults.hang_timeout_s={setting_s:g}{half}): {headline(missing, arrived)}"]
    for each in missing[:LISTED]:
        lines += described(each)
    lines += [line for each in arrived[:LISTED] for line in described(each, brief=bool(missing))]
    if left := [str(each.rank) for each in (*missing[LISTED:], *arrived[LISTED:])]:
        lines.append(f"  and ranks {', '.join(left)}")
    facts = {
        "limit_s": limit_s,
        "arrived": [each.rank for each in arrived],
        "missing": [each.rank for each in missing],
        "ranks": [fact(each) for each in accounts],
    }
    return Report("\n".join(lines), advice(missing, arrived), facts)


def headline(missing: Sequence[Account], arrived: Sequence[Account]) -> str:
    """Who did not arrive, in one sentence."""
    if not missing:
        same = len({where(each) for each in arrived}) == 1
        place = "the same place" if same else "different places"
        return f"all {len(arrived)} ranks wait for each other, in {place}"
    if not arrived:
        return f"{named(missing)} {'is' if len(missing) == 1 else 'are'} stuck"
    return f"{named(missing)} did not arrive, {named(arrived)} {'waits' if len(arrived) == 1 else 'wait'}"


def named(accounts: Sequence[Account]) -> str:
    """'rank 1', or 'ranks 0, 2'."""
    numbers = ", ".join(str(each.rank) for each in accounts)
    return f"rank{'s' if len(accounts) > 1 else ''} {numbers}"


def where(account: Account) -> str:
    """What a waiting rank waits in: the collective if that is known."""
    beat = account.beat
    assert beat is not None
    return beat.pending[0] if beat.pending else f"{doing(beat.stack)} at {beat.line}"


def described(account: Account, *, brief: bool = False) -> list[str]:
    """One rank's lines; brief: without its stack."""
    rank, beat = account.rank, account.beat
    if beat is None:
        return [f"  rank {rank} has sent no heart-beat at all"]
    lines = [f"  rank {rank} {status(account)}: {place_of(beat)}"]
    if beat.pending:
        lines.append(f"    begun and not ended: {'; '.join(beat.pending[:3])}")
    if not brief:
        lines += [f"    {frame}" for frame in beat.stack[:SHOWN]]
        for name, stack in (beat.threads or {}).items():
            lines.append(f"    its thread {name}: {stack[0]}")
    return lines


def status(account: Account) -> str:
    """What a rank is doing, or what became of it."""
    beat = account.beat
    assert beat is not None
    if account.is_silent and not beat.away:
        if account.state == "dead":
            return f"is dead (process {beat.pid} is gone)"
        if account.state == "stopped":
            return f"is stopped by SIGSTOP or a debugger (process {beat.pid})"
        why = ", though its process runs: it is in native code that holds Python's lock" * (account.state == "runs")
        return f"has sent no heart-beat for {account.silent_s:.1f} s{why} (process {beat.pid} on {beat.host})"
    if beat.away:
        return "is in no call of the trainer's, since this one"
    if beat.pending and not waits(beat.stack):
        return f"{doing(beat.stack) or 'is'} in a collective"
    return doing(beat.stack) or "is at its own work"


def place_of(beat: Beat) -> str:
    """Place, step and line."""
    return f"{beat.place}, step {beat.step}, for {beat.idle_s:.1f} s, at {beat.line}"


def fact(account: Account) -> dict[str, Any]:
    """One rank as the event has it."""
    beat = account.beat
    if beat is None:
        return {"rank": account.rank, "state": "no heart-beat"}
    state = account.state if account.is_silent else "waits" if account.waits else "away" if beat.away else "works"
    return {
        "rank": account.rank,
        "state": state,
        "place": beat.place,
        "step": beat.step,
        "idle_s": round(beat.idle_s + account.silent_s, 1),
        "line": None if beat.line is None else f"{beat.line.file}:{beat.line.line}",
        "stack": [str(frame) for frame in beat.stack],
        "pending": list(beat.pending),
    }


def advice(missing: Sequence[Account], arrived: Sequence[Account]) -> str:
    """What to do about it."""
    states = {each.state for each in missing if each.is_silent}
    if "stopped" in states:
        return "see who stopped that process; a run that is only paused goes on with kill -CONT before the limit"
    if "dead" in states:
        return "see that rank's log, and the kernel's for an out-of-memory kill"
    if missing:
        whose = "that line" if len(missing) == 1 else "those lines"
        return f"see {whose}; where it has to take so long, raise faults.hang_timeout_s"
    if len({where(each) for each in arrived}) > 1:
        return (
            "something that all ranks must call is called on some of them only, or in another order (a rank-0 guard?)"
        )
    return "see whether the network or the links between the GPUs work: drumline doctor, NCCL_DEBUG=INFO"
