"""What `drumline jobs submit` sends."""

from __future__ import annotations

from pathlib import Path

import pytest

from drumline.cli.job_request import request_of
from drumline.errors import ConfigError, DataError
from drumline.jobs.requests import JobRequest


def test_a_recipe_is_sent_as_it_stands_with_its_overrides() -> None:
    request = request_of("quickstart", None, [], ["train.lr=0.5"], ["resources.priority=7", "tags=[a, b]", "name=1.10"])
    whole = JobRequest.model_validate(request)
    assert whole.kind == "train" and whole.config is not None and whole.config["train"]["lr"] == 0.5
    assert "checkpoint" not in whole.config or "keep" not in whole.config["checkpoint"]
    assert whole.resources is not None and (whole.resources.priority, whole.tags, whole.name) == (7, ["a", "b"], "1.10")


def test_a_fine_tuning_names_paths_or_sends_rows(tmp_path: Path) -> None:
    texts, rows = tmp_path / "ads.txt", tmp_path / "ads.jsonl"
    texts.write_text("one\r\n\ntwo\u2028still two\n", encoding="utf-8")
    rows.write_text('{"text": "three"}\n"four"\n', encoding="utf-8")
    sent = request_of(None, "gpt2", [f"@{texts}", f"@{rows}"], ["train.epochs=3"], [])
    assert sent["texts"] == ["one", "two\u2028still two", {"text": "three"}, "four"]
    assert (sent["kind"], sent["model_name"], sent["settings"]) == ("finetune", "gpt2", {"train": {"epochs": 3}})
    assert request_of(None, "gpt2", ["/data/a"], [], [])["path"] == "/data/a"
    assert request_of(None, "gpt2", ["/data/a", "/data/b"], [], [])["path"] == ["/data/a", "/data/b"]


@pytest.mark.parametrize(
    ("recipe", "model", "data", "job", "problem"),
    [
        (None, None, [], [], "neither a recipe nor --model"),
        ("quickstart", "gpt2", ["/d"], [], "a recipe and --model"),
        ("quickstart", None, ["/d"], [], "--data goes with --model"),
        (None, "gpt2", [], [], "--model without --data"),
        (None, "gpt2", ["/d", "@x"], [], "--data with and without @"),
        (None, "gpt2", ["/d"], ["resources.device=2"], "did you mean resources.devices?"),
        (None, "gpt2", ["/d"], ["resources.priority=200"], "--job resources.priority=200"),
        (None, "gpt2", ["/d"], ["path=/e"], "--job path says what"),
        (None, "gpt2", ["/d"], ["name"], "write it as in --job resources.devices=2"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    recipe: str | None, model: str | None, data: list[str], job: list[str], problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        request_of(recipe, model, data, [], job)
    assert problem in str(caught.value)


def test_rows_that_cannot_be_read_are_told_with_their_number(tmp_path: Path) -> None:
    rows = tmp_path / "ads.jsonl"
    rows.write_text('{"text": "a"}\n{oops\n')
    with pytest.raises(DataError, match=r"ads\.jsonl, row 2: this is not JSON"):
        request_of(None, "gpt2", [f"@{rows}"], [], [])
    with pytest.raises(DataError, match="cannot be read"):
        request_of(None, "gpt2", ["@/nowhere/x.txt"], [], [])
