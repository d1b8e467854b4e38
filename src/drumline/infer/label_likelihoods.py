"""How likely a causal model finds each label after each prompt: prompts go through it once, whatever their labels."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from drumline.data.tokenizers import Ids
from drumline.infer.label_tree import Branches, branches_of
from drumline.infer.likelihood import CausalLikelihood

Sums = NDArray[np.float64]
"""[rows, labels]: log-likelihoods, in nats."""

_MADE_UP, _MOST_VERIFIED = 24, 8
"""Tokens of a prompt, and labels, that the tree is compared with the plain way on."""

_logger = logging.getLogger("drumline")


class LabelLikelihoods:
    """Sums of the log-likelihoods of labels' tokens, given a model and the labels' ids.

    Where the model's attention takes any mask, the labels' tokens follow the prompt's kept keys and values as one tree;
    what all prompts begin with is computed once. Elsewhere prompt and label go through the model once a label that has
    more than one token. Either way a row's numbers depend on its ids and on the shape of the batch, and not on what
    else is in it.
    """

    def __init__(self, likelihood: CausalLikelihood, labels: Sequence[Ids]) -> None:
        self._model = likelihood
        self._labels = list(labels)
        self._branches = branches_of(labels)
        self.num_nodes = max(len(branches.tokens) for branches in self._branches)
        """Most tokens that go through the model behind a prompt at once."""
        self.is_tree = likelihood.can_keep
        """Whether prompts are computed once for all labels."""
        self._prefix: Ids = np.empty(0, dtype=np.int64)
        self._kept: list[tuple[Tensor, Tensor]] = []

    def share(self, prefix: Sequence[int]) -> None:
        """From now on compute these tokens once, for all prompts that begin with them."""
        self._prefix = np.array(prefix if self.is_tree else (), dtype=np.int64)
        self._kept = []

    @torch.inference_mode()
    def verify(self) -> None:
        """Give the tree up, with a warning, if on a made-up batch the plain way says something else."""
        sample = sorted(self._labels, key=len)[-_MOST_VERIFIED:]
        room = _MADE_UP if self._model.room is None else min(_MADE_UP, self._model.room - len(sample[-1]))
        if not self.is_tree or not self.num_nodes or room < 2:
            return
        trial, words = LabelLikelihoods(self._model, sample), np.concatenate(sample)
        prompts: list[Ids | None] = [np.resize(words, room), np.resize(words, room - room // 3)]
        try:
            found = trial._by_tree(prompts, room, self._prefix[:0])
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
            self._give_up(f"{type(error).__name__}: {error}")
            return
        allowed = 1e-3 if self._model.dtype in (torch.float32, torch.float64) else 0.5
        difference = float(np.abs(found - trial._one_by_one(prompts, room)).max())
        if not difference <= allowed * len(sample[-1]):
            self._give_up(f"the log-likelihoods are off by {difference:.2g}")

    def _give_up(self, why: str) -> None:
        _logger.warning("labels go through the model one by one, since as a tree it does not take them: %s", why)
        self.is_tree = False
        self.share(())

    @torch.inference_mode()
    def __call__(self, prompts: Sequence[Ids | None], width: int) -> Sums:
        """Of each row; rows that are not there get what some made-up prompt would."""
        if not self.is_tree:
            return self._one_by_one(prompts, width)
        if not len(self._prefix):
            return self._by_tree(prompts, width, self._prefix)
        sums = np.zeros((len(prompts), len(self._labels)))
        there = np.array([ids is not None for ids in prompts])
        shares = np.array([ids is not None and self._shares(ids) for ids in prompts])
        # Rows without the prefix are rare; they go on their own, so that no row's way depends on another's.
        for prefix, chosen in ((self._prefix, shares), (self._prefix[:0], there & ~shares)):
            if chosen.any():
                own = [ids if here else None for ids, here in zip(prompts, chosen, strict=True)]
                sums[chosen] = self._by_tree(own, width, prefix)[chosen]
        return sums

    def _shares(self, ids: Ids) -> bool:
        shared = len(self._prefix)
        return len(ids) > shared and np.array_equal(ids[:shared], self._prefix)

    def _by_tree(self, prompts: Sequence[Ids | None], width: int, prefix: Ids) -> Sums:
        shared, columns = len(prefix), width - len(prefix)
        lengths = torch.tensor([shared + 1 if ids is None else len(ids) for ids in prompts], device=self._model.device)
        rests = [None if ids is None else ids[shared:] for ids in prompts]
        cache = self._with_prefix(len(prompts), prefix) if shared or self.num_nodes else None
        states = self._model.states(self._model.padded(rests, columns), cache)
        last = states[torch.arange(len(prompts), device=states.device), (lengths - shared - 1).to(states.device)]
        del states
        sums = np.zeros((len(prompts), len(self._labels)))
        for branches in self._branches:
            following = last[:, None]
            if len(branches.tokens):
                following = torch.cat([following, self._nodes(branches, lengths, width, cache)], 1)
            sums[:, branches.labels] = self._sums(branches, following)
        return sums

    def _with_prefix(self, rows: int, prefix: Ids) -> Any:
        cache = self._model.new_cache()
        if not len(prefix):
            return cache
        if not self._kept:
            once = self._model.new_cache()
            self._model.states(self._model.padded([prefix], len(prefix)), once)
            self._kept = [(layer.keys, layer.values) for layer in once.layers]
        for number, (keys, values) in enumerate(self._kept):
            cache.update(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1), number)
        return cache

    def _nodes(self, branches: Branches, lengths: Tensor, width: int, cache: Any) -> Tensor:
        """States of the nodes, [B, nodes, width of a state], behind prompts of so many tokens; the cache stays."""
        device = self._model.device
        tokens, depths = torch.from_numpy(branches.tokens).to(device), torch.from_numpy(branches.depths).to(device)
        sees = torch.from_numpy(branches.sees).to(device)
        column = torch.arange(width, device=device)
        positions = lengths[:, None] + depths  # [B, nodes]
        masks = []
        for slides in self._model.sliding:
            of_prompt = (column < lengths[:, None])[:, None].expand(-1, len(tokens), -1)
            of_nodes = sees
            if slides and self._model.window is not None:
                of_prompt = of_prompt & (column > positions[..., None] - self._model.window)
                of_nodes = sees & (depths > depths[:, None] - self._model.window)
            seen = torch.cat([of_prompt, of_nodes.expand(len(lengths), -1, -1)], -1)
            hidden = torch.finfo(self._model.dtype).min
            masks.append(torch.zeros_like(seen, dtype=self._model.dtype).masked_fill_(~seen, hidden)[:, None])
        states = self._model.states(tokens.expand(len(lengths), -1), cache, masks, positions)
        for layer in cache.layers:
            layer.keys, layer.values = layer.keys[..., :width, :], layer.values[..., :width, :]
        return states

    def _sums(self, branches: Branches, states: Tensor) -> Sums:
        """Of the labels of some branches, from states [B, 1 + nodes, width of a state]."""
        rows, places, _ = states.shape
        wanted = torch.from_numpy(branches.wanted).to(states.device).repeat(rows, 1)
        found = self._model.log_likelihoods(states.flatten(0, 1), wanted).view(rows, places, -1)
        table = found.cpu().double().numpy()
        return np.stack([sum(table[:, line, at] for line, at in steps) for steps in branches.steps], 1)

    def _one_by_one(self, prompts: Sequence[Ids | None], width: int) -> Sums:
        """Prompt and label through the model as they stand; labels of one token need the prompts alone."""
        device = self._model.device
        rows = torch.arange(len(prompts))[:, None]
        lengths = torch.tensor([1 if ids is None else len(ids) for ids in prompts], device=device)[:, None]
        sums = np.zeros((len(prompts), len(self._labels)))
        firsts: Tensor | None = None
        for number, label in enumerate(self._labels):
            if len(label) == 1 and firsts is not None:
                last = firsts
            else:
                whole = [None if ids is None else np.concatenate([ids, label[:-1]]) for ids in prompts]
                states = self._model.states(self._model.padded(whole, width + len(label) - 1))
                last = states[
                    rows.to(states.device), (lengths - 1 + torch.arange(len(label), device=device)).to(states.device)
                ]
                firsts = last if len(label) == 1 else firsts
            wanted = torch.from_numpy(label).to(last.device).repeat(len(prompts))[:, None]
            found = self._model.log_likelihoods(last.flatten(0, 1), wanted).view(len(prompts), -1)
            sums[:, number] = found.cpu().double().numpy().sum(1)
        return sums
