"""Several texts in one row of fixed length, and batches of such rows that say where each text begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from drumline.data.mixture import Mixture, mixed
from drumline.data.packing import NO_LABEL
from drumline.data.token_row_cache import TokenRows
from drumline.data.token_rows import Row

LEAST = 2
"""Tokens of a text from which on there is something to predict."""

ROOM = 1.25
"""How many more texts than on average a batch has room for before its list of starts grows."""


@dataclass(frozen=True)
class Packs:
    """Which texts lie in which row: row i holds texts[starts[i]:starts[i + 1]], in this order."""

    context: int
    """Tokens of a row."""
    texts: NDArray[np.int64]
    starts: NDArray[np.int64]
    """int64 [rows + 1]."""
    num_tokens: int
    """That are in rows, without what fills them up."""
    num_cut: int
    """Texts that were longer than a row."""
    num_left_out: int
    """Texts of fewer than two tokens, from which nothing can be learned."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def waste(self) -> float:
        """Share of all places that hold no text."""
        return 1 - self.num_tokens / (len(self) * self.context) if len(self) else 0.0

    def describe(self) -> str:
        """In words: '12,000 texts in 900 rows of 1,024 tokens, 0.4% of them empty'."""
        share = f"{len(self.texts):,} texts in {len(self):,} rows of {self.context:,} tokens, {self.waste:.1%} empty"
        notes = [f"{self.num_cut:,} cut"] * bool(self.num_cut)
        notes += [f"{self.num_left_out:,} of fewer than two tokens left out"] * bool(self.num_left_out)
        return "; ".join([share, *notes])


def pack(lengths: NDArray[Any] | Sequence[int], context: int) -> Packs:
    """Put texts into rows of `context` tokens by best-fit decreasing (Johnson 1973), the same for the same lengths.

    Each text goes, longest first, into the fullest row that has room for it; texts of one length in the order given. At
    most 11/9 of the fewest rows possible, for texts much shorter than rows hardly more than the fewest. A text longer
    than a row counts as cut. Texts of one length that go into rows of one filling are placed at once, so that the time
    grows with the number of different lengths rather than of texts.
    """
    given = np.asarray(lengths, dtype=np.int64)
    sizes = np.minimum(given, context)
    order = np.argsort(-sizes, kind="stable")
    order = order[sizes[order] >= LEAST]
    row_of = np.empty(len(order), dtype=np.int64)
    open_rows: dict[int, list[NDArray[np.int64]]] = {}
    """Rows by the room that they have left."""
    rooms, num_rows, place = 0, 0, 0
    """rooms: bit r is set where there are rows with room r."""
    values, counts = np.unique(sizes[order], return_counts=True)
    for size, count in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
        left = count
        while left:
            fitting = rooms >> size
            room = size + (fitting & -fitting).bit_length() - 1 if fitting else context
            each = room // size  # one after the other they would all go into the same row
            wanted = -(-left // each)
            if fitting:
                rows = np.concatenate(open_rows.pop(room))
                rooms &= ~(1 << room)
                rooms = _keep(open_rows, rooms, room, rows[wanted:])
                rows = rows[:wanted]
            else:
                rows = np.arange(num_rows, num_rows + wanted)
                num_rows += wanted
            placed = min(left, each * len(rows))
            row_of[place : place + placed] = np.repeat(rows, each)[:placed]
            place, left = place + placed, left - placed
            short = each * len(rows) - placed  # the last row may have got fewer
            rooms = _keep(open_rows, rooms, room - each * size, rows[: len(rows) - bool(short)])
            rooms = _keep(open_rows, rooms, room - (each - short) * size, rows[len(rows) - bool(short) :])
    by_row = np.argsort(row_of, kind="stable")
    starts = np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=num_rows))]).astype(np.int64)
    return Packs(
        context,
        order[by_row],
        starts,
        num_tokens=int(sizes[order].sum()),
        num_cut=int((given > context).sum()),
        num_left_out=len(given) - len(order),
    )


