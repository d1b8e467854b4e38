"""PowerSGD (Vogels et al. 2019): matrices summed over ranks as two factors, with feedback of what they leave out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby

import torch
from torch import Tensor

LEAST_SAVING = 2
"""A matrix goes as factors where they have less than half of its elements (torch's powerSGD_hook asks for as much)."""
DAMPING = 1e-12
"""Added to the factors' Gram matrix, as a share of its trace: directions a million times weaker than the whole, which
are rounding noise in float32, are damped instead of blown up."""


class Group:
    """Matrices of one shape in one bucket, and their factors as one block each."""

    def __init__(
        self, names: Sequence[str], shape: tuple[int, int], left: Tensor, right: Tensor, fresh: Tensor
    ) -> None:
        self.names = names
        self.shape = shape
        self.left = left
        """Of shape (matrices, rows, rank)."""
        self.right = right
        """Of shape (matrices, columns, rank); kept from window to window, so that factors get better."""
        self.fresh = fresh
        """Random values for the right factors, equal on all ranks."""

    def revive(self) -> None:
        """Begin anew where a right factor's column is zero or not finite: it would stay so for good."""
        size = torch.linalg.vector_norm(self.right, dim=1, keepdim=True)
        self.right.copy_(torch.where(torch.isfinite(size) & (size > 0), self.right, self.fresh))


class Slot:
    """One bucket's matrices, and what of them travels."""

    def __init__(self, gradients: Mapping[str, Tensor], numbers: Mapping[str, int], rank: int) -> None:
        like = next(iter(gradients.values()))
        shapes = {name: factor_shape(gradient, rank) for name, gradient in gradients.items()}
        matrices = {name: shape for name, shape in shapes.items() if shape is not None}
        self.plain = [name for name, shape in shapes.items() if shape is None]
        by_shape = [
            list(names) for _, names in groupby(sorted(matrices, key=lambda n: matrices[n]), matrices.__getitem__)
        ]
        sizes = [len(names) * matrices[names[0]][2] for names in by_shape]
        lefts = [size * matrices[names[0]][0] for size, names in zip(sizes, by_shape, strict=True)]
        rights = [size * matrices[names[0]][1] for size, names in zip(sizes, by_shape, strict=True)]
        plain = [gradients[name].numel() for name in self.plain]
        self.first = like.new_empty(sum(plain) + sum(lefts))
        """What travels first: gradients that are no such matrices, and the left factors."""
        self.second = like.new_empty(sum(rights))
        """What travels then: the right factors."""
        parts = self.first.split([*plain, *lefts])
        self.plain_parts = list(parts[: len(plain)])
        self.groups: list[Group] = []
        for names, left, right in zip(by_shape, parts[len(plain) :], self.second.split(rights), strict=True):
            rows, columns, depth = matrices[names[0]]
            fresh = torch.stack([random_matrix(columns, depth, numbers[name]) for name in names]).to(like)
            right = right.view_as(fresh).copy_(fresh)
            self.groups.append(Group(names, (rows, columns), left.view(len(names), rows, depth), right, fresh))
        total = sum(matrix[0] * matrix[1] for matrix in matrices.values())
        self.error, self.before = like.new_zeros(total), like.new_zeros(total)
        """What the factors have left out on this rank, and the same as it was before the newest window."""

    def matrices(self, values: Mapping[str, Tensor]) -> list[Tensor]:
        """Those of the bucket's values that go as factors, as matrices, in the order of the groups."""
        return [values[name].view(group.shape) for group in self.groups for name in group.names]

    def views(self, errors: Tensor) -> dict[str, Tensor]:
        """The parts of one of the two error vectors, as matrices by name."""
        shapes = {name: group.shape for group in self.groups for name in group.names}
        parts = errors.split([rows * columns for rows, columns in shapes.values()])
        return {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


class LowRank:
    """The factors and errors of one learner's gradients.

    With M_i the gradient of rank i plus what was left out of its last one: P = orthonormal(sum M_i Q), Q = sum M_i^T P,
    and all ranks take P Q^T; rank i keeps M_i - P (M_i^T P)^T for the next window. Gram-Schmidt is replaced by a
    Cholesky factor, which takes all matrices of one shape at once. Weights are equal to the bit on equal devices.
    """

    def __init__(self, names: Sequence[str], rank: int, reduce: Callable[[Tensor], object]) -> None:
        """reduce: sums a tensor over all ranks in place."""
        self._rank = rank
        self._reduce = reduce
        self._numbers = {name: number for number, name in enumerate(names)}
        self._slots: dict[tuple[str, ...], Slot] = {}
        self._loaded: dict[str, Tensor] = {}
        self._loaded_factors: dict[str, Tensor] = {}

    def sum(self, gradients: Mapping[str, Tensor]) -> None:
        """Sum one bucket's gradients over all ranks, in place."""
        slot = self._slot(gradients)
        matrices = slot.matrices(gradients)
        plain = [gradients[name].reshape(-1) for name in slot.plain]
        slot.error, slot.before = slot.before, slot.error
        if matrices:
            torch._foreach_add_(matrices, list(slot.views(slot.before).values()))
        if plain:
            torch._foreach_copy_(slot.plain_parts, plain)
        lefts = [left for group in slot.groups for left in group.left]
        rights = [right for group in slot.groups for right in group.right]
        for matrix, left, right in zip(matrices, lefts, rights, strict=True):
            torch.mm(matrix, right, out=left)
        self._reduce(slot.first)
        if plain:
            torch._foreach_copy_(plain, slot.plain_parts)
        if not matrices:
            return
        for group in slot.groups:
            orthonormalise(group.left)
        errors = slot.views(slot.error).values()
        for matrix, left, right, error in zip(matrices, lefts, rights, errors, strict=True):
            torch.mm(matrix.T, left, out=right)
            torch.addmm(matrix, left, right.T, alpha=-1, out=error)
        self._reduce(slot.second)
        for matrix, left, right in zip(matrices, lefts, rights, strict=True):
            torch.mm(left, right.T, out=matrix)
        for group in slot.groups:
            group.revive()

    def _slot(self, gradients: Mapping[str, Tensor]) -> Slot:
        key = tuple(gradients)
        if key not in self._slots:
            slot = self._slots[key] = Slot(gradients, self._numbers, self._rank)
            for name, error in slot.views(slot.error).items():
                if name in self._loaded:
                    error.copy_(self._loaded.pop(name))
            for group in slot.groups:
                for name, right in zip(group.names, group.right, strict=True):
                    loaded = self._loaded_factors.pop(name, None)
                    if loaded is not None and loaded.shape == right.shape:
                        right.copy_(loaded)
        return self._slots[key]

    def settle(self, applied: Tensor, growth: Tensor | float) -> None:
        """Take the errors of before again if `applied` is 0.0; growth: factor on all errors."""
        for slot in self._slots.values():
            torch.where(applied > 0, slot.error, slot.before, out=slot.error)
            slot.error.mul_(growth)

    def take_back(self) -> None:
        """Take the errors of before again."""
        for slot in self._slots.values():
            slot.error.copy_(slot.before)

    def errors(self) -> dict[str, Tensor]:
        """Copies of this rank's errors by name; without those of matrices that no window has compressed."""
        found = {n: e.clone() for slot in self._slots.values() for n, e in slot.views(slot.error).items()}
        return found | {name: error.clone() for name, error in self._loaded.items()}

    def factors(self) -> dict[str, Tensor]:
        """Copies of the right factors by name; equal on all ranks."""
        groups = [group for slot in self._slots.values() for group in slot.groups]
        found = {n: right.clone() for group in groups for n, right in zip(group.names, group.right, strict=True)}
        return found | self._loaded_factors

    def load(self, errors: Mapping[str, Tensor], factors: Mapping[str, Tensor]) -> None:
        """Go on with these errors and factors; zero and fresh ones where there are none, or of another rank."""
        self._slots = {}
        self._loaded, self._loaded_factors = dict(errors), dict(factors)


def factor_shape(gradient: Tensor, rank: int) -> tuple[int, int, int] | None:
    """Rows, columns and rank of a gradient that is worth compressing, else None."""
    if gradient.dim() < 2:
        return None
    rows, columns = gradient.shape[0], gradient.numel() // gradient.shape[0]
    rank = min(rank, rows, columns)
    worth = LEAST_SAVING * rank * (rows + columns) < rows * columns
    return (rows, columns, rank) if worth else None


def random_matrix(rows: int, columns: int, seed: int) -> Tensor:
    """Normal values, the same in every process."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def orthonormalise(columns: Tensor) -> None:
    """Make each matrix's columns orthonormal, in place; shape (matrices, rows, rank).

    Directions that are missing become zero columns, and never more than length one. One value that is not finite makes
    the whole matrix NaN. Nobody waits for the device.
    """
    wide = columns.double()
    gram = wide.mT @ wide
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
    tiny = torch.finfo(torch.float64).tiny
    eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
    factor, _ = torch.linalg.cholesky_ex(gram + (DAMPING * trace + tiny) * eye)
    result = torch.linalg.solve_triangular(factor.mT, wide, upper=True, left=False)
    columns.copy_(result + (trace - trace))  # zero, or NaN where the trace is not finite
