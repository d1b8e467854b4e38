"""Jobs on real GPUs: the devices are the driver's, and a job trains on those that it was given and no others."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from drumline.config.service import ServiceConfig
from drumline.hardware.inventory import detect
from drumline.jobs.devices import DeviceWatch, read_inventory
from drumline.jobs.executor import Executor
from drumline.jobs.records import Job, Resources, Work
from drumline.jobs.store import open_store, store_url
from drumline.jobs.supervisor import Supervisor
from drumline.rundir import RunDir, read_json
from tests.cli.real_command import write_recipe

pytestmark = pytest.mark.gpu

LIMIT_S = 120.0


def test_the_devices_are_the_gpus_and_one_that_is_excluded_says_so(tmp_path: Path) -> None:
    gpus = detect().gpus
    config = ServiceConfig(data_dir=tmp_path, scheduling={"exclude": [gpus[0].uuid]})
    found = read_inventory(config)
    assert found.has_gpus
    assert [device.id for device in found.devices] == [gpu.uuid for gpu in gpus]
    assert found.devices[0].unusable == "the service excludes it"
    for device, gpu in zip(found.devices, gpus, strict=True):
        assert gpu.memory_bytes is not None
        assert device.memory_bytes is not None
        assert 0 < device.memory_bytes <= gpu.memory_bytes


def test_a_job_trains_on_the_gpu_that_it_was_given(tmp_path: Path) -> None:
    texts = write_recipe(tmp_path)
    settings = {
        "data": {
            "kind": "text",
            "train": [str(texts / "text.txt")],
            "eval": [str(texts / "held_out.txt")],
            "context": 16,
        },
        "model": {"num_layers": 1, "num_heads": 2, "width": 16},
        "train": {"global_batch": 8, "max_steps": 20, "lr": 0.003},
        "track": {"every": 5},
    }
    config = ServiceConfig(data_dir=tmp_path / "data", node="here", memory_fraction=0.5)
    store, devices = open_store(store_url(config)), DeviceWatch(config)
    executor = Executor(config.data_dir, memory_fraction=config.memory_fraction)
    supervisor = Supervisor(store, executor, devices, config)
    now = time.time()
    store.jobs.add(Job("a", "ann", Work("train", settings), Resources(devices=1), now, node="here", queued_since=now))
    devices.start()
    supervisor.start()
    try:
        limit = time.monotonic() + LIMIT_S
        while not (job := store.jobs.get("a")) or not job.has_ended:
            assert time.monotonic() < limit, job
            time.sleep(0.1)
    finally:
        supervisor.close(stop_jobs=True)
        devices.close()
    assert (job.state, job.message) == ("succeeded", "")
    assert job.result["gpu_stats"]["gpus"] == list(job.devices)
    assert read_json(RunDir(executor.folder("a") / "run").plan)["gpus"] == list(job.devices)
    assert job.result["usage"]["gpu_seconds"] > 0
    assert job.result["usage"]["energy_j"] > 0
    assert store.leases.all() == ()
    store.close()
