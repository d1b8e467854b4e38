"""torch.nn.DataParallel for people with their own loop: persistent replicas, balanced parts, any structure."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from drumline.errors import ConfigError
from drumline.parallel.batch_norm import batch_norms
from drumline.parallel.copies import Copies, check_module
from drumline.parallel.device_threads import DeviceThreads, Failure
from drumline.parallel.replica_stats import Record, ReplicaStats
from drumline.parallel.split import Part, gather, split, to_device


class OptimizedDataParallel(nn.Module):
    """A module on several GPUs of one process, called as on one: a drop-in for `torch.nn.DataParallel`.

    `module` is the first replica, with its parameters as they were: the optimizer, `state_dict()` (its keys begin with
    `module.`, as DataParallel's) and hooks are on them, and gradients sum up in them. The others persist; before a
    pass they take over what has changed: parameters, buffers, train and eval mode, hooks, attributes. What a replica
    but the first changes in itself is lost, so the first one's BatchNorm statistics count. A BatchNorm in training is
    given two rows a replica at least.

    Inputs are cut by `drumline.parallel.split.split` and outputs joined by `gather`: a loss without dimensions becomes
    a vector, one value a replica, whose plain mean weighs unequal parts alike; `rows` has their weights. With one
    device, or none on a machine without GPUs, it is a plain call. An error on a replica is raised as it is, with a note
    that names the replica. For training at full speed see `parallel.kind: data_parallel`.

    After changing parameters by `.data`, or in a CUDA graph, call `refresh()`.
    """

    module: nn.Module

    def __init__(
        self,
        module: nn.Module,
        devices: Sequence[int | str | torch.device] | None = None,
        output_device: int | str | torch.device | None = None,
        dim: int = 0,
        *,
        device_ids: Sequence[int | str | torch.device] | None = None,
    ) -> None:
        """devices: all GPUs if not given, the CPU as often as named; device_ids: DataParallel's name for them.

        output_device: the first device if not given; -1 is the CPU. The module is moved to the first device. Raises
        ConfigError for SyncBatchNorm, and for what has no replicas (ScriptModules, lazy and compiled ones).
        """
        super().__init__()
        if devices is not None and device_ids is not None:
            raise ConfigError("devices and device_ids are the same thing", "give one of them")
        named = devices if devices is not None else device_ids
        if named is None:
            named = range(torch.cuda.device_count())
        self.devices = [_device(each) for each in named]
        self.dim = dim
        self.output_device = self._output(output_device)
        if len(self.devices) > 1:
            check_module(module)
        self.module = module.to(self.devices[0]) if self.devices else module
        self._start()

    def _output(self, given: int | str | torch.device | None) -> torch.device | None:
        if given is not None:
            return torch.device("cpu") if given == -1 else _device(given)
        return self.devices[0] if self.devices else None

    def _start(self) -> None:
        """All that belongs to this process alone."""
        devices = self.devices or [torch.device("cpu")]
        self._records = [Record(number, device) for number, device in enumerate(devices)]
        self._copies = Copies(devices)
        self._threads = DeviceThreads(devices)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Cut the arguments, run the replicas at once, join their outputs on `output_device`."""
        for record in self._records:
            record.rows = 0
        least = 2 if any(module.training for module in batch_norms(self.module)) else 1
        parts = split(args, kwargs, max(1, len(self.devices)), self.dim, least)
        modules = self._copies.replicas(self.module, len(parts))
        calls = [partial(self._call, *each) for each in zip(self._records[: len(parts)], modules, parts, strict=True)]
        results = self._threads.run(calls)
        failures = {number: each.error for number, each in enumerate(results) if isinstance(each, Failure)}
        if failures:
            raise self._explained(failures, parts)
        if len(self.devices) <= 1:
            return results[0]
        assert self.output_device is not None
        return gather(results, self.output_device, self.dim)

    def _call(self, record: Record, module: nn.Module, part: Part) -> Any:
        """One replica's pass, in its thread."""
        record.rows = part.rows
        if self.devices:
            part = part._replace(args=to_device(part.args, record.device), kwargs=to_device(part.kwargs, record.device))
        began = record.begin()
        try:
            output = module(*part.args, **part.kwargs)
        except Exception as error:
            record.failed(error)
            raise
        record.end(began)
        return output

    def _explained(self, failures: dict[int, Exception], parts: Sequence[Part]) -> Exception:
        """The first replica's error that failed, with a note that says which it was."""
        number, error = next(iter(failures.items()))
        first = sum(part.rows for part in parts[:number])
        rows = f", rows {first} to {first + parts[number].rows - 1} of the batch" if parts[number].rows else ""
        others = [each for each in failures if each != number]
        too = f"; replicas {', '.join(map(str, others))} failed too" if others else ""
        error.add_note(f"raised on replica {number} of {len(parts)} ({self._records[number].device}{rows}){too}")
        return error

    @property
    def rows(self) -> list[int]:
        """Rows of the newest batch by replica, for those that had a part: the weights of what each returned."""
        return [record.rows for record in self._records if record.rows]

    def stats(self) -> list[ReplicaStats]:
        """By replica: time, memory, rows and errors. It waits for timed passes that still run."""
        return [record.stats() for record in self._records]

    def refresh(self) -> None:
        """Have the replicas take over everything before the next pass."""
        self._copies.refresh()

    def close(self) -> None:
        """End the threads; a later pass starts new ones."""
        self._threads.close()

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: without threads and replicas, which are made anew."""
        state: dict[str, Any] = super().__getstate__()  # type: ignore[no-untyped-call]
        return {name: value for name, value in state.items() if name not in ("_records", "_copies", "_threads")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Come back with fresh ones."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._start()


def _device(given: int | str | torch.device) -> torch.device:
    """A number is a GPU's; a GPU without one is the current."""
    device = torch.device("cuda", given) if isinstance(given, int) else torch.device(given)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device
