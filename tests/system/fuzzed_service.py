"""What requests that are made up can meet in a service: jobs in all states with their files, keys, plans and GPUs."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import httpx
from hypothesis import strategies as some

from drumline.jobs.devices import node_of
from drumline.jobs.keeper_files import answers_of, run_of
from drumline.jobs.records import END_STATES, Job, JobKind, Resources, State, Work
from drumline.service.new_keys import new_key
from tests.service.machines import UUIDS
from tests.service.servers import LIMIT_S, Served

ROOT = Path(__file__).resolve().parent.parent.parent
SERVE = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import uvicorn
from drumline.config.service import ServiceConfig
from drumline.service.app import create_app
from drumline.service.opening import open_service
from drumline.service.serving import listening, settings
from tests.service.machines import put_gpus
config = ServiceConfig.model_validate_json(sys.argv[1])
def opened(given):
    service = open_service(given, supervise=False)
    put_gpus(service)
    return service
app = create_app(config, opener=opened)
listener = listening(config.host, config.port)
print(f"http://127.0.0.1:{{listener.getsockname()[1]}}", flush=True)
uvicorn.Server(uvicorn.Config(app, **settings(config))).run(sockets=[listener])
"""
"""Nobody starts the jobs that are asked for; the GPUs are simulated, and all held, so that none is ever tested."""

OWNERS = ("local", "ann", "bob")
STATES: tuple[State, ...] = get_args(State)
KINDS: tuple[JobKind, ...] = get_args(JobKind)
MODEL = "tiny"
TEXTS = ["one", "two"]
JOB_BODY = {"kind": "finetune", "model_name": MODEL, "texts": TEXTS}
TRAINING_BODY = {"model_name": MODEL, "dataset_config": {"texts": TEXTS}}
HEADERS: tuple[dict[str, str], ...] = (
    {}, {}, {}, {}, {"If-None-Match": "*"}, {"Range": "bytes=0-3"}, {"Range": "bytes=99999999-"},
)  # fmt: skip
metrics = (
    '{"kind": "train", "step": 1, "loss": 2.5, "time": 1.8e9}\n'
    '{"kind": "train", "step": 2, "loss": NaN, "time": 1.8e9}\n'
    '{"kind": "eval", "step": 2, "eval_lo'
)


def with_model(folder: Path) -> dict[str, Any]:
    """Settings of a service that knows a model by name."""
    model = folder / "models" / MODEL
    model.mkdir(parents=True)
    (model / "config.json").write_text('{"model_type": "gpt2"}')
    return {"model_names": {MODEL: str(model)}}


