"""Data: sources, tokenising with a cache, packing, the order of samples, loaders."""

from drumline.data.stream import StridedStream

__all__ = ["StridedStream"]
