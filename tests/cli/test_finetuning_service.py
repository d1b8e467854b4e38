"""The service around `drumline finetune`: what it starts, waits for, stops, and finds again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest

from drumline import FineTuningService
from drumline.errors import ConfigError, DataError, LaunchError
from drumline.jobs.finetuning_records import Training

PROGRAM = Path(__file__).with_name("simulated_finetune.py")
DIES = """
import asyncio, os, sys
from drumline.jobs import finetuning_commands
from drumline.jobs.finetuning import FineTuningService
finetuning_commands.COMMAND = (sys.executable, sys.argv[2])
async def main():
    print(await FineTuningService(sys.argv[1]).start("long", "a.jsonl", user_id=7), flush=True)
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FineTuningService:
    """One whose commands are simulated."""
    monkeypatch.setattr("drumline.jobs.finetuning_commands.COMMAND", (sys.executable, str(PROGRAM)))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return FineTuningService(tmp_path / "service")


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """In an event loop of its own, under a limit."""
    return asyncio.run(asyncio.wait_for(work, 60))


async def reached(service: FineTuningService, number: int = 1) -> list[Training]:
    """Wait until so many trainings have written a line."""
    while True:
        found = [training for training in service.trainings() if training.run.metrics.exists()]
        if len(found) >= number and all(training.run.metrics.stat().st_size for training in found):
            return found
        await asyncio.sleep(0.02)


