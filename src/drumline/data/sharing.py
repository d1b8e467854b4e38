"""How batches come from loader processes: into shared memory where a failure can be told, out of it at once."""

from __future__ import annotations

import errno
import multiprocessing.queues
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._utils import ExceptionWrapper

from drumline.data.limits import PAGE_BYTES, Sharing, size
from drumline.errors import DataError, LoaderKilled
from drumline.hardware.host import open_files, space

SHARED_MEMORY = Path("/dev/shm")

_NO_MEMORY = ("unable to allocate shared memory", "unable to mmap", "unable to open shared memory", "Bus error")
_NO_HANDLES = ("received 0 items of ancdata", "Too many open files")
_ENDED = re.compile(r"DataLoader worker \(pid(?:\(s\))? [\d, ]+\) (?:is killed by signal|exited unexpectedly)")


def tensors(batch: Any) -> Iterator[Tensor]:
    """The tensors of nested lists, tuples and mappings."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from tensors(value)
    elif isinstance(batch, list | tuple):
        for value in batch:
            yield from tensors(value)


def shareable(batch: Any) -> Iterator[Tensor]:
    """The tensors whose storage goes from process to process in shared memory."""
    dense = (each for each in tensors(batch) if each.layout == torch.strided and each.device.type == "cpu")
    return (each for each in dense if each.numel())  # torch has nothing to share of an empty one


def share(batch: Any) -> None:
    """Move the tensors of a batch to shared memory, here and now.

    torch would do it when the batch is sent, in a thread whose errors nobody hears of: the batch would never come.
    """
    for tensor in shareable(batch):
        tensor.share_memory_()


def unshared(batch: Any) -> Any:
    """The batch with copies of the tensors that lie in shared memory.

    A file handle stays open, and shared memory taken, for as long as a shared tensor lives: whoever keeps batches in a
    list runs out of them (pytorch #11201, #973). Copying is what every GPU run does anyway.
    """
    if isinstance(batch, Tensor):
        return batch.clone() if batch.layout == torch.strided and batch.is_shared() else batch
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(unshared(item) for item in batch))
    if type(batch) in (list, tuple):
        return type(batch)(unshared(item) for item in batch)
    if type(batch) is dict:
        return {key: unshared(value) for key, value in batch.items()}
    if isinstance(batch, Mapping) and hasattr(batch, "update"):  # such as Hugging Face's BatchEncoding, which is kept
        batch.update({key: unshared(value) for key, value in batch.items()})
    return batch


def shared_size(batch: Any) -> tuple[int, int]:
    """Bytes of shared memory, in whole pages, and number of tensors of a batch on its way."""
    found = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in shareable(batch)}
    return sum(-(-num_bytes // PAGE_BYTES) * PAGE_BYTES for num_bytes in found.values()), len(found)


def begin_sharing(sharing: Sharing) -> None:
    """Set how this loader process shares tensors, and let the errors of its sending thread be heard."""
    torch.multiprocessing.set_sharing_strategy(sharing)
    multiprocessing.queues.Queue._on_queue_feeder_error = send_error  # type: ignore[attr-defined]


def send_error(queue: multiprocessing.queues.Queue[Any], error: Exception, item: Any) -> None:
    """Send, in place of an item that could not be, why: Python drops it, and the reader waits for ever."""
    if isinstance(item, tuple) and len(item) == 2:
        queue.put((item[0], ExceptionWrapper(where="in a loader process, while sending a batch")))
    else:
        traceback.print_exception(error, file=sys.stderr)


def explained(error: BaseException) -> DataError | None:
    """What an error of torch's loader means and what to do; None for an error of another kind.

    torch raises that a loader process was killed wherever the main thread is just then, so not only while reading.
    """
    text = "\n".join(str(each) for each in (error.__cause__, error) if each is not None)
    smaller = "lower loader.prefetch_factor or loader.num_workers (0 does without)"
    if any(words in text for words in _NO_MEMORY):
        room = space(SHARED_MEMORY)
        state = f": it has {size(room.free_bytes)} of {size(room.size_bytes)} free" if room is not None else ""
        return DataError(
            f"a loader process found no room for a batch in shared memory (/dev/shm){state}",
            f"start the container with more (docker run --shm-size=8g, or --ipc=host), or {smaller}",
        )
    if any(words in text for words in _NO_HANDLES) or getattr(error, "errno", None) == errno.EMFILE:
        limits = open_files()
        return DataError(
            f"too many open files: the limit is {limits.soft} a process, and each tensor from a loader process is one",
            f"raise it before the start (ulimit -n 65536, docker run --ulimit nofile=65536), or {smaller}",
        )
    if match := _ENDED.search(text):
        return LoaderKilled(
            f"a loader process ended before its work was done: {_reason(text[match.start() :])}",
            f"see the end of this rank's log; {smaller}, so that less is held in memory",
        )
    return None


def _reason(text: str) -> str:
    """Why a loader process may be gone, after what torch says of it."""
    line = text.splitlines()[0].rstrip(". ")
    for words, why in (
        ("Killed", "nobody kills it but the kernel when memory runs out, or a person"),
        ("Segmentation fault", "a crash in native code that reads or decodes rows"),
        ("Aborted", "native code that reads or decodes rows gave up"),
    ):
        if words in line:
            return f"{line} ({why})"
    return line
