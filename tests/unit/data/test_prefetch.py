"""What can be told without a GPU; tests/gpu/test_prefetch.py has the rest."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from drumline.data.loader import LoaderOptions, RowLoader
from drumline.data.order import Cut
from drumline.data.prefetch import is_plain, on_devices
from drumline.data.source import as_source
from drumline.data.windows import RowFeed, Window
from tests.unit.data.counting import CountUnits, Rows


class Moves:
    """A batch that moves itself; nobody sees the tensors in it."""

    def to(self, device: torch.device) -> Moves:
        return self


def test_on_the_cpu_a_feed_stays_what_it_is() -> None:
    loader = RowLoader(as_source(Rows([1])), CountUnits(), LoaderOptions())
    feed = RowFeed(loader, Cut(1, 1, 0, 1), 0, shuffle=False, needs_count=False)
    assert on_devices(feed, [torch.device("cpu")]) is feed
    (window,) = feed.epoch(0, 0)
    window.ready()


def test_a_window_waits_for_what_is_on_its_way() -> None:
    waited: list[int] = []
    Window(0, 0, (), 0, lambda: waited.append(1)).ready()
    assert waited == [1]


@pytest.mark.parametrize(
    ("batch", "plain"),
    [
        (torch.zeros(2), True),
        ({"x": [torch.zeros(2), "text"], "n": 3}, True),
        (pack_sequence([torch.zeros(2)]), True),
        (torch.eye(2).to_sparse(), False),
        ([torch.zeros(2), Moves()], False),
    ],
)
def test_batches_whose_tensors_cannot_all_be_seen_are_not_sent_ahead(batch: Any, plain: bool) -> None:
    assert is_plain(batch) == plain
