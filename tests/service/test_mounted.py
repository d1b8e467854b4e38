"""The router within an application of somebody else's."""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, HTTPException
from starlette.testclient import TestClient

from drumline.config.service import ServiceConfig
from drumline.service.app import create_app, make_router
from drumline.service.opening import open_service
from tests.service.services import BASE, config, finetune


def _host(folder: Path) -> FastAPI:
    app = FastAPI(title="ads")
    app.include_router(
        make_router(config(folder), opener=lambda given: open_service(given, supervise=False)), prefix="/api/v1"
    )

    @app.get("/jobs")
    def list_jobs() -> dict[str, str]:
        raise HTTPException(418, "the host's own")

    return app


def test_it_works_below_a_prefix_and_leaves_the_hosts_answers_alone(tmp_path: Path) -> None:
    app = _host(tmp_path)
    with TestClient(app, base_url=BASE) as client:
        job = client.post("/api/v1/jobs", json=finetune()).json()
        assert job["links"]["self"] == f"/api/v1/jobs/{job['id']}"
        assert client.get(job["links"]["self"]).json()["id"] == job["id"]
        assert client.get("/api/v1/jobs").json()["total"] == 1
        missing = client.get("/api/v1/jobs/none")
        assert missing.status_code == 404 and missing.headers["content-type"] == "application/problem+json"
        assert missing.headers["X-Content-Type-Options"] == "nosniff"
        assert client.post("/api/v1/jobs", content=b" " * (33 * 2**20)).status_code == 413
        own = client.get("/jobs")
        assert (own.status_code, own.json()) == (418, {"detail": "the host's own"})
        assert "X-Frame-Options" not in own.headers
        document = client.get("/openapi.json").json()
        answers = document["paths"]["/api/v1/jobs/{job_id}"]["get"]["responses"]
        assert "code" in answers["404"]["content"]["application/problem+json"]["schema"]["properties"]


def test_behind_a_proxy_that_takes_a_path_off_links_carry_it(tmp_path: Path) -> None:
    with TestClient(_host(tmp_path), base_url=BASE, root_path="/gpu") as client:
        job = client.post("/api/v1/jobs", json=finetune()).json()
        assert job["links"]["self"] == f"/gpu/api/v1/jobs/{job['id']}"


def test_it_can_be_started_again_after_its_end(tmp_path: Path) -> None:
    app = _host(tmp_path)
    for total in (0, 1):
        with TestClient(app, base_url=BASE) as client:
            assert client.get("/api/v1/jobs").json()["total"] == total
            client.post("/api/v1/jobs", json=finetune())


def test_a_page_of_an_allowed_site_may_say_where_its_stream_goes_on() -> None:
    app = create_app(ServiceConfig.model_validate({"access": {"allowed_origins": ["https://ours.example"]}}))
    asked = {"Origin": "https://ours.example", "Access-Control-Request-Method": "GET"}
    for header, status in (("Last-Event-ID", 200), ("X-API-Key", 200), ("X-Other", 400)):
        answer = TestClient(app).options("/jobs", headers={**asked, "Access-Control-Request-Headers": header})
        assert answer.status_code == status, header
