from __future__ import annotations

import pytest

from drumline.data.limits import FILES_ADVICE, Load, Room, capped, fit, needed_bytes, needed_files, smaller

MIB = 1 << 20


def load(workers: int = 4, prefetch: int = 4, *, mib: int = 1, tensors: int = 3) -> Load:
    return Load(workers, prefetch, mib * MIB, tensors)


def room(
    ranks: int = 1, *, shared: int | None = 1 << 40, used: int = 20, soft: int | None = 1024, hard: int | None = 1024
) -> Room:
    return Room(ranks, shared, used, soft, hard)


def test_where_there_is_room_nothing_changes() -> None:
    found = fit([load(), load(2, 3)], room())
    assert found.num_workers == (4, 2)
    assert found.prefetch_factor == (4, 3)
    assert (found.sharing, found.raised, found.message) == ("file_descriptor", None, None)


def test_without_loader_processes_no_limit_matters() -> None:
    found = fit([load(0)], room(shared=0, used=300, soft=256, hard=256))
    assert (found.num_workers, found.raised, found.message) == ((0,), None, None)


def test_no_limits_no_changes() -> None:
    assert fit([load(mib=10**6, tensors=10**6)], room(shared=None, soft=None, hard=None)).message is None


def test_shared_memory_counts_all_ranks_all_loaders_and_semaphores() -> None:
    """Two ranks, each with a loader of 2 x 3 batches of 1 MiB and one that was handed over; one loader runs alone."""
    pages = 4096 * (8 + 3 * 2)
    assert needed_bytes([load(2, 3), load(0)], room(2)) == 2 * (7 * MIB + pages)
    assert needed_bytes([load(2, 3), load(2, 3)], room(1)) == 2 * (7 * MIB + pages)


def test_file_handles_are_one_a_tensor_on_its_way() -> None:
    assert needed_files([load(2, 3, tensors=5)], room(8), "file_descriptor") == 20 + 64 + 2 * 4 + 5 * 7
    assert needed_files([load(2, 3, tensors=5)], room(8), "file_system") == 20 + 64 + 2 * 4
    assert needed_files([load(0)], room(8), "file_descriptor") == 20 + 64


@pytest.mark.parametrize(
    ("shared_mib", "workers", "prefetch"),
    [(64, 4, 4), (16, 4, 2), (8, 4, 1), (6, 3, 1), (5, 2, 1), (3, 1, 1), (2, 0, 1), (0, 0, 1)],
)
def test_too_little_shared_memory_lowers_prefetch_then_processes(shared_mib: int, workers: int, prefetch: int) -> None:
    found = fit([load()], room(shared=shared_mib * MIB))
    assert (found.num_workers, found.prefetch_factor) == ((workers,), (prefetch,))
    if workers:
        assert needed_bytes([load(workers, prefetch)], room()) <= 0.75 * shared_mib * MIB


def test_more_ranks_have_less_each() -> None:
    one, eight = (fit([load()], room(ranks, shared=64 * MIB)) for ranks in (1, 8))
    assert one.message is None
    assert (eight.num_workers, eight.prefetch_factor) == ((4,), (1,))


def test_both_loaders_are_lowered_alike_and_none_above_what_it_asked_for() -> None:
    found = fit([load(4, 4), load(1, 3)], room(shared=18 * MIB))
    assert found.num_workers == (4, 1)
    assert found.prefetch_factor == (2, 2)


def test_the_message_has_the_numbers_and_the_flag() -> None:
    message = fit([load()], room(2, shared=64 * 1024)).message
    assert message is not None
    assert message.startswith("2 ranks x num_workers=4, prefetch_factor=4, with batches of 1.0 MiB, need 34.2 MiB")
    assert "/dev/shm has 64 KiB free (docker run --shm-size=1g" in message
    assert message.endswith("going on with num_workers=0")
    large = fit([load(mib=200)], room(shared=64 * MIB)).message
    assert large is not None and "--shm-size=7g" in large


def test_the_soft_limit_on_files_is_raised_as_far_as_it_goes() -> None:
    many = load(tensors=100)
    found = fit([many], room(hard=4096))
    assert (found.num_workers, found.prefetch_factor, found.sharing) == ((4,), (4,), "file_descriptor")
    assert found.raised == 4096
    assert found.message is not None and found.message.endswith("the limit on open files is raised to 4096")
    assert FILES_ADVICE not in found.message
    assert fit([many], room(hard=None)).raised == 65_536
    assert fit([many], room(hard=1 << 20)).raised == 65_536
    assert fit([load(tensors=10_000)], room(hard=1 << 20)).raised == needed_files(
        [load(tensors=10_000)], room(), "file_descriptor"
    )


def test_a_hard_limit_on_files_makes_tensors_go_by_name() -> None:
    found = fit([load(tensors=100)], room(soft=512, hard=1024))
    assert (found.num_workers, found.prefetch_factor, found.sharing) == ((4,), (4,), "file_system")
    assert found.raised == 1024
    assert found.message is not None and FILES_ADVICE in found.message and "by name" in found.message


def test_too_few_files_even_so_means_fewer_processes() -> None:
    found = fit([load(tensors=100)], room(used=150, soft=226, hard=226))
    assert found.num_workers == (3,)
    assert found.sharing == "file_system"
    none = fit([load(tensors=100)], room(used=250, soft=256, hard=256))
    assert (none.num_workers, none.sharing, none.raised) == ((0,), "file_descriptor", None)


def test_fewer_batches_for_lack_of_memory_need_fewer_files_too() -> None:
    found = fit([load(tensors=60)], room(shared=8 * MIB))
    assert (found.num_workers, found.prefetch_factor, found.sharing) == ((4,), (1,), "file_descriptor")


def test_both_shortages_are_told() -> None:
    message = fit([load(tensors=100)], room(shared=8 * MIB, hard=1024)).message
    assert message is not None and "--shm-size" in message and FILES_ADVICE in message


def test_what_is_tried_goes_from_all_to_none() -> None:
    given = [load(2, 4), load(1, 1)]
    tried = [[(each.num_workers, each.prefetch_factor) for each in loads] for loads in smaller(given)]
    assert tried == [
        [(2, 4), (1, 1)],
        [(2, 2), (1, 1)],
        [(2, 1), (1, 1)],
        [(1, 1), (1, 1)],
        [(0, 1), (0, 1)],
    ]
    assert capped([load(4, 4)], 9, 9) == [load(4, 4)]
