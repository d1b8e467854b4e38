"""What torch's profiler showed of a run, as parts of a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from drumline.track.page import Row, escape, section, table
from drumline.track.units import plain

SUMMARY, TRACE = "profile.json", "trace.json.gz"
"""Files in the folder `profile` of a run directory."""

PARTS = (
    ("compute_s", "compute"),
    ("exposed_s", "exposed communication"),
    ("loader_s", "loader"),
    ("host_s", "host"),
)
"""What a step is made of, as engine.breakdown has it -> how plots and tables call it."""


def verdict_of(profile: Mapping[str, Any]) -> str:
    """The verdict as a paragraph; empty for a run without one."""
    message = profile.get("message")
    if not message:
        return ""
    where = f"Updates {plain(profile.get('first'))} to {plain(profile.get('last'))}: " if "first" in profile else ""
    return f'<p class="sub">{escape(where)}{escape(message)}</p>'


def profile_sections(profile: Mapping[str, Any]) -> Iterator[str]:
    """Breakdown by rank and what ran longest: of a benchmark's result, or of what train.profile wrote."""
    by_rank: Sequence[Mapping[str, Any]] = profile.get("breakdown") or []
    if by_rank and "shares" in by_rank[0]:
        header = ["rank", "step", *(label for _, label in PARTS), "all communication"]
        keys = ["step_s", *(key for key, _ in PARTS), "communication_s"]
        rows: list[Row] = [
            ([str(rank), *(f"{1000 * each[key]:.2f} ms" for key in keys)], "") for rank, each in enumerate(by_rank)
        ]
        yield section("Where a step goes", table(header, rows, numbers=True))
    for key, title in (("kernels", "Longest kernels"), ("operators", "Longest operators on the host")):
        found = profile.get(key)
        if found:
            rows = [
                (
                    [
                        each["name"],
                        plain(each["calls"], 1),
                        f"{1000 * each['seconds']:.3f} ms",
                        f"{100 * each['share']:.1f}%",
                    ],
                    "",
                )
                for each in found
            ]
            yield section(title, table(("", "calls a step", "time a step", "share"), rows))
