"""All workers compute with the threads of the one that planned first."""

from __future__ import annotations

import torch

from drumline.infer.same_threads import SameThreads
from tests.unit.infer.toy import Toy


def test_the_first_workers_number_of_threads_is_everybodys() -> None:
    before = torch.get_num_threads()
    try:
        facts = SameThreads(Toy()).survey([])
        assert facts["threads"] == before
        other = Toy()
        SameThreads(other).settle({"threads": before + 1, "tokens": 7})
        assert torch.get_num_threads() == before + 1
        assert other.settled == {"threads": before + 1, "tokens": 7}
    finally:
        torch.set_num_threads(before)
    assert SameThreads(other).columns == other.columns
