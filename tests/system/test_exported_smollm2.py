"""SmolLM2-135M-Instruct learns from chats with an adapter, is exported both ways, and answers alike everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import yaml
from torch import Tensor

from drumline.rundir import read_json

pytestmark = [
    pytest.mark.system,
    # What peft asks of a model, and transformers calls otherwise from version 6 on.
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),
]

COMMAND = str(Path(sys.executable).with_name("drumline"))
ASKED = [{"role": "user", "content": "Name a colour."}]


def command(folder: Path, *arguments: str) -> str:
    """What the command prints."""
    result = subprocess.run([COMMAND, *arguments], cwd=folder, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-3000:]
    return result.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three updates of an adapter, exported merged and alone."""
    assets = os.environ.get("DRUMLINE_TEST_ASSETS")
    assert assets, "run these tests with: make assets test-system"
    folder = tmp_path_factory.mktemp("chat")
    for file, names in (("rows.jsonl", ("Teal", "Ochre")), ("held_out.jsonl", ("Sepia",))):
        rows = [{"messages": [*ASKED, {"role": "assistant", "content": f"{name}, of course."}]} for name in names]
        (folder / file).write_text("".join(json.dumps(row) + "\n" for row in rows * 4))
    recipe: dict[str, Any] = {
        "name": "chat",
        "model": {"kind": "huggingface", "path": f"{assets}/smollm2", "adapter": {"rank": 4}},
        "data": {
            "kind": "records",
            "train": ["rows.jsonl"],
            "eval": ["held_out.jsonl"],
            "context": 64,
            "packing": "none",
        },
        "train": {
            "global_batch": 2,
            "max_steps": 3,
            "lr": 0.002,
            "precision": "fp32",
            "schedule": {"name": "constant"},
        },
        "hardware": {"device": "cpu"},
    }
    (folder / "chat.yaml").write_text(yaml.safe_dump(recipe))
    command(folder, "train", "chat.yaml")
    command(folder, "export", "runs/chat", "merged")
    command(folder, "export", "runs/chat", "alone", "--adapter")
    return folder


def prompt(folder: Path) -> tuple[Any, Tensor]:
    """The tokenizer of an exported folder, and a question in its chat template."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    given = tokenizer.apply_chat_template(ASKED, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    ids: Tensor = given["input_ids"]
    return tokenizer, ids


@torch.inference_mode()
def test_merged_and_alone_give_equal_logits_and_others_than_before(folder: Path) -> None:
    from peft import PeftModel

    _, ids = prompt(folder / "merged")
    assert torch.equal(ids, prompt(folder / "alone")[1])
    merged = transformers.AutoModelForCausalLM.from_pretrained(folder / "merged", local_files_only=True).eval()
    base = read_json(folder / "alone/adapter_config.json")["base_model_name_or_path"]
    plain = transformers.AutoModelForCausalLM.from_pretrained(base, local_files_only=True).eval()
    before = plain(ids).logits
    alone = PeftModel.from_pretrained(plain, str(folder / "alone")).eval()
    torch.testing.assert_close(alone(ids).logits, merged(ids).logits, rtol=0, atol=1e-3)
    assert (before - merged(ids).logits).abs().max() > 0.1


def test_the_command_says_what_transformers_says(folder: Path) -> None:
    tokenizer, ids = prompt(folder / "merged")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / "merged", local_files_only=True)
    written = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False)
    expected = tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True)
    chosen = [each for key in ("device=cpu", "tokens=16", "temperature=0") for each in ("--set", key)]
    arguments = ["--prompt", ASKED[0]["content"], *chosen, "--json"]
    for source in ("runs/chat", "merged", "alone"):
        assert json.loads(command(folder, "chat", source, *arguments))["answer"] == expected


def test_it_is_evaluated_as_it_was_and_described(folder: Path) -> None:
    found = json.loads(command(folder, "eval", "runs/chat", "--json"))
    assert found["metrics"] == pytest.approx(found["in_run"], abs=1e-4)
    card = (folder / "merged/README.md").read_text()
    assert "an adapter (lora, rank 4)" in card and "rows.jsonl" in card
    assert str(folder) not in card and "of course" not in card
    ends = read_json(folder / "merged/generation_config.json")["eos_token_id"]
    assert 2 in (ends if isinstance(ends, list) else [ends])  # <|im_end|>
