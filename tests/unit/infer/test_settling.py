from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from drumline.config.inference import BatchingConfig
from drumline.errors import ConfigError
from drumline.infer.budget import MOST_ATTEMPTS, ON_CPU, WITHOUT_TRIAL, GpuMemory
from drumline.infer.records import Facts, Prepared
from drumline.infer.settling import Place, find_facts
from drumline.infer.tries import WorkerLost
from tests.unit.infer.toy import CPU, Toy

ROWS = [Prepared(number, 10, 10, "word") for number in range(40)]


@pytest.fixture
def gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """A GPU whose memory every batch fits in."""

    def peaks_of(self: GpuMemory, action: Callable[[], object]) -> list[int]:
        action()
        return [100]

    monkeypatch.setattr(GpuMemory, "__init__", lambda self: None)
    monkeypatch.setattr(GpuMemory, "free", lambda self: [10**9])
    monkeypatch.setattr(GpuMemory, "peaks_of", peaks_of)
    return Place(BatchingConfig(), torch.device("cuda"), tmp_path / "trial.json")


def raising(error: BaseException) -> Toy:
    def hook(rows: Sequence[int], num: int, width: int) -> None:
        raise error

    return Toy(hook=hook)


def test_on_a_cpu_nothing_is_run(tmp_path: Path) -> None:
    toy = Toy()
    facts = find_facts(toy, ROWS, Place(BatchingConfig(), CPU, tmp_path / "trial.json"))
    assert facts == {"tokens": ON_CPU, "longest": 10}
    assert toy.ran == []


def test_on_a_gpu_it_is_tried_after_the_predictor_has_settled(gpu: Place) -> None:
    toy = Toy()
    assert find_facts(toy, ROWS, gpu) == {"tokens": 384, "longest": 10}
    assert toy.settled == {"tokens": WITHOUT_TRIAL, "longest": 10}


def test_rows_whose_form_was_not_kept_only_count(gpu: Place) -> None:
    class Strict(Toy):
        def survey(self, prepared: Sequence[Prepared]) -> Facts:
            return {"longest": max(len(row.payload) for row in prepared)}

    dropped = [Prepared(number, 10, 10) for number in range(2, 40)]
    toy = Strict()
    assert find_facts(toy, [*dropped, *ROWS[:2]], gpu) == {"tokens": 384, "longest": 4}
    assert {number for batch in toy.ran for number in batch} == {0, 1}
    on_cpu = find_facts(Strict(), [*dropped, *ROWS[:2]], gpu._replace(device=CPU))
    assert on_cpu == {"tokens": ON_CPU, "longest": 4}
    assert find_facts(Toy(), dropped, gpu)["tokens"] == WITHOUT_TRIAL


def test_a_row_that_fails_in_the_trial_does_not_end_the_run(gpu: Place) -> None:
    assert find_facts(raising(ValueError("bad row")), ROWS, gpu) == {"tokens": WITHOUT_TRIAL, "longest": 0}


def test_rows_at_which_workers_die_are_not_tried_for_ever(gpu: Place) -> None:
    for _ in range(MOST_ATTEMPTS):
        with pytest.raises(KeyboardInterrupt):
            find_facts(raising(KeyboardInterrupt()), ROWS, gpu)
    toy = Toy()
    assert find_facts(toy, ROWS, gpu._replace(batching=BatchingConfig(tokens=99))) == {"tokens": 99, "longest": 0}
    assert toy.ran == []


def test_a_lost_gpu_is_said(gpu: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drumline.infer.settling.frees_memory", lambda: False)
    with pytest.raises(WorkerLost, match="device-side assert"):
        find_facts(raising(RuntimeError("CUDA error: device-side assert triggered\nmore")), ROWS, gpu)


def test_a_lost_worker_is_no_trial_that_failed(gpu: Place) -> None:
    with pytest.raises(WorkerLost, match="its team"):
        find_facts(raising(WorkerLost("its team", "see the log")), ROWS, gpu)


def test_settings_that_cannot_work_are_said(gpu: Place) -> None:
    with pytest.raises(ConfigError, match="no such"):
        find_facts(raising(ConfigError("no such", "take another")), ROWS, gpu)


def test_no_rows_are_no_reason_to_fail(gpu: Place) -> None:
    facts: Facts = find_facts(Toy(), [], gpu)
    assert facts == {"tokens": WITHOUT_TRIAL, "longest": 0}
