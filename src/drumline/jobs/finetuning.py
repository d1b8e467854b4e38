"""Fine-tuning from an asynchronous program: each training is a launched job, and the event loop only looks at it."""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from drumline.errors import ConfigError, LaunchError
from drumline.jobs.finetuning_commands import (
    Dataset,
    Parallel,
    Rows,
    dry_run,
    export_command,
    finetune_command,
    resume_command,
    spread_over,
    write_rows,
)
from drumline.jobs.finetuning_records import REQUEST, FineTuned, PreparedDataset, Training, last_error, outcome
from drumline.jobs.finetuning_settings import as_overrides
from drumline.jobs.gpu_stats import gpu_stats
from drumline.jobs.sessions import LOOK_S, Session, run_to_end
from drumline.monitor.runs import RunFacts, RunWatch
from drumline.rundir import remove_unfinished

OnProgress = Callable[[RunFacts], None]
Settings = Mapping[str, Any]

PROGRESS_S = 1.0
"""Between two calls of on_progress."""


class FineTuningService:
    """Fine-tunes Hugging Face models on this machine's devices, several at once where there are devices for them.

    folder: where all of it is kept, for its owner only: datasets/, cache/, and a folder a training, named by its id. A
    training outlives the service: another one on the same folder finds it again.
    """

    def __init__(self, folder: str | Path = "runs/finetuning") -> None:
        self.folder = Path(folder).expanduser().absolute()
        self._sessions: dict[str, Session] = {}
        self._ends: dict[str, asyncio.Task[FineTuned]] = {}
        self._watches: dict[str, RunWatch] = {}
        self._stopped: set[str] = set()

    async def prepare_dataset(
        self, texts: Rows, model_name: str, max_length: int | None = None, *, columns: Mapping[str, str] | None = None
    ) -> PreparedDataset:
        """Write rows to a file, and see what the model would learn from them.

        texts: each a text, or a row with named values, as {"messages": [...]} or {"prompt": ..., "completion": ...}.
        max_length: most tokens of a row. columns: as data.columns. Raises DataError for no rows, ConfigError for what
        the model cannot learn from.
        """
        folder = self._private("datasets")
        path, num_rows = await asyncio.to_thread(write_rows, texts, folder)
        settings: dict[str, Any] = {} if max_length is None else {"data.context": max_length}
        settings |= {} if columns is None else {"data.columns": columns}
        found = await dry_run(finetune_command(model_name, path, as_overrides(settings)), folder)
        task = found["config"]["task"]["kind"]
        return PreparedDataset(path, num_rows, model_name, max_length, dict(columns or {}), task, found["reasons"])

    async def start(
        self,
        model_name: str,
        dataset: Dataset,
        training_config: Settings | None = None,
        user_id: int | str | None = None,
        *,
        parallel: Parallel = "auto",
        world_size: int | None = None,
    ) -> str:
        """Start a training and return its id at once.

        dataset: what prepare_dataset gave, or files as `drumline finetune --data` takes them. training_config: see
        finetuning_settings.SHORT_NAMES; what is not said is chosen. parallel: data_parallel, one process with a thread
        a GPU; else one process a GPU. world_size: how many GPUs, or processes on a machine without GPU; None: all GPUs,
        or one process. Raises ConfigError for a setting that nobody knows.
        """
        settings = as_overrides(training_config or {})
        spread = await asyncio.to_thread(spread_over, parallel, world_size)
        training_id = time.strftime("ft-%Y%m%d-%H%M%S-") + secrets.token_hex(3)
        folder = self._private(training_id)
        command = finetune_command(model_name, dataset, [*self._own(dataset, folder), *spread, *settings])
        # No await from here on: a cancelled task would leave a training that nobody has heard of.
        self._launch(Training(training_id, folder, model_name, user_id, time.time(), command))
        return training_id

    async def resume(self, training_id: str) -> None:
        """Go on with a training that has ended before it was done. Raises ConfigError for one that still runs."""
        training = self._training(training_id)
        if training_id in self._sessions or training.process() is not None:
            raise ConfigError(f"{training_id} still runs", "wait for its end, or stop it")
        self._launch(replace(training, command=resume_command(training)))

    async def wait(self, training_id: str, on_progress: OnProgress | None = None) -> FineTuned:
        """What became of a training, once it has ended and its model is written; whichever service started it.

        on_progress is called about once a second, in the event loop. Raises ConfigError for an id that is not there.
        """
        end = self._ends.get(training_id)
        if end is None or end.get_loop() is not asyncio.get_running_loop():
            end = self._ends[training_id] = asyncio.create_task(self._end_of(self._training(training_id)))
        while not (await asyncio.wait([end], timeout=None if on_progress is None else PROGRESS_S))[0]:
            if on_progress is not None:
                on_progress(await self.progress(training_id))
        if end.cancelled():  # by another that waits, whose own task was cancelled
            return await self.wait(training_id, on_progress)
        self._ends.pop(training_id, None)
        return end.result()

    async def progress(self, training_id: str) -> RunFacts:
        """A training at this moment: state, step, loss, rate, time left."""
        training = self._training(training_id)
        watch = self._watches.setdefault(training_id, RunWatch(training.run.path))
        facts = replace(await asyncio.to_thread(watch.look), name=training_id)
        if facts.state == "starting" and training.process() is None:
            return replace(facts, state="killed" if last_error(training.log) is None else "failed")
        return facts

    async def stop(self, training_id: str) -> FineTuned:
        """Let a training save and end, wait for that, and say what became of it; `resume` goes on with it."""
        training = self._training(training_id)
        self._stopped.add(training_id)
        if (session := self._sessions.get(training_id)) is not None:
            session.ask_to_stop()
        elif (process := training.process()) is not None:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGTERM)
        return await self.wait(training_id)

    def trainings(self) -> list[Training]:
        """Every training in the folder, the oldest first, also those that an earlier service started."""
        found = []
        for path in self.folder.glob(f"*/{REQUEST}"):
            with suppress(OSError, ValueError, TypeError, KeyError):  # one that is being removed, or is not ours
                found.append(Training.read(path.parent))
        return sorted(found, key=lambda training: (training.began, training.training_id))

    async def finetune_model(
        self,
        model_name: str,
        dataset: Dataset,
        training_config: Settings | None = None,
        user_id: int | str | None = None,
        *,
        parallel: Parallel = "auto",
        world_size: int | None = None,
        on_progress: OnProgress | None = None,
    ) -> FineTuned:
        """Start a training as `start` does and return its result.

        Where the awaiting task is cancelled the training saves and ends first; cancelled once more, it is killed.
        Raises ConfigError for a bad request, LaunchError for a training that failed. One that was stopped from outside
        is a result with status interrupted.
        """
        spread: dict[str, Any] = {"parallel": parallel, "world_size": world_size}
        training_id = await self.start(model_name, dataset, training_config, user_id, **spread)
        try:
            result = await self.wait(training_id, on_progress)
        except asyncio.CancelledError:
            await self._end_gently(training_id)
            raise
        if result.status in ("failed", "killed"):
            kind = ConfigError if result.exit_status == ConfigError.exit_status else LaunchError
            raise kind(result.message, result.fix or f"see {result.log}")
        return result

    async def finetune_model_dataparallel(
        self,
        model_name: str,
        dataset: Dataset,
        training_config: Settings | None = None,
        user_id: int | str | None = None,
        *,
        on_progress: OnProgress | None = None,
    ) -> FineTuned:
        """As finetune_model, in one process with a replica and a thread a GPU."""
        return await self.finetune_model(
            model_name, dataset, training_config, user_id, parallel="data_parallel", on_progress=on_progress
        )

    async def finetune_model_distributed(
        self,
        model_name: str,
        dataset: Dataset,
        training_config: Settings | None = None,
        user_id: int | str | None = None,
        world_size: int | None = None,
        *,
        on_progress: OnProgress | None = None,
    ) -> FineTuned:
        """As finetune_model, in one process a GPU: ddp where the training state fits each of them, else fsdp."""
        spread: dict[str, Any] = {"parallel": "distributed", "world_size": world_size}
        return await self.finetune_model(
            model_name, dataset, training_config, user_id, **spread, on_progress=on_progress
        )

    async def finetune_model_multi_gpu(
        self,
        model_name: str,
        dataset: Dataset,
        training_config: Settings | None = None,
        user_id: int | str | None = None,
        *,
        on_progress: OnProgress | None = None,
    ) -> FineTuned:
        """As finetune_model, on all GPUs of this machine, spread as suits."""
        return await self.finetune_model(model_name, dataset, training_config, user_id, on_progress=on_progress)

    async def get_gpu_stats(self) -> dict[str, Any]:
        """available_gpus: CUDA indexes that a training could take; gpu_info: a record a GPU; source: who tells."""
        return await asyncio.to_thread(gpu_stats)

    def _private(self, name: str) -> Path:
        """A folder in the service's own, for its owner only."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = self.folder / name
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def _own(self, dataset: Dataset, folder: Path) -> list[str]:
        """Settings of every training of this service."""
        own: dict[str, Any] = {"run_dir": folder / "run", "data.cache_dir": self._private("cache")}
        if isinstance(dataset, PreparedDataset):
            own |= {"data.columns": dataset.columns} if dataset.columns else {}
            own |= {"data.context": dataset.max_length} if dataset.max_length is not None else {}
        return as_overrides(own)

    def _training(self, training_id: str) -> Training:
        try:
            if training_id != Path(training_id).name:
                raise ValueError(training_id)
            return Training.read(self.folder / training_id)
        except (OSError, ValueError, TypeError, KeyError):
            there = ", ".join(training.training_id for training in self.trainings()[-5:]) or "none"
            raise ConfigError(f"there is no training {training_id!r} in {self.folder}", f"there are {there}") from None

    def _launch(self, training: Training) -> None:
        training.write()  # first: what is started is found again, whatever happens to this process
        with suppress(FileNotFoundError):  # what an earlier attempt said is not told of this one
            training.log.replace(training.log.with_suffix(".before.log"))
        session = Session(training.command, training.log)
        replace(training, pid=session.pid, pid_began=psutil.Process(session.pid).create_time()).write()
        self._sessions[training.training_id] = session
        self._stopped.discard(training.training_id)

    async def _end_of(self, training: Training) -> FineTuned:
        """Wait for the process, wherever it is from; then write the model, where that has not been done."""
        session = self._sessions.get(training.training_id)
        if session is not None:
            await session.wait()
            self._sessions.pop(training.training_id, None)
        while training.process() is not None:
            await asyncio.sleep(LOOK_S)
        result = await asyncio.to_thread(outcome, training)
        self._watches.pop(training.training_id, None)
        if result.status == "killed" and training.training_id in self._stopped:
            # Until it trains it has nothing to save, and ends at once.
            return replace(result, status="interrupted", exit_status=3, message="stopped before it began to train")
        if not result.success or result.model_path is not None:
            return result
        try:
            status = await run_to_end(export_command(training), training.log)
        finally:
            remove_unfinished(training.exported)  # where it was cut off
        if status == 0 or training.exported.is_dir():  # another service may have been quicker
            return replace(result, model_path=training.exported)
        problem, fix = last_error(training.log) or (f"the export ended with status {status}", "")
        return replace(result, success=False, status="failed", exit_status=status, message=problem, fix=fix)

    async def _end_gently(self, training_id: str) -> None:
        """Stop a training whose task was cancelled; a second cancellation kills it."""
        session, end = self._sessions.get(training_id), self._ends.get(training_id)
        if session is None:  # it has ended, and only its model is being written
            if end is not None:
                end.cancel()
                await asyncio.wait([end])
                self._ends.pop(training_id, None)
            return
        try:
            await self.stop(training_id)
        except asyncio.CancelledError:
            session.kill()
            raise
