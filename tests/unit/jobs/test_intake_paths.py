"""Which files and models a request may name."""

from __future__ import annotations

import glob
from pathlib import Path

import pytest

from drumline.config.service import FilesConfig, ServiceConfig
from drumline.errors import ConfigError
from drumline.jobs import intake_paths as module
from drumline.jobs.intake_paths import Places
from tests.unit.jobs.intake_service import places, service_with_roots

LEADS_OUT = "link that leads out of the folders"


@pytest.fixture
def config(tmp_path: Path) -> ServiceConfig:
    return service_with_roots(tmp_path)


def test_data_below_a_root_is_found_by_name_path_and_pattern(config: ServiceConfig, tmp_path: Path) -> None:
    rows = str(tmp_path / "data" / "rows.jsonl")
    for text in ("rows.jsonl", rows, "./rows.jsonl"):
        assert places(config).data(text, "path") == rows
    assert places(config).data("*.jsonl", "path") == str(tmp_path / "data" / "*.jsonl")
    assert places(config).data(str(tmp_path / "data"), "path") == str(tmp_path / "data")


@pytest.mark.parametrize("text", ["secret/rows.jsonl", "../secret/rows.jsonl", "/", "", "rows.jsonl\0", "recipes:../x"])
def test_data_elsewhere_is_not_read_and_not_told_of(config: ServiceConfig, tmp_path: Path, text: str) -> None:
    absolute = str(tmp_path / text) if text.startswith("secret") else text
    with pytest.raises(ConfigError, match="not below"):
        places(config).data(absolute, "path")
    with pytest.raises(ConfigError, match="not below"):
        places(config).data(str(tmp_path / "secret" / "not there"), "path")
    with pytest.raises(ConfigError, match="there is no"):
        places(config).data("~/rows.jsonl", "path")


def test_links_that_lead_out_are_not_followed(config: ServiceConfig, tmp_path: Path) -> None:
    link = tmp_path / "data" / "deep" / "link.jsonl"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "secret" / "rows.jsonl")
    with pytest.raises(ConfigError):
        places(config).data("deep/link.jsonl", "path")
    for text in ("deep", "deep/*.jsonl", "**/*.jsonl"):
        with pytest.raises(ConfigError, match=LEADS_OUT):
            places(config).data(text, "path")
    link.unlink()
    link.symlink_to(tmp_path / "data" / "rows.jsonl")
    assert places(config).data("deep", "path")


def test_jobs_of_others_stay_closed_whatever_the_roots(config: ServiceConfig, tmp_path: Path) -> None:
    wide = config.model_copy(update={"files": FilesConfig(data_roots=[tmp_path], model_roots=[tmp_path])})
    assert places(wide).data("secret/rows.jsonl", "path")
    for text in ("service/jobs/job-1/rows.jsonl", "service/store.sqlite3", "service"):
        with pytest.raises(ConfigError):
            places(wide).data(text, "path")
    with pytest.raises(ConfigError, match=LEADS_OUT):
        (tmp_path / "secret" / "jobs").symlink_to(tmp_path / "service" / "jobs")
        places(wide).data("secret", "path")
    assert places(wide).data("service/data", "path")


def test_models_come_from_the_table_the_roots_the_list_and_ones_own_jobs(config: ServiceConfig, tmp_path: Path) -> None:
    found = places(config).model
    small, made = str(tmp_path / "models" / "small"), str(tmp_path / "service" / "jobs" / "job-1" / "model")
    assert found("gpt2") == found("small") == found(small) == small
    assert found("HuggingFaceTB/SmolLM2-135M") == "HuggingFaceTB/SmolLM2-135M"
    assert found(made) == made
    with pytest.raises(ConfigError, match="no model"):
        Places(config).model(made)
    for text in ("gone", "bert-base", "HuggingFaceTB/../x", "HuggingFaceTB/a/b", "-x", "/", str(tmp_path / "secret")):
        with pytest.raises(ConfigError):
            found(text)


@pytest.mark.parametrize("text", ["x" * 300, "x/" * 3000, "**/**/**/*", "[" * 100])
def test_names_that_no_file_system_takes_are_refused_with_words(config: ServiceConfig, text: str) -> None:
    for look in (places(config).data, places(config).model, places(config).weights, places(config).template):
        with pytest.raises(ConfigError):
            look(text, "a setting")


def test_words_name_packed_templates_and_paths_files(config: ServiceConfig) -> None:
    assert places(config).template("chatml", "data.template") == "chatml"
    assert places(config).tokenizer("byte", "data.tokenizer") == "byte"


def many_files(folder: Path, count: int) -> None:
    folder.mkdir()
    for number in range(count):
        (folder / f"{number}.jsonl").write_text("{}")


def test_all_that_one_request_names_has_one_budget(
    config: ServiceConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many_files(tmp_path / "data" / "deep", 20)
    monkeypatch.setattr(module, "MOST_ENTRIES", 50)
    asked = places(config)
    for _ in range(5):  # the same text again is not looked at again
        asked.data("deep", "path")
    asked.data("deep/", "path")
    with pytest.raises(ConfigError, match="too much to look at"):
        asked.data("./deep", "path")
    assert places(config).data("deep", "path"), "another request has its own"
    for pattern in ("**/nothing*", "deep/nothing*", "deep/*.jsonl"):
        asked = places(config)
        with pytest.raises(ConfigError, match="too much to look at"):
            for number in range(5):
                with_another_text = "./" * number + pattern
                try:
                    asked.data(with_another_text, "path")
                except ConfigError as error:
                    if "there is no" not in error.problem:
                        raise


def test_a_request_is_not_looked_at_for_ever(config: ServiceConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_S", -1.0)
    with pytest.raises(ConfigError, match="too much to look at"):
        places(config).data("rows.jsonl", "path")


@pytest.mark.parametrize(
    "pattern", ["*", "*.jsonl", "**", "**/*.jsonl", "a/**/*.jsonl", "*/b/*", ".*", "a/[0-1].jsonl", "?/b", "a/**/c/1.*"]
)
def test_a_pattern_is_what_it_is_for_the_run(config: ServiceConfig, tmp_path: Path, pattern: str) -> None:
    data = tmp_path / "data"
    for name in ("a/0.jsonl", "a/b/c/1.jsonl", "a/b/.hidden/2.jsonl", ".hidden.jsonl", "a/[x].jsonl"):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_text("{}")
    (data / "circle").symlink_to(data / "circle")
    (data / "a" / "linked").symlink_to(data / "a" / "b")
    matched = {Path(name) for name in glob.glob(str(data / pattern), recursive=True)}  # noqa: PTH207
    assert matched - {data} == set(places(config)._matches(data / pattern))
