"""A plan whose model and data are looked at says what its start would do."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.services import config, running
from tests.tiny_models import save_llama

pytestmark = pytest.mark.system


@pytest.mark.parametrize(("method", "kind"), [("dataparallel", "data_parallel"), ("auto", "single")])
def test_a_closer_look_knows_how_it_is_spread(tmp_path: Path, method: str, kind: str) -> None:
    model = save_llama(tmp_path / "models" / "llama")
    settings = config(tmp_path / "service", files={"model_names": {"llama": model}})
    body = {
        "model_name": "llama",
        "dataset_config": {"texts": ["one text", "and another", "and a third"], "max_length": 32},
        "training_config": {"epochs": 2, "learning_rate": 1e-3},
        "resources": {"devices": 1},
        "training_type": method,
    }
    with running(settings) as (client, opened):
        answer = client.post("/multigpu/training/config?closer=true", json=body)
        assert answer.status_code == 200, answer.text
        told = answer.json()
        assert told["config"]["train"]["epochs"] == 2
        assert told["config"]["data"]["context"] == 32
        assert (told["config"]["parallel"]["kind"], told["plan"]["kind"]) == (
            "data_parallel" if method == "dataparallel" else "auto",
            kind,
        )
        assert told["reasons"]
        # Its data was only looked at: nothing of it lies anywhere but with the plan.
        files = [path for path in tmp_path.rglob("*") if path.is_file() and b"and a third" in path.read_bytes()]
        assert files == [*(opened.config.data_dir / "plans").glob("*/rows.jsonl")]
