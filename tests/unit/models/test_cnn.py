"""The small convolutional network."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from drumline.models.cnn import Cnn


@pytest.mark.parametrize(("channels", "size"), [(1, 28), (3, 32), (3, 7), (1, 1)])
def test_any_image_size_fits(channels: int, size: int) -> None:
    model = Cnn(channels, 5, width=4, num_stages=3)
    assert model(torch.randn(2, channels, size, size)).shape == (2, 5)


def test_stages_double_in_width_and_halve_the_image() -> None:
    model = Cnn(1, 3, width=4, num_stages=3)
    x, shapes = torch.randn(2, 1, 28, 28), []
    for stage in model.stages:
        x = stage(x)
        shapes.append(tuple(x.shape[1:]))
    assert shapes == [(4, 28, 28), (8, 14, 14), (16, 7, 7)]


def test_fresh_weights_follow_the_seed_and_keep_the_scale() -> None:
    torch.manual_seed(3)
    first = Cnn(1, 10, width=8)
    torch.manual_seed(3)
    second = Cnn(1, 10, width=8)
    assert all(torch.equal(one, other) for one, other in zip(first.parameters(), second.parameters(), strict=True))
    first.reset_parameters()
    assert not torch.equal(first.head.weight, second.head.weight)
    logits = second(torch.randn(64, 1, 28, 28))
    assert 0.05 < float(logits.detach().std()) < 2


def test_it_learns_where_a_bright_bar_stands() -> None:
    torch.manual_seed(0)
    labels = torch.arange(4).repeat(8)
    images = 0.1 * torch.randn(32, 1, 8, 8)
    for number, label in enumerate(labels.tolist()):
        images[number, 0, 2 * label : 2 * label + 2, : 4 if label % 2 else 8] += 1.0
    model = Cnn(1, 4, width=4, num_stages=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    assert (model.eval()(images).argmax(1) == labels).float().mean() > 0.9


def test_dropout_is_before_the_last_layer() -> None:
    model = Cnn(1, 2, width=4, num_stages=1, dropout=0.5)
    assert isinstance(model.dropout, nn.Dropout) and model.dropout.p == 0.5
    images = torch.randn(4, 1, 8, 8)
    assert not torch.equal(model(images), model(images))
    model.eval()
    assert torch.equal(model(images), model(images))