def group_of(training: Training) -> list[int]:
    """Living processes in the group of a training's command."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == training.pid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def test_texts_become_a_private_file_and_a_training_a_folder(service: FineTuningService) -> None:
    async def work() -> Any:
        dataset = await service.prepare_dataset(texts=["a", {"text": "b"}], model_name="quick", max_length=512)
        config = {"epochs": 3, "learning_rate": 5e-5, "batch_size_per_gpu": 8}
        return dataset, await service.finetune_model_dataparallel(
            model_name="quick", dataset=dataset, training_config=config, user_id=123
        )

    dataset, result = run(work())
    assert [json.loads(line) for line in dataset.path.read_text().splitlines()] == [{"text": "a"}, {"text": "b"}]
    assert (dataset.num_rows, dataset.max_length, dataset.task) == (2, 512, "language_modelling")
    assert stat.S_IMODE(dataset.path.stat().st_mode) == 0o600
    assert (result.success, result.best_loss, result.training_time_s) == (True, 2.0, 0.1)
    assert result.model_path is not None and result.model_path.is_dir()
    [training] = service.trainings()
    assert (training.user_id, training.model_name, training.process()) == (123, "quick", None)
    assert stat.S_IMODE(training.folder.stat().st_mode) == 0o700
    asked = json.loads(training.run.config.read_text())
    assert asked["data"] == [str(dataset.path)]
    expected = {
        "parallel": '{"kind": "data_parallel"}',
        "data.context": "512",
        "train.epochs": "3",
        "train.lr": "5e-05",
    }
    assert {name: asked["settings"].get(name) for name in expected} == expected
    assert "train.batch_size_per_gpu" in asked["settings"] and "train.global_batch" not in asked["settings"]


def test_the_same_texts_are_kept_once(service: FineTuningService) -> None:
    async def work() -> Any:
        return [await service.prepare_dataset(texts, "quick") for texts in (["a"], ["a"], ["b"])]

    first, again, other = run(work())
    assert first.path == again.path != other.path
    assert len(list(first.path.parent.iterdir())) == 2


def test_processes_are_asked_for_by_the_world_size(service: FineTuningService) -> None:
    async def work() -> None:
        await asyncio.gather(
            service.finetune_model_distributed("quick", ["a.jsonl", Path("b.jsonl")], {}, 1, world_size=4),
            service.finetune_model_multi_gpu("quick", "a.jsonl"),
        )

    run(work())
    asked = [json.loads(training.run.config.read_text()) for training in service.trainings()]
    one, several = sorted(asked, key=lambda each: len(each["data"]))
    assert (several["data"], several["settings"]["hardware.num_processes"]) == (["a.jsonl", "b.jsonl"], "4")
    assert set(one["settings"]) == {"run_dir", "data.cache_dir"}


def test_several_train_at_once_and_the_loop_goes_on_meanwhile(service: FineTuningService) -> None:
    async def work() -> Any:
        waiting = [asyncio.create_task(service.finetune_model("long", "a.jsonl")) for _ in range(3)]
        found = await reached(service, 3)
        ticks = 0
        stopping = asyncio.gather(*(service.stop(training.training_id) for training in found))
        while not stopping.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return ticks, await stopping, await asyncio.gather(*waiting)

    ticks, stopped, results = run(work())
    assert ticks >= 3
    assert sorted(result.training_id for result in results) == sorted(result.training_id for result in stopped)
    assert {(result.success, result.status, result.model_path) for result in results} == {(False, "interrupted", None)}


def test_progress_is_told_while_it_trains(service: FineTuningService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drumline.jobs.finetuning.PROGRESS_S", 0.05)
    seen: list[tuple[str, str, float | None]] = []

    async def work() -> Any:
        told = lambda facts: seen.append((facts.name, facts.state, facts.eval_loss))  # noqa: E731
        task = asyncio.create_task(service.finetune_model("long", "a.jsonl", on_progress=told))
        [training] = await reached(service)
        while not any(loss == 2.0 for _, _, loss in seen):
            await asyncio.sleep(0.02)
        await service.stop(training.training_id)
        await task
        return training.training_id

    training_id = run(work())
    assert {name for name, _, _ in seen} == {training_id}
    assert "starting" in {state for _, state, _ in seen}


def test_a_cancelled_task_lets_the_training_save_and_leaves_nothing(service: FineTuningService) -> None:
    async def work() -> Training:
        task = asyncio.create_task(service.finetune_model("long", "a.jsonl"))
        [training] = await reached(service)
        training = Training.read(training.folder)
        assert len(group_of(training)) == 2
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return training

    training = run(work())
    assert json.loads(training.run.exit.read_text())["exit_status"] == 3
    assert group_of(training) == []


def test_a_second_cancellation_kills_what_does_not_listen(service: FineTuningService) -> None:
    async def work() -> Training:
        task = asyncio.create_task(service.finetune_model("deaf", "a.jsonl"))
        [training] = await reached(service)
        training = Training.read(training.folder)
        task.cancel()
        await asyncio.sleep(0.1)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return training

    began = time.monotonic()
    assert group_of(run(work())) == []
    assert time.monotonic() - began < 20


def test_bad_requests_and_failures_are_errors_with_their_fix(service: FineTuningService) -> None:
    with pytest.raises(ConfigError, match="there is no such model") as refused:
        run(service.prepare_dataset(["a"], "bad"))
    assert refused.value.fix == "name another"
    with pytest.raises(ConfigError, match="there is no such model"):
        run(service.finetune_model("bad", "a.jsonl"))
    with pytest.raises(LaunchError, match="it is NaN") as failed:
        run(service.finetune_model("failing", "a.jsonl"))
    assert failed.value.fix == "lower the rate"
    with pytest.raises(ConfigError, match="no setting 'epoch'"):
        run(service.start("quick", "a.jsonl", {"epoch": 1}))
    with pytest.raises(DataError, match="there are no texts"):
        run(service.prepare_dataset([], "quick"))
    with pytest.raises(DataError, match=r"texts\[1\] is of type int"):
        run(service.prepare_dataset(["a", 1], "quick"))  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="there is no training"):
        run(service.wait("../elsewhere"))


def test_a_training_outlives_its_service_and_another_one_finds_stops_and_resumes_it(
    service: FineTuningService, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", DIES, str(service.folder), str(PROGRAM)]
    died = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert died.returncode == -signal.SIGKILL, died.stderr

    async def work() -> Any:
        [training] = await reached(service)
        assert training.process() is not None
        before = await service.progress(training.training_id)
        with pytest.raises(ConfigError, match="still runs"):
            await service.resume(training.training_id)
        stopped = await service.stop(training.training_id)
        await service.resume(training.training_id)
        return training, before, stopped, await service.wait(training.training_id)

    training, before, stopped, done = run(work())
    assert (training.training_id, training.user_id) == (died.stdout.strip(), 7)
    assert (before.state, before.eval_loss) == ("starting", 2.0)
    assert (stopped.status, done.status, done.success) == ("interrupted", "done", True)
    assert done.model_path == training.exported


def test_one_that_is_stopped_before_it_trains_is_interrupted(service: FineTuningService) -> None:
    async def work() -> Any:
        waiting = asyncio.create_task(service.finetune_model("early", "a.jsonl"))
        while not (found := service.trainings()) or found[0].pid is None:
            await asyncio.sleep(0.02)
        return await service.stop(found[0].training_id), await waiting

    for result in run(work()):
        assert (result.success, result.status, result.exit_status) == (False, "interrupted", 3)


def test_one_that_was_killed_is_told_so(service: FineTuningService) -> None:
    async def work() -> Any:
        training_id = await service.start("long", "a.jsonl")
        [training] = await reached(service)
        training = Training.read(training.folder)
        assert training.pid is not None
        os.kill(training.pid, signal.SIGKILL)
        result = await service.wait(training_id)
        return result, await service.progress(training_id), training

    result, facts, training = run(work())
    assert (result.success, result.status, facts.state) == (False, "killed", "killed")
    assert group_of(training) == []


def test_two_services_that_wait_for_one_training_get_one_model(service: FineTuningService) -> None:
    async def work() -> Any:
        training_id = await service.start("slow export", "a.jsonl")
        return await asyncio.gather(service.wait(training_id), FineTuningService(service.folder).wait(training_id))

    first, second = run(work())
    assert (first.success, second.success) == (True, True)
    assert first.model_path == second.model_path


def test_a_task_that_is_cancelled_while_its_model_is_written_takes_no_other_along(service: FineTuningService) -> None:
    async def work() -> Any:
        cancelled = asyncio.create_task(service.finetune_model("slow export", "a.jsonl"))
        [training] = await reached(service)
        other = asyncio.create_task(service.wait(training.training_id))
        while not (training.folder / "exporting").exists():
            await asyncio.sleep(0.02)
        cancelled.cancel()
        return await other

    result = run(work())
    assert result.success
    assert result.model_path is not None and result.model_path.is_dir()


def test_what_an_earlier_attempt_said_is_not_told_of_the_next(service: FineTuningService) -> None:
    async def work() -> Any:
        with pytest.raises(LaunchError, match="it is NaN"):
            await service.finetune_model("failing", "a.jsonl")
        [training] = service.trainings()
        training.log.write_text("error: it is NaN\n  fix: lower the rate\n")
        await service.resume(training.training_id)
        result = await service.wait(training.training_id)
        return result, training

    result, training = run(work())
    assert result.success
    assert "NaN" not in training.log.read_text()
    assert "NaN" in training.log.with_suffix(".before.log").read_text()


def test_gpu_stats_have_what_a_service_tells(service: FineTuningService) -> None:
    stats = run(service.get_gpu_stats())
    assert set(stats) == {"available_gpus", "gpu_info", "source"}
    json.dumps(stats)
