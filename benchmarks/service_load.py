"""Load on the service: latency of lists and details beside listeners of streams, and memory over many requests.

    python benchmarks/service_load.py                        # the full measure, several minutes
    python benchmarks/service_load.py --queued 50 --finished 20 --seconds 3 --listeners 20 --requests 500
    python benchmarks/service_load.py --key --url postgresql+psycopg://user@host/name    # with a key, on PostgreSQL

The server runs in a process of its own with its supervisor, on a new SQLite store or on an empty database that is
named; the queued jobs ask for more devices than there are, so that they wait and nothing is trained. Requests are sent
at a fixed rate whether or not the ones before have been answered, and a latency counts from the moment at which its
request was due. With --key every request carries one. Of the requests over which memory is watched one in ten asks for
a job and has it cancelled, and the others read. Prints JSON; ends 1 where memory grew by more than GROWTH_MB after the
first tenth.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import httpx
import psutil

from drumline.config.service import ServiceConfig
from drumline.jobs.devices import node_of
from drumline.jobs.keeper_files import run_of
from drumline.jobs.records import Job, Resources, State, Work
from drumline.jobs.store import Store, open_store, store_url
from drumline.service.new_keys import new_key

SERVE = """
import sys
from drumline.config.service import ServiceConfig
from drumline.service.serving import serve
serve(ServiceConfig.model_validate_json(sys.argv[1]), lambda address: print(address, flush=True))
"""
HISTORY = 200
"""Log lines of each finished job."""
CONNECTIONS = 32
"""Over which requests are sent at a rate."""
GROWTH_MB = 20.0
"""Most by which memory may grow from a tenth of the requests to all of them: caches fill, and nothing else grows."""
POSTS = 0.1
"""Share of changes among the requests over which memory is watched."""
WRITE_S = 0.5
"""Between two lines of the job that is listened to."""


@dataclass
class Server:
    """What is measured."""

    url: str
    process: psutil.Process
    store: Store
    config: ServiceConfig
    headers: dict[str, str] = field(default_factory=dict)
    """The key of who asks."""
    jobs: list[str] = field(default_factory=list)

    def add(self, number: int, state: State, node: str) -> Job:
        """A job, with a run directory where it is not queued."""
        now = time.time() - number
        job_id = f"job-{state}-{number:06}"
        ended = now if state == "succeeded" else None
        work = Work("finetune", {"train.epochs": 3}, model="/models/gpt2", model_name="gpt2", data=("/data/ads.jsonl",))
        progress = {"step": 10, "num_steps": 100, "loss": 2.5, "units_per_s": 1e4, "unit": "tokens"}
        resources = Resources(devices=64, priority=number % 5)
        job = Job(
            job_id, f"owner-{number % 20}", work, resources, now, state, ended=ended, node=node, progress=progress
        )
        self.store.jobs.add(job)
        if state != "queued":
            run = run_of(self.config.data_dir / "jobs" / job_id)
            run.logs.mkdir(parents=True)
            lines = ({"kind": "train", "step": step, "loss": 3 - step / 100, "time": now} for step in range(HISTORY))
            run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.jobs.append(job_id)
        return job

    def wait_until_looked_at(self, limit_s: float = 30.0) -> None:
        """Until the supervisor has said of each queued job why it waits."""
        limit = time.monotonic() + limit_s
        queued = [job_id for job_id in self.jobs if job_id.startswith("job-queued")]
        while any((job := self.store.jobs.get(job_id)) is None or not job.waits_for for job_id in queued):
            if time.monotonic() > limit:
                raise SystemExit(f"the supervisor has not looked at all jobs within {limit_s:g} s")
            time.sleep(0.1)


@contextmanager
def serving(folder: Path, database: str | None, *, has_key: bool) -> Iterator[Server]:
    """A server on a new store, or on an empty database."""
    model = folder / "models" / "tiny"
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"model_type": "gpt2"}')
    config = ServiceConfig.model_validate(
        {
            "port": 0,
            "data_dir": folder,
            "database": database,
            "access": {
                "keys": "required" if has_key else "auto",
                "requests_per_minute": 10**9,
                "changes_per_minute": 10**9,
            },
            "files": {"model_names": {"tiny": model}},
            "limits": {"max_queued": 10**9},
            "scheduling": {"cpu_slots": 2},
        }
    )
    command = [sys.executable, "-c", SERVE, config.model_dump_json()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip().rstrip("/")
        store = open_store(store_url(config))
        try:
            headers = {}
            if has_key:
                secret, key = new_key("root", "admin", time.time())
                store.keys.add(key)
                headers["Authorization"] = f"Bearer {secret}"
            yield Server(url, psutil.Process(process.pid), store, config, headers)
        finally:
            store.close()
            process.terminate()
            process.wait(30)


RECORD = b"event: record\n"


class Connections:
    """Some connections that stay open, and listeners.

    A whole client takes more time for a request than the server does, and for a record that 200 listen to so much that
    it would be the latency.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._address = httpx.URL(url)
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._free: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def open(self, count: int) -> None:
        """Open them."""
        for _ in range(count):
            self._free.put_nowait(await self._connect())

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self._address.host, self._address.port)

    async def listen(self, path: str, told: list[int], index: int) -> None:
        """Count the records of a stream until it ends."""
        reader, writer = await self._connect()
        headers = f"{self._headers}Accept: text/event-stream\r\nConnection: close\r\n"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        rest = b""
        while chunk := await reader.read(1 << 16):
            rest += chunk
            told[index] += rest.count(RECORD)
            rest = rest[1 - len(RECORD) :]
        writer.close()

    async def get(self, path: str) -> bytes:
        """The body of an answer, which must be 200, over the first connection that is free."""
        reader, writer = await self._free.get()
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{self._headers}\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        body = await reader.readexactly(int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))
        self._free.put_nowait((reader, writer))
        return body

    def close(self) -> None:
        """Close them all; none may be in use."""
        while not self._free.empty():
            self._free.get_nowait()[1].close()


