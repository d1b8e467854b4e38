"""A simulated service for tests of the web page: its API's shapes with made-up jobs and GPUs, and the real page."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from drumline.service.page.page import page_router
from drumline.service.streams import LINES

GIB = 2**30
KEY = "dl_simulated"
ENDED = ("succeeded", "failed", "cancelled", "timed_out", "lost")


@dataclass
class Simulated:
    """What the service says, and what it was asked; tests change it while it runs."""

    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    records: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    lines: dict[str, list[str]] = field(default_factory=dict)
    configs: dict[str, dict[str, Any]] = field(default_factory=dict)
    gpus: list[dict[str, Any]] = field(default_factory=list)
    leases: list[dict[str, Any]] = field(default_factory=list)
    needs_key: bool = False
    role: str = "user"
    """Of who has logged in."""
    usage: list[dict[str, Any]] = field(default_factory=list)
    refuse: dict[str, Any] | None = None
    """The problem that a POST of a job is answered with."""
    is_down: bool = False
    """Every answer is 503, and streams break off."""
    slow_s: float = 0.0
    posted: list[tuple[str, Any, Mapping[str, str]]] = field(default_factory=list)
    resumed_at: list[str] = field(default_factory=list)
    """Last-Event-ID of streams that came again."""
    begun_anew: set[str] = field(default_factory=set)
    """Jobs whose files begin anew after the first page, which has half of the records."""


def job(job_id: str, state: str = "running", **changes: Any) -> dict[str, Any]:
    """A JobView."""
    began = "2026-11-28T20:10:00.000Z"
    own = f"/jobs/{job_id}"
    names = ("cancel", "retry", "logs", "metrics", "events", "config", "checkpoints")
    values: dict[str, Any] = {
        "id": job_id,
        "training_id": job_id,
        "name": "",
        "kind": "finetune",
        "status": state,
        "state": state,
        "reason": None,
        "message": "",
        "fix": "",
        "waits_for": "",
        "owner": "ada",
        "user_id": None,
        "tags": [],
        "training_type": None,
        "model_name": "gpt2",
        "created_at": "2026-11-28T20:09:58.000Z",
        "started_at": None if state == "queued" else began,
        "ended_at": "2026-11-28T20:41:00.000Z" if state in ENDED else None,
        "resources": {
            "devices": 2,
            "min_devices": None,
            "max_devices": None,
            "memory_bytes": None,
            "priority": 0,
            "time_limit_s": None,
            "retries": 0,
            "preemptible": True,
        },
        "devices": [],
        "attempt": 0 if state == "queued" else 1,
        "progress": dict.fromkeys(
            ("step", "num_steps", "epoch", "loss", "eval_loss", "units_per_s", "unit", "mfu", "eta_s", "elapsed_s")
        ),
        "success": state == "succeeded" if state in ENDED else None,
        "model_path": None,
        "training_time": None,
        "best_loss": None,
        "gpu_stats": None,
        "retry_of": None,
        "log_sources": ["command"],
        "note": "",
        "version": 1,
        "links": {"self": own, "page": f"/#/jobs/{job_id}", **{name: f"{own}/{name}" for name in names}},
    }
    return {**values, **changes}


def progress(step: int, num_steps: int = 400) -> dict[str, Any]:
    """How far a job is."""
    return {
        "step": step,
        "num_steps": num_steps,
        "epoch": 1,
        "loss": 2.4 - step / 400,
        "eval_loss": 2.31,
        "units_per_s": 48210.0,
        "unit": "tokens",
        "mfu": 0.41,
        "eta_s": 754.0,
        "elapsed_s": step * 2.1,
    }


def gpu(number: int, **changes: Any) -> dict[str, Any]:
    """A GpuStats."""
    return {
        "gpu_id": number, "uuid": f"GPU-{number}8932f93-d72c-4106-c12f-20bd9faed9f6", "name": "NVIDIA H100 80GB HBM3",
        "gpu_utilization": 0.0, "memory_utilization": 1.0, "memory_used_bytes": GIB, "memory_free_bytes": 79 * GIB,
        "memory_total_bytes": 80 * GIB, "temperature_c": 31.0, "slowdown_temperature_c": 92.0, "power_w": 72.0,
        "power_limit_w": 700.0, "fan": None, "sm_clock_mhz": 1980, "throttled_by": [], "activity": "idle",
        "activity_reason": "", "health": {"status": "ok", "reason": "", "findings": []}, "available": True,
        "unavailable_because": None, "held_by": None, "processes": None, "sampled_at": "2026-11-28T20:41:00.000Z",
        **changes,
    }  # fmt: skip


def make_app(state: Simulated) -> FastAPI:
    """The application; the page is the real one."""
    app = FastAPI()
    app.include_router(page_router())

    @app.middleware("http")
    async def gate(request: Request, call_next: Any) -> Response:
        path = request.url.path
        if path == "/" or path.startswith("/ui/"):
            return await call_next(request)  # type: ignore[no-any-return]
        if state.is_down:
            return problem(503, "busy", "The service is starting.", "Try again soon.")
        if state.needs_key and path != "/session" and not request.cookies.get("drumline_session"):
            return problem(401, "unauthorized", "an API key is needed", "log in")
        await asyncio.sleep(state.slow_s)
        return await call_next(request)  # type: ignore[no-any-return]

    _session_routes(app, state)
    _job_routes(app, state)
    _machine_routes(app, state)
    return app


def problem(status: int, code: str, detail: str, fix: str, errors: list[dict[str, str]] | None = None) -> Response:
    """An application/problem+json answer."""
    body = {"title": code, "status": status, "code": code, "detail": detail, "fix": fix, "errors": errors or []}
    return JSONResponse(body, status, media_type="application/problem+json")


def _session_routes(app: FastAPI, state: Simulated) -> None:
    @app.get("/session")
    def who(request: Request) -> Response:
        if not state.needs_key:
            return JSONResponse({"owner": "local", "role": "admin", "by": "loopback", "needs_key": False})
        if not request.cookies.get("drumline_session"):
            return problem(401, "unauthorized", "an API key is needed", "log in")
        return JSONResponse({"owner": "ada", "role": state.role, "by": "cookie", "needs_key": True})

    @app.post("/session")
    async def enter(request: Request) -> Response:
        if (await request.json())["key"] != KEY:
            return problem(401, "unauthorized", "the API key is unknown, revoked or past its end", "ask for another")
        answer = JSONResponse({"owner": "ada", "role": state.role, "by": "cookie", "needs_key": True})
        answer.set_cookie("drumline_session", "random", httponly=True, samesite="strict")
        return answer

    @app.delete("/session")
    def leave() -> Response:
        answer = Response(status_code=204)
        answer.delete_cookie("drumline_session")
        return answer


def _job_routes(app: FastAPI, state: Simulated) -> None:
    @app.get("/jobs")
    def jobs(request: Request) -> Any:
        states, text = request.query_params.getlist("state"), request.query_params.get("q", "")
        fits = [each for each in state.jobs.values() if each["state"] in states and text in json.dumps(each)]
        return {"items": fits, "next": None, "total": len(fits)}

    @app.post("/jobs", status_code=202)
    async def submit(request: Request) -> Any:
        body = await request.json()
        state.posted.append(("jobs", body, dict(request.headers)))
        if state.refuse is not None:
            return problem(**state.refuse)
        new = job("job-new", "queued", name=body["name"], waits_for="waits for 2 GPUs: 0 are free", attempt=0)
        state.jobs[new["id"]] = new
        return new

    @app.get("/jobs/{job_id}")
    def one(job_id: str) -> Any:
        found = state.jobs.get(job_id)
        return found or problem(404, "not_found", f"there is no job {job_id}", "see GET /jobs for those that there are")

    @app.post("/jobs/{job_id}/{change}", status_code=202)
    async def change(job_id: str, change: str, request: Request) -> Any:
        state.posted.append((change, await request.body(), dict(request.headers)))
        found = state.jobs[job_id]
        if change == "retry":
            new = job("job-again", "queued", retry_of=job_id, waits_for="Waits for its turn")
            state.jobs["job-again"] = new
            return new
        found.update(state="cancelled", status="cancelled", message="cancelled by ada", ended_at=found["created_at"])
        return found

    @app.delete("/jobs/{job_id}/data", status_code=204)
    def forget(job_id: str, request: Request) -> None:
        state.posted.append(("data", job_id, dict(request.headers)))

    @app.get("/jobs/{job_id}/config")
    def config(job_id: str) -> Any:
        return {"config": state.configs.get(job_id), "requested": {"epochs": 3}, "plan": None}

    @app.get("/jobs/{job_id}/checkpoints")
    def checkpoints(job_id: str) -> Any:
        written = {"path": "x", "bytes": 1_523_000_000, "written_at": "2026-11-28T20:40:00.000Z"}
        return {"items": [{"step": step, **written} for step in (400, 200) if state.jobs[job_id]["attempt"]]}

    @app.get("/jobs/{job_id}/metrics")
    def metrics(job_id: str, request: Request) -> Any:
        return _file(state, state.jobs[job_id], state.records.get(job_id, []), "record", request)

    @app.get("/jobs/{job_id}/logs")
    def logs(job_id: str, request: Request) -> Any:
        return _file(state, state.jobs[job_id], state.lines.get(job_id, []), "line", request)


def _file(state: Simulated, of: dict[str, Any], content: list[Any], kind: str, request: Request) -> Any:
    """A page of a file, or a stream of it; places are counted in entries."""
    if "text/event-stream" not in request.headers.get("accept", ""):
        page = {"records": content, "next": str(len(content)), "done": of["state"] in ENDED, "rewritten": False}
        if of["id"] in state.begun_anew and "after" not in request.query_params:
            return {**page, "records": content[: len(content) // 2], "next": "1:1", "done": False}
        return {**page, "rewritten": of["id"] in state.begun_anew}
    last = request.headers.get("last-event-id")
    if last is not None:
        state.resumed_at.append(last)

    async def events() -> AsyncIterator[str]:
        tail = int(request.query_params.get("tail", len(content)))
        place = max(0, len(content) - tail) if last is None else int(last)
        yield ": drumline\n\n"
        while not state.is_down:
            ended = of["state"] in ENDED
            while place < len(content):
                first, place = place, min(place + LINES, len(content))
                some = enumerate(content[first:place], first + 1)
                yield "".join(f"event: {kind}\ndata: {json.dumps(each)}\nid: {at}\n\n" for at, each in some)
            if ended:
                yield f"event: end\ndata: {{}}\nid: {place}\n\n"
                return
            await asyncio.sleep(0.05)

    return StreamingResponse(events(), media_type="text/event-stream")


def _machine_routes(app: FastAPI, state: Simulated) -> None:
    @app.get("/multigpu/stats")
    def stats() -> Any:
        free = [each["gpu_id"] for each in state.gpus if each["available"]]
        return {
            "available_gpus": free, "gpu_info": state.gpus, "gpu_count": len(state.gpus),
            "gpu_source": "nvml 580.159" if state.gpus else "no NVIDIA driver", "late": None,
            "total_memory_bytes": sum(each["memory_total_bytes"] for each in state.gpus) or None,
            "used_memory_bytes": sum(each["memory_used_bytes"] for each in state.gpus) or None,
            "power_w": sum(each["power_w"] for each in state.gpus) or None,
            "devices_free": len(free) if state.gpus else 1, "devices_held": 0 if state.gpus else 1,
        }  # fmt: skip

    @app.get("/multigpu/resources/status")
    def resources() -> Any:
        counts = {name: sum(each["state"] == name for each in state.jobs.values()) for name in ("queued", "running")}
        free = {"id": "cpu:1", "usable": True, "unusable_because": None, "held_by": None}
        holder = {"kind": "job", "job_id": "job-1", "owner": "ada", "since": None, "message": "held by job-1"}
        devices = [{**free, "id": "cpu:0", "held_by": holder}, free]
        queue = {"total": counts["queued"], "items": []}
        told = {"node": "trainer-1", "leases": state.leases, "disk": {"free_bytes": 812 * GIB}}
        return {"queue": queue, "jobs": counts, "devices": devices, **told}

    @app.get("/multigpu/health")
    def health() -> Any:
        message = "GPU 3 has a row remap pending"
        bad = any(each["health"]["status"] != "ok" for each in state.gpus)
        check = {
            "name": "gpus",
            "status": "degraded",
            "message": message,
            "fix": "Restart the machine when it is idle.",
        }
        return {"status": "degraded" if bad else "ok", "checks": [check] if bad else [], "degraded": []}

    @app.get("/multigpu/performance/metrics")
    def performance(limit: int = 50) -> Any:
        def by(name: str) -> dict[str, Any]:
            names = dict.fromkeys(each[name] for each in state.usage)
            return {one: sums([each for each in state.usage if each[name] == one]) for one in names}

        told = {"total": sums(state.usage), "by_owner": by("owner"), "by_day": by("day"), "currency": "EUR"}
        looked_at = min(2000, len(state.usage))
        rated = {"looked_at": looked_at, "truncated": looked_at < len(state.usage)}
        return {**told, "by_job": state.usage[:limit], **rated}


def sums(usage: list[dict[str, Any]]) -> dict[str, Any]:
    """A SumsView of some JobUsageViews, as far as the page shows it."""
    names = ("device_s", "measured_device_s", "cost")
    found = {name: sum(each[name] for each in usage) for name in names}
    energies = [each["energy_j"] for each in usage if each["energy_j"] is not None]
    rated = {"queue_p50_s": 41.0, "goodput": 0.93, "mfu": 0.38, "units_per_s": {"tokens": 48210.0}}
    return {"jobs": len(usage), **found, "energy_j": sum(energies) if energies else None, **rated}


def add_silent(state: Simulated, job_id: str) -> None:
    """A job of a machine that does not answer, with its lease."""
    message = "nobody has looked after it since 2026-11-28 20:12:00 UTC: node trainer-2 does not answer"
    fix = "wait for trainer-2; where it is gone for good, cancel the job, which then ends as lost"
    told = {"name": "on another machine", "reason": "node_silent", "message": message, "fix": fix}
    state.jobs[job_id] = job(job_id, "stopping", devices=["GPU-5"], progress=progress(9), **told)
    held = {"since": "2026-11-28T20:10:00.000Z", "expires": "2026-11-28T20:12:30.000Z", "run_out": True}
    state.leases.append({"node": "trainer-2", "device": "GPU-5", "job_id": job_id, "owner": "ada", **held})
    theirs = {"node": "trainer-3", "device": "cpu:0", "job_id": None, "owner": None, **held}
    state.leases += [theirs, {**theirs, "node": "trainer-1", "run_out": False}]


def use(job_id: str, **changes: Any) -> dict[str, Any]:
    """A JobUsageView: two hours of a GPU."""
    return {
        "job_id": job_id, "owner": "ada", "name": "", "state": "succeeded", "day": "2026-11-28", "queue_s": 41.0,
        "run_s": 7200.0, "device_s": 7200.0, "gpu_s": 7200.0, "energy_j": 3.6e6, "measured_device_s": 7200.0,
        "cost": 4.0, "units_per_s": 48210.0, "unit": "tokens", "mfu": 0.38, "goodput": 0.93, **changes,
    }  # fmt: skip


@contextmanager
def serving(state: Simulated) -> Iterator[str]:
    """Serve it on a free port of this machine; gives the page's address."""
    server = uvicorn.Server(uvicorn.Config(make_app(state), port=0, log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, name="simulated-service")
    thread.start()
    try:
        limit = time.monotonic() + 10
        while not server.started:
            assert time.monotonic() < limit and thread.is_alive(), "the simulated service does not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        state.is_down = True  # lets streams end
        server.should_exit = True
        thread.join(10)
