from __future__ import annotations

import errno
from collections import OrderedDict, UserDict
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from drumline.data.sharing import explained, share, shared_size, tensors, unshared


class Pair(NamedTuple):
    first: Any
    second: Any


def nested() -> dict[str, Any]:
    """A batch of every kind of container, with seven tensors."""
    return {
        "plain": torch.arange(3),
        "list": [torch.ones(2), "text", 4],
        "tuple": (torch.zeros(1), None),
        "named": Pair(torch.full((2,), 5), {"deep": torch.eye(2)}),
        "empty": torch.zeros(0, 3),
        "own": UserDict({"ids": torch.arange(2)}),
    }


def test_tensors_are_found_in_every_container() -> None:
    assert len(list(tensors(nested()))) == 7
    assert list(tensors("text")) == []


def test_a_batch_goes_into_shared_memory_and_out_of_it() -> None:
    batch = nested()
    share(batch)
    assert all(each.is_shared() for each in tensors(batch) if each.numel())
    own = unshared(batch)
    assert not any(each.is_shared() for each in tensors(own))
    assert [each.tolist() for each in tensors(own)] == [each.tolist() for each in tensors(nested())]
    assert [type(value) for value in own.values()] == [type(value) for value in nested().values()]
    assert own["list"][1:] == ["text", 4] and own["tuple"][1] is None


def test_other_kinds_of_batches_come_through() -> None:
    packed = pack_sequence([torch.arange(3.0), torch.arange(2.0)])
    ordered = OrderedDict(b=torch.ones(2), a=torch.ones(1))
    share([packed, ordered])
    own = unshared([packed, ordered])
    assert isinstance(own[0], PackedSequence) and torch.equal(own[0].data, packed.data)
    assert isinstance(own[1], OrderedDict) and list(own[1]) == ["b", "a"]
    assert not any(each.is_shared() for each in tensors(own))
    marker = object()
    assert unshared(marker) is marker


def test_sparse_tensors_are_left_to_torch() -> None:
    sparse = torch.eye(2).to_sparse()
    share([sparse])
    assert unshared([sparse])[0] is sparse
    assert shared_size([sparse]) == (0, 0)


def test_sizes_are_in_whole_pages_and_views_of_one_storage_count_once() -> None:
    rows = torch.zeros(10_000, dtype=torch.uint8)
    assert shared_size({"a": rows[:5], "b": rows[5:], "c": torch.zeros(1), "d": "text"}) == (4096 * 4, 2)
    assert shared_size(torch.zeros(0)) == (0, 0)


KILLED = RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed. ")


@pytest.mark.parametrize(
    ("error", "problem", "fix"),
    [
        (
            RuntimeError("unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)"),
            "no room for a batch in shared memory",
            "--shm-size",
        ),
        (
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error. It is possible that"),
            "no room for a batch in shared memory",
            "--shm-size",
        ),
        (RuntimeError("received 0 items of ancdata"), "too many open files", "ulimit -n"),
        (RuntimeError("Too many open files. Communication with the workers"), "too many open files", "nofile="),
        (OSError(errno.EMFILE, "no"), "too many open files", "loader.num_workers"),
        (KILLED, "is killed by signal: Killed (nobody kills it but the kernel", "loader.prefetch_factor"),
        (
            RuntimeError("DataLoader worker (pid 7) is killed by signal: Segmentation fault. "),
            "a crash in native code",
            "log",
        ),
        (RuntimeError("DataLoader worker (pid(s) 7, 8) exited unexpectedly"), "pid(s) 7, 8) exited", "log"),
    ],
)
def test_what_torch_says_of_loader_processes_is_explained(error: Exception, problem: str, fix: str) -> None:
    found = explained(error)
    assert found is not None
    assert problem in found.problem and fix in found.fix


def test_the_reason_that_torch_keeps_behind_its_error_is_told() -> None:
    error = RuntimeError("DataLoader worker (pid(s) 7) exited unexpectedly")
    error.__cause__ = KILLED
    found = explained(error)
    assert found is not None and "killed by signal: Killed (nobody" in found.problem


def test_other_errors_are_the_users_own() -> None:
    assert explained(ValueError("row 3 is torn")) is None
    assert explained(OSError(errno.ENOENT, "no such file")) is None
