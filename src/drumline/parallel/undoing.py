"""Windows that do not count, dropped or given up in a recovery: the part of the strategies that is for it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from drumline.parallel.averaging import Average
from drumline.parallel.buffers import Buffers
from drumline.parallel.groups import Groups
from drumline.parallel.strategy import Commits

if TYPE_CHECKING:
    from drumline.parallel.replicas import Replica
    from drumline.parallel.single import Part


class OnDevice:
    """Of one device; the base of Single."""

    device: torch.device
    _model: nn.Module
    _parts: dict[str, Part]
    _buffers: Buffers
    _average: Average | None
    _steps: int

    def discard(self, name: str) -> None:
        """Drop what the window did."""
        self._parts[name].update.clear()
        self._buffers.take_back()

    @property
    def can_rebuild(self) -> bool:
        """There is nobody whose group could be cut off."""
        return True

    @property
    def may_be_void(self) -> bool:
        """Only where a device reduces for itself."""
        return False

    def give_up(self) -> None:
        """Drop the gradients."""
        for part in self._parts.values():
            part.update.clear()

    def committed(self) -> Commits:
        """Steps that were made whole. A step that was begun and did not come to its end counts as half made."""
        for part in self._parts.values():
            voids, part.voids = 0 if part.voids is None else int(part.voids), None
            part.update.take_back(voids)
            self._steps -= voids
        return Commits(self._steps, any(part.update.entered for part in self._parts.values()))

    def undo(self) -> None:
        """Put buffers back as they were before a window that has not come to the end of its step."""
        if self._buffers.in_window:
            self._buffers.take_back()

    def settle(self, *, applied: bool) -> None:
        """Keep the buffers of a window whose step was taken over, if that was applied."""
        if not applied:
            self.undo()
        self._buffers.in_window = False

    def hand_over(self, groups: Groups, giver: int, *, takes: bool) -> None:
        """Nobody else is there."""

    def shared(self) -> dict[str, Any]:
        """Everything that is alike on all ranks between two windows and moves, buffers aside."""
        return {
            "weights": {name: p for name, p in self._model.named_parameters() if p.requires_grad},
            "average": None if self._average is None else self._average.state(),
            "learners": {name: part.update.state() for name, part in self._parts.items()},
        }

    @torch.no_grad()
    def take_over(self, state: Mapping[str, Any]) -> None:
        """Take what another rank's `shared` gave."""
        for name, p in self._model.named_parameters():
            if name in state["weights"]:
                p.copy_(state["weights"][name])
        for name, part in self._parts.items():
            part.update.load(state["learners"][name])
            part.update.entered = False
        if self._average is not None:
            self._average.load(state["average"])

    def rebuild(self, groups: Groups, steps: int) -> None:
        """Count from here on."""
        self._steps = steps


class OverReplicas:
    """Of all replicas of a process; the base of Replicated."""

    _replicas: list[Replica]
    _first: Replica
    _others: list[Replica]

    _send: Callable[[Callable[[Replica], list[Tensor]]], None]
    _note_versions: Callable[[], None]

    def discard(self, name: str) -> None:
        """Drop what the window did, on each."""
        for replica in self._replicas:
            replica.discard(name)

    @property
    def can_rebuild(self) -> bool:
        """There is no group: a bucket is summed once all replicas have filled it, so that none waits for another."""
        return True

    @property
    def may_be_void(self) -> bool:
        """The host has seen all replicas through a window before their step."""
        return False

    def give_up(self) -> None:
        """Drop the gradients of all."""
        for replica in self._replicas:
            replica.give_up()

    def committed(self) -> Commits:
        """The first replica's, which the others then take over where they are elsewhere."""
        commits = self._first.committed()
        others = [(replica, replica.committed()) for replica in self._others]
        if commits.torn:
            return commits
        for replica, found in others:
            if found != commits:
                state = self._first.shared()
                with replica.here():
                    replica.take_over({**copy.deepcopy(state), "average": None})
        self._send(lambda replica: replica.weights())
        self._note_versions()
        return commits

    def undo(self) -> None:
        """Put buffers back, on each."""
        for replica in self._replicas:
            replica.undo()

    def settle(self, *, applied: bool) -> None:
        """Nobody else makes a step for this process."""

    def hand_over(self, groups: Groups, giver: int, *, takes: bool) -> None:
        """Nobody else is there."""

    def rebuild(self, groups: Groups, steps: int) -> None:
        """Count from here on."""
        for replica in self._replicas:
            replica.rebuild(groups, steps)