@dataclass
class Real:
    """Ids that are there, to be put into requests that were made up."""

    server: Served
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    jobs: list[str] = field(default_factory=list)
    plans: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.jobs = [self._job(state, kind, owner) for state in STATES for kind in KINDS for owner in OWNERS]
        for owner, device in zip(OWNERS, UUIDS, strict=True):
            job = self.server.store.jobs.get(next(each for each in self.jobs if f"{owner}-running" in each))
            assert job is not None
            with self.server.store.change() as change:
                change.grant(job, [device], time.time(), 1e6)
        self.plans = [self._plan() for _ in range(3)]

    def put_into(self, case: Any, draw: some.DrawFn) -> dict[str, str]:
        """Change a request, three times of four, into one about what is there; returns headers to send beside."""
        is_real = draw(some.sampled_from((True, True, True, False)))
        if not is_real:
            return {}
        # A made-up key would end the request before anything is looked at, as a place in a stream often does.
        ends = {"Authorization", "X-API-Key", *draw(some.sampled_from(((), ("Last-Event-ID",))))}
        case.headers = {name: value for name, value in (case.headers or {}).items() if name not in ends}
        case.cookies = {}
        if draw(some.booleans()):
            case.query = {}
        changes = case.method != "GET"
        makers: dict[str, Callable[[some.DrawFn, bool], str]] = {
            "job_id": self._a_job, "key_id": self._a_key, "config_id": self._a_plan, "gpu_id": self._a_gpu,
        }  # fmt: skip
        for name in case.path_parameters or {}:
            case.path_parameters[name] = makers[name](draw, changes)
        if case.operation.path == "/multigpu/training/history":
            case.query["compare"] = draw(some.lists(some.sampled_from(self.jobs), min_size=1, max_size=3))
        path = case.operation.path
        if path == "/session" and case.method == "POST":
            case.body = {"key": self._secret()}
        if case.method == "POST" and (path == "/jobs" or path.startswith("/multigpu/training/")):
            self._make_right(case, draw, JOB_BODY if path == "/jobs" else TRAINING_BODY)
        return draw(some.sampled_from(HEADERS))

    def _make_right(self, case: Any, draw: some.DrawFn, right: dict[str, Any]) -> None:
        """A request that is right but for some of the made-up fields."""
        made_up = case.body if isinstance(case.body, dict) else {}
        kept = {name for name in made_up if draw(some.sampled_from((True, False, False)))}
        if right is TRAINING_BODY and draw(some.sampled_from((True, False, False))):
            right = {"config_id": self._a_plan(draw, False)}
        case.body = {**right, **{name: made_up[name] for name in kept}}

    def _a_job(self, draw: some.DrawFn, changes: bool) -> str:
        """One that stays as it is, or for a change a new one."""
        if not changes:
            return draw(some.sampled_from(self.jobs))
        return self._job(
            draw(some.sampled_from(STATES)), draw(some.sampled_from(KINDS)), draw(some.sampled_from(OWNERS))
        )

    def _a_key(self, draw: some.DrawFn, changes: bool) -> str:
        _, key = new_key(draw(some.sampled_from(OWNERS)), "user", time.time())
        self.server.store.keys.add(key)
        return key.id

    def _a_plan(self, draw: some.DrawFn, changes: bool) -> str:
        return self._plan() if changes else draw(some.sampled_from(self.plans))

    def _a_gpu(self, draw: some.DrawFn, changes: bool) -> str:
        return draw(some.sampled_from((*UUIDS, "0", "2")))

    def _secret(self) -> str:
        secret, key = new_key("ann", "user", time.time())
        self.server.store.keys.add(key)
        return secret

    def _plan(self) -> str:
        answer = httpx.post(f"{self.server.url}/multigpu/training/config", json=TRAINING_BODY, timeout=LIMIT_S)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["config_id"])

    def _job(self, state: State, kind: JobKind, owner: str) -> str:
        """A job in the store, with the files that it would have; nobody looks after it."""
        now, number = time.time(), next(self.numbers)
        begun = state != "queued"
        result: dict[str, Any] = {"success": state == "succeeded"} if state in END_STATES else {}
        if kind == "infer" and state == "succeeded":
            result |= {"output_path": "/x/answers.csv", "rows": 2, "rows_failed": 1, "summary": {"labels": {"a": 1}}}
        work = Work(kind, {"train.epochs": 3}, model="/models/tiny", model_name=MODEL, output="csv")
        job = Job(
            f"job-{owner}-{state}-{kind}-{number}", owner, work, Resources(devices=1), now, state,
            ended=now if state in END_STATES else None, node=node_of(self.server.config), queued_since=now,
            started=now if begun else None, attempt=int(begun), attempt_began=now if begun else None,
            devices=(UUIDS[number % 3],) if begun else (), progress={"step": 2, "loss": 2.5} if begun else {},
            result=result, tags=("a", "b"), user_id="7",
        )  # fmt: skip
        self.server.store.jobs.add(job)
        folder = self.server.folder(job)
        run = run_of(folder)
        run.logs.mkdir(parents=True)
        (folder / "rows.jsonl").write_text('{"text": "one"}\n')
        if begun:
            (folder / "command.log").write_bytes(b"a line\nno \xff utf-8\nhalf a li")
            (run.logs / "rank_0.log").write_text("from rank 0\n")
            run.metrics.write_text(metrics)
            run.events.write_text('{"event": "start", "time": 1.0}\n')
            run.config.write_text("name: x\ntrain: {epochs: 1}\n")
            run.plan.write_text(json.dumps({"world_size": 1}))
            run.checkpoint_of(5).mkdir(parents=True)
            (run.checkpoint_of(5) / "manifest.json").write_text("{}")
            answers_of(folder, "csv").write_text("id,answer\n1,yes\n")
        return job.id
