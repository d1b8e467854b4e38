"""A look through tokenised text files, each a document: how long they are, and which are the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from drumline.data.cache import TokenFile
from drumline.data.survey import LIMIT_S, MOST_ROWS, Survey, lengths_in, places

LOOKED_AT = 4096
"""Tokens at the beginning of a document by which, with its length, it is told from others."""


def look_through_documents(
    files: Sequence[TokenFile], *, limit_s: float = LIMIT_S, clock: Callable[[], float] = time.monotonic
) -> Survey:
    """Compare documents by their ids; lengths are without the end of document, which each has."""
    starts = [np.append(file.document_starts, len(file)) for file in files]
    lengths = np.concatenate([np.diff(each) - 1 for each in starts])
    firsts = np.cumsum([0, *(len(each) - 1 for each in starts)])
    found, began = Survey(len(lengths)), clock()
    for row in places(len(lengths), MOST_ROWS):
        part = int(np.searchsorted(firsts, row, side="right")) - 1
        start, length = int(starts[part][row - firsts[part]]), int(lengths[row])
        ids = files[part][start : start + min(length, LOOKED_AT)]
        found.num_seen += 1
        if length:
            # Wide, since one file's ids may be kept in two bytes and another's in four.
            found.exact.add(row, length.to_bytes(8, "little") + ids.astype("<u4").tobytes())
        else:
            found.num_empty += 1
            found.first_empty = row if found.first_empty is None else min(row, found.first_empty)
        if clock() - began > limit_s:
            break
    found.loose = found.exact  # ids are compared as they are
    # Rows are filled with one document after the other: nothing is cut off.
    summary = lengths_in(lengths, int(lengths.max(initial=1)))
    found.lengths = None if summary is None else replace(summary, context=None)
    return found
