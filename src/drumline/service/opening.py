"""Opens what the service works with, in the order in which one needs the other."""

from __future__ import annotations

import os
import time
from pathlib import Path

from drumline.config.service import ServiceConfig
from drumline.errors import ServeError
from drumline.jobs.board import Board
from drumline.jobs.devices import DeviceWatch, node_of
from drumline.jobs.executor import Executor
from drumline.jobs.store import Store, open_store, store_url
from drumline.jobs.supervisor import Supervisor
from drumline.service.access import Access
from drumline.service.allowed import Allowed
from drumline.service.exposition import ServiceCollector, queue_facts
from drumline.service.machine import Machine
from drumline.service.rates import Rates
from drumline.service.state import Service
from drumline.service.streams import Streams


def open_service(config: ServiceConfig, *, supervise: bool = True) -> Service:
    """Open store, board and supervisor, and start looking after jobs.

    supervise: False where another process on the same store does that. Raises StoreError, ConfigError, MissingExtra,
    and ServeError for a data directory that cannot be written.
    """
    config = config.model_copy(update={"data_dir": config.data_dir.expanduser().absolute()})
    make_private(config.data_dir)
    store = open_store(store_url(config))
    try:
        return _opened(config, store, supervise)
    except BaseException:
        store.close()
        raise


def _opened(config: ServiceConfig, store: Store, supervise: bool) -> Service:
    devices = DeviceWatch(config)
    executor = Executor(config.data_dir, memory_fraction=config.memory_fraction)
    supervisor = Supervisor(store, executor, Allowed(devices, store), config) if supervise else None
    wake = supervisor.wake if supervisor is not None else lambda: None

    def has_gpus() -> bool:
        devices.wait(config.limits.gpu_operation_s)  # the first look: before it a machine looks as if it had none
        return devices().has_gpus

    machine = Machine(config.limits.gpu_operation_s)
    streams = Streams(config.limits.max_streams)
    service = Service(
        config=config,
        store=store,
        board=Board(store, config, wake, has_gpus),
        supervisor=supervisor,
        devices=devices,
        machine=machine,
        prometheus=ServiceCollector(machine, lambda: queue_facts(store, node_of(config), streams.num_open)),
        access=Access(config, store, time.time),
        rates=Rates(config.access),
        streams=streams,
    )
    service.start()
    return service


def make_private(folder: Path) -> None:
    """Make a folder for its owner only, and take from others what they may do in one that is there.

    Raises ServeError where it cannot be, or is somebody else's.
    """
    folder = folder.expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid == os.geteuid() and status.st_mode & 0o077:
            folder.chmod(0o700)
    except OSError as error:
        raise ServeError(
            f"the data directory {folder} cannot be used: {error.strerror}", "give another with --set data_dir=..."
        ) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ServeError(f"the data directory {folder} cannot be written to", "give another with --set data_dir=...")
