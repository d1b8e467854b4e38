"""An adapter that a run of any kind has trained is exported merged or alone, and plain libraries load either."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from drumline.build.export import answer
from drumline.build.parts import build_parts
from drumline.config.load import load_config
from drumline.rundir import read_json
from tests.rank_pool import RankPool
from tests.ranks.adapted import VOCABULARY, Case, tiny_llama, train

SGD = {"lr": 0.5, "optimizer": {"name": "sgd", "weight_decay": 0.0}}
IDS = torch.arange(20).reshape(2, 10) % VOCABULARY


@torch.inference_mode()
def logits(model: Any) -> Tensor:
    """Of the same rows each time."""
    found: Tensor = model.eval()(input_ids=IDS).logits
    return found.clone()


def train_and_export(case: Case) -> dict[str, Any]:
    """Train on all ranks, and on the first one export: logits as trained, and of what plain libraries make of it."""
    seen, run = train(case), Path(case.directory)
    if os.environ["RANK"] != "0":
        return {}
    model: Any = build_parts(load_config(run / "config.yaml")).model
    begun = logits(model)
    model.load_state_dict(seen.weights)
    merged, alone = run.parent / "merged", run.parent / "alone"
    told = [answer(run, merged), answer(run, alone, adapter=True)]
    plain = transformers.AutoModelForCausalLM.from_pretrained(merged, local_files_only=True)
    found = {"told": told, "begun": begun, "trained": logits(model), "merged": logits(plain)}
    if "quantise" not in case.model:
        from peft import PeftModel

        base = read_json(alone / "adapter_config.json")["base_model_name_or_path"]
        whole = transformers.AutoModelForCausalLM.from_pretrained(base, local_files_only=True)
        with warnings.catch_warnings():  # peft's own, of what is trained and tied, and of a name in transformers
            warnings.filterwarnings("ignore", "Model has `tie_word_embeddings=True`", UserWarning)
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
            found["alone"] = logits(PeftModel.from_pretrained(whole, str(alone)))
    return found


SETTINGS: dict[str, dict[str, Any]] = {
    "lora": {"adapter": {"rank": 4}},
    "dora and embeddings": {"adapter": {"kind": "dora", "rank": 4, "train_also": ["embed_tokens"]}},
    "qlora": {"quantise": "nf4", "adapter": {"rank": 4, "targets": ["q_proj", "up_proj"]}},
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("fsdp", "dora and embeddings"),
        pytest.param("ddp", "lora", marks=pytest.mark.system),
        pytest.param("single", "qlora", marks=pytest.mark.system),
    ],
)
def test_merged_and_alone_it_computes_what_was_trained(ranks: RankPool, tmp_path: Path, kind: str, name: str) -> None:
    tiny_llama(tmp_path / "base", **({"hidden_size": 64, "intermediate_size": 64} if name == "qlora" else {}))
    model = {"path": str(tmp_path / "base"), **SETTINGS[name]}
    parallel = {"kind": kind, **({"min_params": 100} if kind == "fsdp" else {})}
    case = Case(str(tmp_path / "run"), model, parallel, SGD, save=4, double=False)
    found = ranks.run(1 if kind == "single" else 2, train_and_export, case)[0]
    assert [each.get("problem") for each in found["told"]] == [None, None]
    assert [each["merged"] for each in found["told"]] == [True, False]
    assert (found["trained"] - found["begun"]).abs().max() > 1e-3
    for way in ("merged", "alone"):
        if way in found:
            torch.testing.assert_close(found[way], found["trained"], rtol=0, atol=1e-5)


def export_beside_another(case: Case, seed: int) -> str:
    """What an export says whose base model has been replaced after training."""
    train(case)
    tiny_llama(Path(case.model["path"]), seed=seed)
    told = answer(Path(case.directory), Path(case.directory).parent / "merged")
    return str(told.get("problem"))


def test_an_adapter_of_another_model_is_not_merged(ranks: RankPool, tmp_path: Path) -> None:
    tiny_llama(tmp_path / "base")
    model = {"path": str(tmp_path / "base"), **SETTINGS["lora"]}
    case = Case(str(tmp_path / "run"), model, {"kind": "single"}, SGD, save=4, double=False)
    (said,) = ranks.run(1, export_beside_another, case, 8)
    assert "belongs to another base model" in said
    assert not (tmp_path / "merged").exists()
