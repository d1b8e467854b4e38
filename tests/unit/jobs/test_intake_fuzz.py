"""Whatever comes in: it is taken, or refused with words; and nothing outside of the roots is ever named."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drumline.config.service import FilesConfig, ServiceConfig
from drumline.errors import ConfigError, DrumlineError, TooLarge
from drumline.jobs.finetuning_settings import SHORT_NAMES, as_overrides
from drumline.jobs.intake import accept
from drumline.jobs.intake_fields import TREATMENTS, Fields
from drumline.jobs.intake_paths import Places
from drumline.jobs.intake_predictions import RULES, prediction_fields
from drumline.jobs.requests import JobRequest

OUTSIDE = "outside"
PIECES = [
    "a",
    "..",
    ".",
    "~",
    "",
    OUTSIDE,
    "link",
    "*",
    "**",
    "\0",
    "\n",
    "jobs",
    "job-1",
    "run",
    "rows.jsonl",
    "ü",
    "data",
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> ServiceConfig:
    folder = tmp_path_factory.mktemp("roots").resolve()
    for name in ("root/a/data", "root/jobs", "service/data", "service/jobs/job-1/run", f"{OUTSIDE}/a", "gpt2"):
        (folder / name).mkdir(parents=True)
    for name in ("root/a/rows.jsonl", "service/jobs/job-1/rows.jsonl", f"{OUTSIDE}/a/rows.jsonl"):
        (folder / name).write_text("{}\n")
    (folder / "root" / "link").symlink_to(folder / OUTSIDE)
    files = FilesConfig(
        data_roots=[folder / "root"], model_roots=[folder / "root"], model_names={"gpt2": folder / "gpt2"}
    )
    return ServiceConfig(data_dir=folder / "service", files=files)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(
    parts=st.lists(st.sampled_from(PIECES), max_size=6), start=st.sampled_from(["", "/", "root", "service", OUTSIDE])
)
def test_no_path_leads_out(service: ServiceConfig, parts: list[str], start: str) -> None:
    folder = service.data_dir.parent
    text = "/".join(([str(folder / start)] if len(start) > 1 else [start] if start else []) + parts)
    places = Places(service)
    allowed = [folder / "root", folder / "service" / "data", folder / "service" / "models"]
    for look in (places.data, places.weights, places.model):
        try:
            found = Path(look(text, "a setting"))
        except ConfigError:
            continue
        assert any(found.resolve().is_relative_to(root) for root in allowed), (text, found)
        assert not any(OUTSIDE in str(match) for match in folder.glob(str(found.relative_to(folder)) if parts else "x"))


def names(fields: Fields | None = None) -> st.SearchStrategy[str]:
    known = sorted((fields or Fields()).known)
    return st.sampled_from([*known, *SHORT_NAMES, "", ".", "a.b", "train.lr=1", "\ud800", "__class__"])


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["/etc/passwd", "python", "auto", "huggingface", "gpt2"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names(), inner, max_size=3),
    max_leaves=8,
)


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names with what stands there; entries of a list under the list's."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from leaves(inner, f"{name}.{key}".lstrip("."))
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, name)
    else:
        yield name, value


def taken_or_refused(service: ServiceConfig, says: dict[str, Any]) -> None:
    try:
        request = JobRequest.model_validate(says)
    except ConfigError:
        return
    try:
        found = accept(request, service, Places(service), None, has_gpus=False)
    except DrumlineError as error:
        assert isinstance(error, ConfigError | TooLarge) and error.problem and error.fix
        return
    json.dumps(dict(found.work.settings), allow_nan=False)
    treatments = RULES.treatments if request.kind == "infer" else TREATMENTS
    for name, value in leaves(found.work.settings):
        assert treatments.get(name, "plain") == "plain" or "passwd" not in str(value)
    if request.kind == "finetune":
        as_overrides(found.work.settings)


@settings(derandomize=True, max_examples=60, deadline=None)
@given(said=st.dictionaries(names(), VALUES, max_size=3))
def test_any_settings_are_taken_or_refused(service: ServiceConfig, said: dict[str, Any]) -> None:
    taken_or_refused(service, {"model_name": "gpt2", "texts": ["a"], "settings": said})


@settings(derandomize=True, max_examples=60, deadline=None)
@given(said=st.dictionaries(names(), VALUES, max_size=4))
def test_any_config_is_taken_or_refused(service: ServiceConfig, said: dict[str, Any]) -> None:
    taken_or_refused(service, {"kind": "train", "config": said})


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    name=st.sampled_from([name for name, how in TREATMENTS.items() if how != "plain" and name != "hardware.gpus"]),
    value=st.sampled_from(["/etc/passwd", ["/etc/passwd"], [{"paths": ["/etc/passwd"]}], {"x": "/etc/passwd"}]),
)
def test_no_setting_that_names_something_takes_what_lies_outside(service: ServiceConfig, name: str, value: Any) -> None:
    request = JobRequest(model_name="gpt2", texts=["a"], settings={name: value})
    with pytest.raises(ConfigError):
        accept(request, service, Places(service), None, has_gpus=False)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(
    said=st.dictionaries(names(prediction_fields()), VALUES | st.just({"path": "/etc/passwd"}), max_size=3),
    task=st.none() | st.dictionaries(st.sampled_from(["kind", "prompt", "labels", "stop", "top_k", "x"]), VALUES),
)
def test_any_prediction_is_taken_or_refused(service: ServiceConfig, said: dict[str, Any], task: Any) -> None:
    taken_or_refused(service, {"kind": "infer", "model_name": "gpt2", "texts": ["a"], "settings": said, "task": task})


@settings(derandomize=True, max_examples=60, deadline=None)
@given(rows=st.lists(st.text(max_size=5) | st.dictionaries(st.text(max_size=3), VALUES, max_size=2), max_size=4))
def test_any_rows_are_taken_or_refused(service: ServiceConfig, rows: list[Any]) -> None:
    taken_or_refused(service, {"model_name": "gpt2", "texts": rows})