def _keep(open_rows: dict[int, list[NDArray[np.int64]]], rooms: int, room: int, rows: NDArray[np.int64]) -> int:
    """Note rows that have so much room left, where another text could still go; gives the new set of rooms."""
    if not len(rows) or room < LEAST:
        return rooms
    open_rows.setdefault(room, []).append(rows)
    return rooms | 1 << room


class PackedTexts(Dataset[Row]):
    """Rows of several texts each: `input_ids`, `labels` and `position_ids`, int64 [context].

    position_ids begin again at 0 with each text. What is left of a row is filled with `fill_id` as a text of its own,
    whose labels are -100.
    """

    def __init__(self, texts: TokenRows, packs: Packs, fill_id: int = 0) -> None:
        self.texts = texts
        self.packs = packs
        self._fill_id = fill_id

    def __len__(self) -> int:
        return len(self.packs)

    def __getitem__(self, index: int) -> Row:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        context = self.packs.context
        input_ids = np.full(context, self._fill_id, dtype=np.int64)
        position_ids = np.empty(context, dtype=np.int64)
        learned = np.zeros(context, dtype=np.bool_)
        counted = np.arange(context)
        place = 0
        for text in self.packs.texts[self.packs.starts[index] : self.packs.starts[index + 1]].tolist():
            ids, own = self.texts.tokens(text)
            end = min(place + len(ids), context)
            input_ids[place:end] = ids[: end - place]
            learned[place + 1 : end] = own[1 : end - place]  # nothing comes before a text's first token
            position_ids[place:end] = counted[: end - place]
            place = end
        position_ids[place:] = counted[: context - place]
        # As shifted_row does for a text alone; for all of a row at once in a fraction of the time.
        labels = np.full(context, NO_LABEL, dtype=np.int64)
        np.copyto(labels[:-1], input_ids[1:], where=learned[1:])
        row = {"input_ids": input_ids, "labels": labels, "position_ids": position_ids}
        return {name: torch.from_numpy(values) for name, values in row.items()}


class PackedBatch:
    """Collate function of packed rows, with `cu_seqlens` as variable-length attention wants it.

    int32 [n + 1], where each text begins in the batch's B * T tokens one after the other, then B * T as often as it
    takes: n depends on the number of rows alone, so that compiled code sees one shape. It is the average number of
    texts with some room, doubled for the rare batch that has more, since each costs the kernels' memory.
    """

    def __init__(self, texts_per_row: float) -> None:
        self._texts_per_row = texts_per_row

    def __call__(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """Stack rows into tensors [B, T]."""
        batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
        batch["cu_seqlens"] = starts_of(batch["position_ids"], round(ROOM * self._texts_per_row * len(rows)))
        return batch


def starts_of(position_ids: Tensor, room: int = 0) -> Tensor:
    """cu_seqlens of position_ids [B, T], int32; filled up to room for so many texts, or twice as often as it takes."""
    places = position_ids.flatten()
    starts = (places == 0).nonzero().flatten().to(torch.int32)
    length = max(8, -(-room // 8) * 8) if room else len(starts)
    while length < len(starts):
        length *= 2
    filled = torch.full((length + 1,), len(places), dtype=torch.int32)
    filled[: len(starts)] = starts
    return filled


def packed(rows: Any, context: int, fill_id: int = 0) -> tuple[Any, PackedBatch]:
    """Token rows, or a mixture of them, as packed rows with their collate function.

    The parts of a mixture are packed each by itself, since an epoch passes over them unequally often.
    """
    parts = list(zip(rows.parts, rows.weights, strict=True)) if isinstance(rows, Mixture) else [(rows, 1.0)]
    found = [(PackedTexts(part, pack(part.lengths, context), fill_id), weight) for part, weight in parts]
    num_rows = sum(len(part) for part, _ in found)
    # What fills a row up is one more.
    per_row = sum(len(part.packs.texts) + len(part) for part, _ in found) / max(1, num_rows)
    return mixed(found), PackedBatch(per_row)