async def ask(connections: Connections, path: str, due: float, latencies: list[float]) -> None:
    """One request; its latency in seconds from when it was due."""
    await connections.get(path)
    latencies.append(time.perf_counter() - due)


async def at_rate(connections: Connections, server: Server, rate: float, seconds: float) -> dict[str, list[float]]:
    """Lists and details in turn, one every 1/rate seconds."""
    chance, latencies = random.Random(8), {"list": list[float](), "detail": list[float]()}
    began = time.perf_counter()
    tasks = []
    for number in range(int(rate * seconds)):
        due = began + number / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        kind = "list" if number % 2 else "detail"
        path = "/jobs" if kind == "list" else f"/jobs/{chance.choice(server.jobs)}"
        tasks.append(asyncio.create_task(ask(connections, path, due, latencies[kind])))
    await asyncio.gather(*tasks)
    return latencies


async def with_listeners(server: Server, options: argparse.Namespace) -> dict[str, object]:
    """The latencies while a job that many listen to goes on."""
    job = server.add(0, "running", node="elsewhere")
    metrics = run_of(server.config.data_dir / "jobs" / job.id).metrics
    told = [0] * options.listeners
    path = f"/jobs/{job.id}/metrics"
    connections = Connections(server.url, server.headers)
    listeners = [asyncio.create_task(connections.listen(path, told, index)) for index in range(options.listeners)]
    while min(told, default=HISTORY) < HISTORY:
        await asyncio.sleep(0.05)
    writer = asyncio.create_task(write_on(metrics))
    before = server.process.cpu_times()
    began = time.perf_counter()
    await connections.open(CONNECTIONS)
    latencies = await at_rate(connections, server, options.rate, options.seconds)
    connections.close()
    took_s = time.perf_counter() - began
    after = server.process.cpu_times()
    writer.cancel()
    await asyncio.gather(writer, return_exceptions=True)
    written = len(metrics.read_bytes().splitlines())
    server.store.jobs.update(job.id, lambda found: ended(found))
    await asyncio.wait_for(asyncio.gather(*listeners), 30)
    return {
        **{f"{kind}_ms": percentiles(found) for kind, found in latencies.items()},
        "requests": sum(map(len, latencies.values())),
        "requests_per_s": round(options.rate * options.seconds / took_s, 1),
        "server_cpu_share": round((after.user + after.system - before.user - before.system) / took_s, 2),
        "listeners": options.listeners,
        "records_written": written,
        "listeners_that_heard_all": sum(count == written for count in told),
        "server_threads": server.process.num_threads(),
    }


