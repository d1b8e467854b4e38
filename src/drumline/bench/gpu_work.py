"""What the tests of GPUs do: work whose every result is known, and how long it takes. Each gives its facts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from drumline.engine.timing import DeviceClock

WORD = 8
"""Bytes of the words that memory is tested in."""
CHUNK_BYTES, SLICE_BYTES = 1 << 30, 1 << 27
"""What is allocated at once, and what is compared at once: a comparison needs memory of its own."""
PATTERNS: dict[str, int | None] = {
    "zeros": 0,
    "ones": -1,
    "01": 0x5555555555555555,
    "10": -0x5555555555555556,
    "addresses": None,
}
"""Equal words find bits that stick or leak into their neighbours; each word's own number finds address lines."""
_SPARE_BYTES = 1 << 29
"""Free memory that is not tested: comparisons need some, and so do others on the GPU."""


@dataclass(frozen=True)
class Sizes:
    """How much each test does; smaller ones are for the CPU."""

    memory_share: float = 0.9
    """Of the memory that is free."""
    memory_bytes: int | None = None
    """At most so many; None: no limit but the share."""
    copy_bytes: int = 1 << 28
    product: int = 8192
    """Rows and columns of the matrices whose product is timed; those that are compared have half of each."""
    seconds: float = 0.5
    """How long each rate is measured."""


def memory(device: torch.device, sizes: Sizes) -> dict[str, Any]:
    """Write most of the free memory with each pattern, read all of it back, and count words that differ."""
    free = _free_bytes(device)
    wanted = min(free * sizes.memory_share, free - _SPARE_BYTES, sizes.memory_bytes or free)
    chunks = list(_chunks(device, int(wanted)))
    wrong = {}
    clock = DeviceClock(device)
    clock.drain()
    began = time.perf_counter()
    for name in PATTERNS:
        write_pattern(chunks, name)
        wrong[name] = count_wrong(chunks, name)
    seconds = time.perf_counter() - began
    tested = sum(chunk.numel() for chunk in chunks) * WORD
    return {"bytes": tested, "wrong": {name: count for name, count in wrong.items() if count}, "seconds": seconds}


def write_pattern(chunks: Sequence[Tensor], name: str) -> None:
    """Fill int64 tensors with one of PATTERNS."""
    value, first = PATTERNS[name], 0
    for chunk in chunks:
        if value is None:
            torch.arange(first, first + chunk.numel(), out=chunk)
        else:
            chunk.fill_(value)
        first += chunk.numel()


