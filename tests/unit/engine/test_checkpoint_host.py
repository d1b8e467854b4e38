from __future__ import annotations

import io
from collections import Counter, OrderedDict
from typing import Any

import pytest
import torch

from drumline.engine import checkpoint_host
from drumline.engine.checkpoint_host import HostCopies, Places
from drumline.parallel.parts import Part, mapped


def test_a_copy_shares_nothing_with_what_it_is_of() -> None:
    weight = torch.arange(6.0).view(2, 3)
    history = [{"loss": 0.5}]
    part = Part(torch.ones(2), torch.Size([5]), 3)
    state: dict[str, Any] = {
        "one": weight,
        "again": weight,
        "view": weight.t(),
        "empty": torch.empty(0, 4),
        "part": part,
        "plain": (1, "two", None, [history]),
    }
    copy = HostCopies().copy(state)
    weight.zero_()
    part.tensor.zero_()
    history.append({"loss": 0.25})
    assert copy["one"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert copy["again"] is copy["one"]
    assert copy["view"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert copy["empty"].shape == (0, 4)
    assert copy["part"].tensor.tolist() == [1, 1] and copy["part"][1:] == part[1:]
    assert copy["plain"] == (1, "two", None, [[{"loss": 0.5}]])


def test_only_plain_containers_are_walked_through() -> None:
    counter = Counter({3: 1})
    ordered = OrderedDict(a=1, b=counter)
    seen: list[Any] = []

    def note(path: tuple[str, ...], leaf: Any) -> Any:
        seen.append((path, leaf))
        return leaf

    found = mapped({"x": ordered, "y": [(7,)]}, note)
    assert seen == [(("x", "a"), 1), (("x", "b"), counter), (("y", "0", "0"), 7)]
    assert type(found["x"]) is OrderedDict and found["x"]["b"] is counter


def test_places_are_used_again_and_written_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tensor has its type and strides, and a storage of its own, so that no neighbour gets into its file."""
    monkeypatch.setattr(checkpoint_host, "CHUNK", 1024)
    image = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    tensors = [
        torch.arange(5, dtype=torch.int64),
        image,
        torch.randn(400),
        torch.tensor(3.0),
        torch.randn(6)[::2],
        torch.tensor([True, False]),
        torch.randn(3).bfloat16(),
        torch.empty(0, 2),
    ]
    chunks: list[torch.Tensor] = []
    pointers = []
    for _ in range(2):
        places = Places(chunks, pinned=False)
        copies = [places.take(tensor).copy_(tensor) for tensor in tensors]
        for copy, tensor in zip(copies, tensors, strict=True):
            assert torch.equal(copy, tensor) and copy.dtype == tensor.dtype
            assert copy.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        assert copies[1].stride() == image.stride()
        pointers.append([copy.data_ptr() for copy in copies])
    assert pointers[0] == pointers[1]
    assert [chunk.numel() for chunk in chunks] == [1024, 1600, 1024]
    file = io.BytesIO()
    torch.save(copies[0], file)
    assert len(file.getvalue()) < 2000
