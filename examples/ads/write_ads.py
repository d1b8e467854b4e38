"""A language model learns to write advertisements, and answers the same briefs before and after.

    python examples/ads/write_ads.py                                # SmolLM2-135M-Instruct from the hub
    python examples/ads/write_ads.py --model FOLDER --epochs 8      # any chat model, from a folder

The ads are our own (recipes/ads); dictionary definitions of WordNet go along with them, so that the model does not
forget that there are other texts. FineTuningService runs the training as a job on every GPU, beside this program: a
web service awaits it in the same way.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import sys
from pathlib import Path
from typing import Any

from drumline import FineTuningService
from drumline.config.recipes import recipes_folder
from drumline.rundir import write_atomic

NUM_DEFINITIONS = 56
"""As many as there are ads."""


def chats() -> list[dict[str, Any]]:
    """Rows to learn from: messages, of which the assistant's words are learned."""
    ads = (recipes_folder() / "ads/train.jsonl").read_text(encoding="utf-8").splitlines()
    with (recipes_folder() / "wordnet/train.csv").open(encoding="utf-8", newline="") as stream:
        glosses = list(csv.DictReader(stream))[:NUM_DEFINITIONS]
    definitions = [
        {
            "messages": [
                {"role": "user", "content": f"Define something of the kind: {row['topic']}."},
                {"role": "assistant", "content": row["definition"]},
            ]
        }
        for row in glosses
    ]
    return [json.loads(line) for line in ads] + definitions


def briefs() -> list[dict[str, str]]:
    """Held-out briefs, with what the ad of our own says."""
    lines = (recipes_folder() / "ads/eval.jsonl").read_text(encoding="utf-8").splitlines()
    messages = [json.loads(line)["messages"] for line in lines]
    return [{"system": system["content"], "brief": user["content"]} for system, user, _ in messages]


async def answer(model: str, brief: dict[str, str]) -> str:
    """What a model writes for a brief: its likeliest words."""
    settings = ["--set", "tokens=60", "--set", "temperature=0"]
    asked = ["--prompt", brief["brief"], "--system", brief["system"], *settings, "--json"]
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "drumline", "chat", model, *asked, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await child.communicate()
    if child.returncode:
        raise SystemExit(child.returncode)
    return str(json.loads(out)["answer"]).strip()


async def main(model: str, epochs: int, folder: Path, num_briefs: int) -> None:
    """Train, and print the answers before and after."""
    asked = briefs()[:num_briefs]
    before = [await answer(model, brief) for brief in asked]
    service = FineTuningService(folder)
    dataset = await service.prepare_dataset(chats(), model, 256)
    print(f"{dataset.num_rows} rows for {dataset.task}: {dataset.reasons['data.row_format']}")
    result = await service.finetune_model_multi_gpu(model, dataset, {"train.epochs": epochs, "train.lr": 1e-4})
    told = f"best loss {result.best_loss:.3f} after {result.training_time_s:.0f} s; the model is in {result.model_path}"
    print(told)
    report = ["# Advertisements, before and after", f"{dataset.num_rows} rows, {epochs} epochs; {told}."]
    for brief, old in zip(asked, before, strict=True):
        new = await answer(str(result.model_path), brief)
        print(f"\n{brief['brief']}\n  before: {old}\n  after:  {new}")
        report += [f"## {brief['brief']}", _quoted(f"**before**: {old}"), _quoted(f"**after**: {new}")]
    write_atomic(folder / "report.md", ("\n\n".join(report) + "\n").encode())


def _quoted(text: str) -> str:
    """As Markdown's quotation, whatever a model has written."""
    return "\n".join(f"> {line}" for line in text.splitlines())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct", help="a name on the hub, or a folder")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--folder", type=Path, default=Path("runs/ads"), help="where trainings are kept")
    parser.add_argument("--briefs", type=int, default=3, help="how many are answered before and after")
    chosen = parser.parse_args()
    asyncio.run(main(chosen.model, chosen.epochs, chosen.folder, chosen.briefs))
