"""What deploy/ ships can be meant: GPUs, shared memory, secrets that are files, paths that exist, metrics scraped."""

from __future__ import annotations

import configparser
import re
from pathlib import Path
from typing import Any

import yaml

from drumline.config.service import ServiceConfig
from drumline.config.service_file import load_service_config

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
IMAGE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
SECRET = re.compile(r"password|secret|token|key|credential", re.I)


def size_bytes(text: str) -> int:
    """A size as compose writes it."""
    number, unit = re.fullmatch(r"(\d+)([kmg])b?", text).groups()  # type: ignore[union-attr]
    return int(number) * int(1024 ** ("kmg".index(unit) + 1))


def unit_file() -> configparser.SectionProxy:
    """The section Service of the systemd unit."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / "drumline.service", encoding="utf-8")
    return parser["Service"]


def test_the_container_has_shared_memory_and_gpus() -> None:
    service = SERVICES["drumline"]
    assert size_bytes(service["shm_size"]) >= 8 * 2**30
    [device] = service["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in IMAGE  # utility: NVML
    assert service["ulimits"]["memlock"] == -1
    [folder] = service["tmpfs"]
    assert "exec" in folder.partition(":")[2].split(",")


def test_every_service_is_looked_at_and_only_loopback_is_published() -> None:
    for name, service in SERVICES.items():
        assert service["healthcheck"]["test"][0] == "CMD", name
        assert service["restart"] == "unless-stopped", name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert "privileged" not in service, name
    assert SERVICES["drumline"]["depends_on"]["postgres"] == {"condition": "service_healthy"}
    assert "/readyz" in SERVICES["drumline"]["healthcheck"]["test"][-1]


def test_no_secret_stands_in_plain() -> None:
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            assert not SECRET.search(variable) or str(value).startswith("/run/secrets/"), f"{name}: {variable}"
        for secret in service.get("secrets", []):
            assert secret in COMPOSE["secrets"], f"{name}: {secret}"
    for secret in COMPOSE["secrets"].values():
        assert set(secret) == {"file"} and secret["file"].startswith("./secrets/")
    assert "*\n" in (DEPLOY / "secrets" / ".gitignore").read_text()


def test_the_key_that_the_readme_makes_for_prometheus_reads_the_metrics() -> None:
    """/metrics is told to admins, and to viewers who may see all owners' jobs."""
    [line] = [
        each
        for each in (DEPLOY / "README.md").read_text().splitlines()
        if "secrets/metrics_key" in each and "tokens" in each
    ]
    assert "tokens create '*' --role viewer" in line
    url = re.search(r"^database: (.*)$", (DEPLOY / "service.yaml").read_text(), re.M)
    assert url is not None and re.fullmatch(r"[\w+]+://\w+@\w+/\w+", url[1])


def test_what_is_mounted_and_built_is_there() -> None:
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), f"{name}: {source}"
            elif not source.startswith("${"):
                assert source in COMPOSE["volumes"], f"{name}: {source}"
    build = SERVICES["drumline"]["build"]
    assert (DEPLOY / build["context"]).resolve() == ROOT and (ROOT / build["dockerfile"]).is_file()
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    for line in re.findall(r"^COPY (?!--)(.*) \S+$", IMAGE, re.M):
        for source in line.split():
            assert (ROOT / source).exists() and f"!{source}" in allowed, source
    for path, _ in re.findall(r"\]\((?:\.\./)?((docs|monitoring)/[\w./-]+)\)", (DEPLOY / "README.md").read_text()):
        assert (ROOT / path).exists() or (DEPLOY / path).exists(), path


def test_its_settings_can_be_meant() -> None:
    config = load_service_config(DEPLOY / "service.yaml")
    assert config.access.keys == "required" and config.database is not None and config.node is not None
    targets = [volume.split(":")[-2 if volume.endswith(":ro") else -1] for volume in SERVICES["drumline"]["volumes"]]
    assert str(config.data_dir) in targets
    assert {str(root) for root in (*config.files.data_roots, *config.files.model_roots)} <= set(targets)
    assert f"127.0.0.1:8000:{config.port}" in SERVICES["drumline"]["ports"]
    assert "/etc/drumline/service.yaml" in targets and '"/etc/drumline/service.yaml"' in IMAGE


def test_prometheus_scrapes_the_service_with_its_key_and_has_all_rules() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    [job] = config["scrape_configs"]
    assert (job["job_name"], job["metrics_path"]) == ("drumline", f"{ServiceConfig().prefix}/metrics")
    assert job["static_configs"] == [{"targets": [f"drumline:{ServiceConfig().port}"]}]
    assert job["authorization"] == {"credentials_file": "/run/secrets/metrics_key"}
    assert "metrics_key" in SERVICES["prometheus"]["secrets"]
    alone = yaml.safe_load((DEPLOY / "monitoring" / "prometheus.yml").read_text())
    assert config["rule_files"] == [f"monitoring/{name}" for name in alone["rule_files"]]
    assert config["global"] == alone["global"]
    assert "./monitoring:/etc/prometheus/monitoring:ro" in SERVICES["prometheus"]["volumes"]


def test_grafana_is_as_beside_the_monitor_but_for_the_address() -> None:
    ours = yaml.safe_load((DEPLOY / "grafana-datasource.yaml").read_text())
    alone = yaml.safe_load((DEPLOY / "monitoring/grafana/provisioning/datasources/prometheus.yaml").read_text())
    assert ours["datasources"][0].pop("url") == "http://prometheus:9090"
    alone["datasources"][0].pop("url")
    assert ours == alone


def test_the_unit_lets_jobs_outlive_the_service_and_reach_the_gpus() -> None:
    unit = unit_file()
    assert unit["KillMode"] == "process" and unit["OOMPolicy"] == "continue" and unit["Restart"] == "always"
    assert unit["ExecStart"].split()[1:] == ["serve", "--config", "/etc/drumline/service.yaml"]
    for closed in ("PrivateDevices", "DevicePolicy", "ProtectClock", "MemoryDenyWriteExecute", "PrivateTmp"):
        assert closed not in unit, closed
    for name in ("NoNewPrivileges", "ProtectHome", "ProtectKernelTunables", "RestrictSUIDSGID", "LockPersonality"):
        assert unit[name] == "yes", name
    assert unit["CapabilityBoundingSet"] == "" and unit["User"] == "drumline"