def ended(job: Job) -> Job:
    """The same job at its end."""
    from dataclasses import replace

    return replace(job, state="succeeded", ended=time.time())


async def write_on(metrics: Path) -> None:
    """Log lines, until it is cancelled."""
    step = HISTORY
    while True:
        with metrics.open("a") as file:
            file.write(json.dumps({"kind": "train", "step": step, "loss": 1.0}) + "\n")
        step += 1
        await asyncio.sleep(WRITE_S)


def percentiles(latencies: list[float]) -> dict[str, float]:
    """In milliseconds."""
    found = sorted(1000 * latency for latency in latencies)
    at = {name: found[min(len(found) - 1, int(share * len(found)))] for name, share in (("p95", 0.95), ("p99", 0.99))}
    return {name: round(value, 2) for name, value in {"p50": median(found), **at, "max": found[-1]}.items()}


JOB = {"kind": "finetune", "model_name": "tiny", "texts": ["one", "two"], "resources": {"devices": 64}}


async def memory(server: Server, requests: int, at_once: int = 16) -> list[dict[str, float]]:
    """Memory of the server before, and at each tenth of, so many requests of all kinds."""
    samples = [{"requests": 0, "rss_mb": round(server.process.memory_info().rss / 2**20, 1)}]
    chance, paths = random.Random(9), ["/jobs?limit=10", "/jobs?q=owner", "/healthz", "/multigpu/stats", "/jobs/none"]
    async with httpx.AsyncClient(base_url=server.url, headers=server.headers, timeout=60) as client:

        async def some(count: int) -> None:
            for _ in range(count):
                job = chance.choice(server.jobs)
                path = chance.choice([*paths, f"/jobs/{job}", f"/jobs/{job}/metrics", f"/jobs/{job}/logs"])
                if chance.random() >= POSTS:
                    assert (await client.get(path)).status_code < 500
                    continue
                made = await client.post("/jobs", json=JOB)
                assert made.status_code == 202, made.text
                # It does not wait on: a queue that grows would be measured as memory that does.
                ended = await client.post(f"/jobs/{made.json()['id']}/cancel")
                assert ended.status_code == 202, ended.text

        for tenth in range(1, 11):
            await asyncio.gather(*(some(max(1, requests // 10 // at_once)) for _ in range(at_once)))
            sample = {"requests": tenth * requests // 10, "rss_mb": round(server.process.memory_info().rss / 2**20, 1)}
            samples.append(sample)
    return samples


def growth_mb(samples: list[dict[str, float]]) -> float:
    """By how much memory grew after the first tenth of the requests."""
    return round(samples[-1]["rss_mb"] - samples[1]["rss_mb"], 1)


def main() -> int:
    """Measure, print, and return 1 where memory grew too much."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("queued", 1000), ("finished", 500), ("listeners", 200), ("requests", 100_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--rate", type=float, default=200.0, help="requests a second")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--key", action="store_true", help="keys are required, and each request has one")
    parser.add_argument("--url", help="SQLAlchemy URL of an empty database, instead of SQLite")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        serving(Path(folder), options.url, has_key=options.key) as server,
    ):
        for number in range(options.queued):
            server.add(number, "queued", node_of(server.config))
        for number in range(options.finished):
            server.add(number, "succeeded", node_of(server.config))
        server.wait_until_looked_at()
        load = asyncio.run(with_listeners(server, options))
        samples = asyncio.run(memory(server, options.requests))
        grew = growth_mb(samples)
        result = {
            "machine": {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version()},
            "jobs": {"queued": options.queued, "finished": options.finished},
            "store": "SQLite" if options.url is None else options.url.partition(":")[0],
            "key": options.key,
            "load": load,
            "memory": samples,
            "memory_grew_mb": grew,
            "memory_may_grow_mb": GROWTH_MB,
        }
    print(json.dumps(result, indent=2))
    return int(grew > GROWTH_MB)


if __name__ == "__main__":
    sys.exit(main())
