"""A service with one folder of data, one model and one job, for tests of what requests may name."""

from __future__ import annotations

from pathlib import Path

from drumline.config.service import FilesConfig, LimitsConfig, ServiceConfig
from drumline.jobs.intake_paths import Places


def service_with_roots(tmp_path: Path) -> ServiceConfig:
    """Its data directory is service/; secret/ is nobody's business."""
    for name in (
        "data",
        "models/small",
        "service/data",
        "service/jobs/job-1/model",
        "service/jobs/job-1/run",
        "secret",
    ):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data" / "rows.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "secret" / "rows.jsonl").write_text('{"text": "nobody\'s business"}\n')
    (tmp_path / "service" / "jobs" / "job-1" / "rows.jsonl").write_text('{"text": "another one\'s"}\n')
    return ServiceConfig(
        data_dir=tmp_path / "service",
        files=FilesConfig(
            data_roots=[tmp_path / "data"],
            model_roots=[tmp_path / "models"],
            model_names={"gpt2": tmp_path / "models" / "small", "gone": tmp_path / "models" / "gone"},
            hub_models=["HuggingFaceTB/*"],
        ),
        limits=LimitsConfig(max_texts=3, max_body_bytes=1000),
    )


def places(config: ServiceConfig) -> Places:
    """As somebody sees it who owns job-1."""
    return Places(config, lambda job_id: job_id == "job-1")
