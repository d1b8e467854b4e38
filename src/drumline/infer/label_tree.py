"""Labels as a tree of tokens, so that what several of them begin with is computed once. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from drumline.data.tokenizers import Ids

MOST_NODES = 128
"""Tokens that go through the model at once behind a prompt: their mask has a line each."""


@dataclass(frozen=True)
class Branches:
    """Some of the labels, and the tokens among theirs that others follow: the nodes, each after what it follows."""

    labels: tuple[int, ...]
    """Their numbers."""
    tokens: Ids
    """[nodes]"""
    depths: Ids
    """[nodes]: 0 where a token is a label's first."""
    sees: NDArray[np.bool_]
    """[nodes, nodes]: whether the first is the second one or stands behind it in a label."""
    wanted: Ids
    """[1 + nodes, K]: tokens that follow the prompt, and each node; filled up with token 0."""
    steps: tuple[tuple[tuple[int, int], ...], ...]
    """For each label, a place in `wanted` for each of its tokens."""


def branches_of(labels: Sequence[Ids], most_nodes: int = MOST_NODES) -> tuple[Branches, ...]:
    """All labels, in as few parts as have at most so many nodes (or a single label that has more)."""
    order = sorted(range(len(labels)), key=lambda number: tuple(labels[number].tolist()))
    parts: list[list[int]] = [[]]
    nodes: set[tuple[int, ...]] = set()
    for number in order:
        own = set(_beginnings(labels[number]))
        if parts[-1] and len(nodes | own) > most_nodes:
            parts.append([])
            nodes = set()
        parts[-1].append(number)
        nodes |= own
    return tuple(_branches([labels[number] for number in part], part) for part in parts)


def _beginnings(label: Ids) -> list[tuple[int, ...]]:
    """What a label's tokens after the first one follow."""
    tokens = tuple(label.tolist())
    return [tokens[:length] for length in range(1, len(tokens))]


def _branches(labels: Sequence[Ids], numbers: Sequence[int]) -> Branches:
    nodes = sorted({begin for label in labels for begin in _beginnings(label)}, key=lambda begin: (len(begin), begin))
    place = {(): 0, **{begin: number for number, begin in enumerate(nodes, 1)}}
    wanted: list[list[int]] = [[] for _ in place]
    steps = []
    for label in labels:
        own = []
        tokens = tuple(label.tolist())
        for length, token in enumerate(tokens):
            line = place[tokens[:length]]
            if token not in wanted[line]:
                wanted[line].append(token)
            own.append((line, wanted[line].index(token)))
        steps.append(tuple(own))
    most = max(map(len, wanted))
    return Branches(
        labels=tuple(numbers),
        tokens=np.array([begin[-1] for begin in nodes], dtype=np.int64),
        depths=np.array([len(begin) - 1 for begin in nodes], dtype=np.int64),
        sees=np.array([[other == own[: len(other)] for other in nodes] for own in nodes], dtype=np.bool_),
        wanted=np.array([line + [0] * (most - len(line)) for line in wanted], dtype=np.int64),
        steps=tuple(steps),
    )