def count_wrong(chunks: Sequence[Tensor], name: str) -> int:
    """How many words of these tensors are not what `write_pattern` left in them."""
    if not chunks:
        return 0
    value, first = PATTERNS[name], 0
    wrong = torch.zeros((), dtype=torch.int64, device=chunks[0].device)
    for chunk in chunks:
        for part in chunk.split(SLICE_BYTES // WORD):
            if value is None:
                expected = torch.arange(first, first + part.numel(), device=part.device)
                wrong += (part != expected).sum()
            else:
                wrong += (part != value).sum()
            first += part.numel()
    return int(wrong)


def product(device: torch.device, sizes: Sizes) -> dict[str, Any]:
    """Rate of a matrix product, and whether every element of one is exact.

    The compared one is of small whole numbers, whose sums no order of adding changes: each repetition must give the
    same bits as float64, which other units of the GPU compute.
    """
    dtype = _product_dtype(device)
    size = sizes.product
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty(size, size, device=device, dtype=dtype)
    seconds = _time(device, lambda: torch.mm(a, b, out=out), sizes.seconds)
    wrong = sum(_wrong_products(device, dtype, size // 2))
    name = str(dtype).removeprefix("torch.")
    return {"flops_per_s": 2 * size**3 / seconds, "dtype": name, "wrong": wrong}


def _wrong_products(device: torch.device, dtype: torch.dtype, size: int, repeats: int = 5) -> Iterator[int]:
    generator = torch.Generator(device).manual_seed(1)
    # Three of four are zero, the others 1 or -1: sums stay far below 257, so that even bfloat16 holds each exactly.
    draws = [torch.randint(0, 8, (size, size), generator=generator, device=device) for _ in range(2)]
    a, b = ((draw == 0).to(dtype) - (draw == 1).to(dtype) for draw in draws)
    expected = (a.double() @ b.double()).to(dtype)
    for _ in range(repeats):
        yield int((torch.mm(a, b) != expected).sum())


def device_copy(device: torch.device, sizes: Sizes) -> dict[str, Any]:
    """Bandwidth of a copy within the GPU's memory, each byte read and written, and words that differ."""
    source = _numbered(sizes.copy_bytes, device)
    target = torch.zeros_like(source)
    seconds = _time(device, lambda: target.copy_(source), sizes.seconds)
    return {"bytes_per_s": 2 * _bytes(source) / seconds, "wrong": count_wrong([target], "addresses")}


def host_copy(device: torch.device, sizes: Sizes) -> dict[str, Any]:
    """Bandwidth of copies from pinned memory of the host to the GPU and back, and words that differ after both."""
    pinned = device.type == "cuda"
    source = torch.arange(sizes.copy_bytes // WORD, pin_memory=pinned)
    back = torch.zeros(sizes.copy_bytes // WORD, dtype=torch.int64, pin_memory=pinned)
    there = torch.zeros_like(source, device=device)
    to_device = _time(device, lambda: there.copy_(source, non_blocking=True), sizes.seconds)
    to_host = _time(device, lambda: back.copy_(there, non_blocking=True), sizes.seconds)
    return {
        "to_device_bytes_per_s": _bytes(source) / to_device,
        "to_host_bytes_per_s": _bytes(source) / to_host,
        "wrong": count_wrong([there], "addresses") + count_wrong([back], "addresses"),
    }


def peer_copy(devices: Sequence[torch.device], sizes: Sizes) -> dict[str, Any]:
    """Bandwidth of a copy from the first GPU to the second, and words that arrive as others."""
    first, second = devices
    source = _numbered(sizes.copy_bytes, first)
    target = torch.zeros(source.numel(), dtype=source.dtype, device=second)
    direct = None
    if first.type == "cuda":
        direct = torch.cuda.can_device_access_peer(first, second)
    seconds = _time_all(devices, lambda: target.copy_(source), sizes.seconds)
    return {"bytes_per_s": _bytes(source) / seconds, "wrong": count_wrong([target], "addresses"), "direct": direct}


def all_reduce(devices: Sequence[torch.device], sizes: Sizes) -> dict[str, Any]:
    """Bus bandwidth (nccl-tests' definition) of an all-reduce over all GPUs in this process, and elements that differ.

    Whole numbers, so that the sum has one right answer in any order.
    """
    count = sizes.copy_bytes // 4
    whole = torch.arange(count, dtype=torch.float32).remainder(1021)
    tensors = [(whole + rank).to(device) for rank, device in enumerate(devices)]
    expected = whole * len(devices) + sum(range(len(devices)))
    _reduce(tensors)
    wrong = sum(int((tensor.cpu() != expected).sum()) for tensor in tensors)
    for tensor in tensors:
        tensor.zero_()
    seconds = _time_all(devices, lambda: _reduce(tensors), sizes.seconds)
    bus = 2 * (len(devices) - 1) / len(devices)
    return {"bus_bytes_per_s": bus * count * 4 / seconds, "wrong": wrong}


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info(device)[0])
    return CHUNK_BYTES


def _chunks(device: torch.device, wanted: int) -> Iterator[Tensor]:
    while wanted >= WORD:
        size = min(wanted, CHUNK_BYTES)
        try:
            yield torch.empty(size // WORD, dtype=torch.int64, device=device)
        except torch.OutOfMemoryError:  # the free memory lies in pieces, or somebody else took of it
            return
        wanted -= size


def _numbered(size_bytes: int, device: torch.device) -> Tensor:
    return torch.arange(size_bytes // WORD, device=device)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _product_dtype(device: torch.device) -> torch.dtype:
    if device.type != "cuda":
        return torch.float32
    return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16


def _reduce(tensors: list[Tensor]) -> None:
    if tensors[0].is_cuda:
        torch.cuda.nccl.all_reduce(tensors)
        return
    total = torch.stack(tensors).sum(0)
    for tensor in tensors:
        tensor.copy_(total)


def _time(device: torch.device, call: Callable[[], Any], seconds: float) -> float:
    return _time_all([device], call, seconds)


def _time_all(devices: Sequence[torch.device], call: Callable[[], Any], seconds: float) -> float:
    """Seconds of one call, over as many as take about so long; every device is idle before and after."""
    clocks = [DeviceClock(device) for device in set(devices)]

    def timed(calls: int) -> float:
        for clock in clocks:
            clock.drain()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        for clock in clocks:
            clock.drain()
        return (time.perf_counter() - began) / calls

    timed(2)  # the first ones load kernels and open connections
    return timed(max(3, min(1000, round(seconds / max(timed(1), 1e-9)))))
