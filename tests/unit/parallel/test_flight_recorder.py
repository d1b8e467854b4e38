from __future__ import annotations

from typing import Any

from drumline.parallel.flight_recorder import pending, pending_collectives

ENTRY: dict[str, Any] = {
    "record_id": 1,
    "collective_seq_id": 5,
    "profiling_name": "nccl:all_reduce",
    "process_group": ["3", "undefined"],
    "input_sizes": [[4, 2]],
    "input_dtypes": ["Float"],
    "state": "started",
    "retired": False,
}


def test_what_has_begun_and_not_ended_oldest_first() -> None:
    older = {**ENTRY, "record_id": 0, "profiling_name": "nccl:broadcast", "collective_seq_id": 4}
    done, retired = {**ENTRY, "state": "completed"}, {**ENTRY, "retired": True}
    assert pending({"entries": [ENTRY, done, retired, older]}) == [
        "nccl:broadcast (number 4 of group 3; Float [4, 2])",
        "nccl:all_reduce (number 5 of group 3; Float [4, 2])",
    ]
    assert pending({}) == []


def test_nothing_is_pending_where_nothing_was_begun() -> None:
    assert pending_collectives() == []
