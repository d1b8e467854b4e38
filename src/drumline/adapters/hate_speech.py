"""A baseline that labels a data set with a chat model, as a program of its own had it; over drumline's prediction.

    python -m drumline.adapters.hate_speech --data_source unified --max_samples 100 --batch_size 4

Started once it uses one GPU, or several with --device_map balanced; started several times by accelerate launch or
torchrun, on one machine or many, each process has a GPU and they share the rows. For all GPUs without a launcher there
is `drumline infer`.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from drumline.errors import DataError

if TYPE_CHECKING:
    from torch import nn

MODEL = "openai/gpt-oss-20b"
STRATEGY = "combined_optimized"
SOURCES = Path("data/processed")
OUTPUTS = Path("finetuning/outputs/baseline")
MEETING_S = 300.0
"""How long the processes of a launch wait for each other at the start."""


class LocalModelConnector:
    """A chat model in this process, loaded at the first need.

    device_map: auto, one GPU, or the CPU where there is none; balanced: its layers over all visible GPUs. The newest
    that has loaded its model is the one that run_baseline uses.
    """

    loaded: ClassVar[LocalModelConnector | None] = None

    def __init__(self, model_name: str = MODEL, batch_size: int = 4, device_map: str = "auto") -> None:
        self.model_name = model_name
        self.batch_size = batch_size
        self.device_map = device_map
        self.model: nn.Module | None = None
        """None before it is loaded; may be replaced by the same model in a wrapper, as accelerate's."""
        self.tokenizer: Any = None

    def load_model_once(self) -> nn.Module:
        """Load it, unless it is. Raises ConfigError and DataError for a model that is not there."""
        if self.model is None:
            from drumline.build.predictor import own_device
            from drumline.config.infer_file import load_inference_config
            from drumline.infer.loading import load_model_for

            split = {"split": {"gpus": "auto"}} if self.device_map == "balanced" else {}
            values = {"model": {"path": self.model_name}, "rows": {"files": ["-"]}, "output": {"file": "rows.jsonl"}}
            config = load_inference_config(None, {**values, **split, "task": {"kind": "choose", "labels": ["-", "+"]}})
            found = load_model_for(config, own_device(config, alone=False))
            self.model, self.tokenizer = found.model, found.tokenizer
        LocalModelConnector.loaded = self
        return self.model


def run_baseline(args: argparse.Namespace) -> Path:
    """Label the rows of a data source into run_<time>/strategy_<strategy>.csv of the output folder; returns that file.

    args: data_source, max_samples, batch_size, strategy; where they are there, also output_dir, model_name and
    device_map. All processes of a launch call it and share the rows, each of which is labelled once. Raises DataError
    for a source that is not there.
    """
    from drumline.build.prediction import predict

    rows = read_source(args.data_source)[: args.max_samples]
    connector = LocalModelConnector.loaded
    name = getattr(args, "model_name", None) or (connector.model_name if connector else MODEL)
    if connector is None or connector.model_name != name:
        connector = LocalModelConnector(name, args.batch_size, getattr(args, "device_map", "auto"))
    model = connector.load_model_once()
    out = run_folder(Path(getattr(args, "output_dir", None) or OUTPUTS)) / f"strategy_{args.strategy}.csv"
    predict(
        getattr(model, "module", model),
        rows,
        {"kind": "choose", "prompt": {"strategy": args.strategy}},
        tokenizer=connector.tokenizer,
        out=out,
        columns={"label": "label"} if "label" in rows[0] else {},
        batching={"rows": args.batch_size},
    )
    return out


def read_source(name: str) -> list[dict[str, Any]]:
    """Rows of data/processed/<name>/<name>_val.json, or of data/processed/<name>.json; each has a `text`.

    Raises DataError where neither is there, and where there are no rows.
    """
    places = [SOURCES / name / f"{name}_val.json", SOURCES / f"{name}.json"]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        raise DataError(f"there is no data source {name!r}", f"make one of {', '.join(map(str, places))}")
    rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    if not rows or "text" not in rows[0]:
        raise DataError(f"{file} has no rows with a column text", "write a list of objects, each with a text")
    return rows


def run_folder(outputs: Path) -> Path:
    """A new folder of this run, the same in all processes of a launch."""
    import torch

    from drumline.parallel.groups import open_groups, started_world

    groups = open_groups(started_world(), torch.device("cpu"), "gloo", MEETING_S)
    name: str = groups.side.exchange("run", time.strftime("run_%Y%m%d_%H%M%S"))[0]
    groups.close()
    folder = outputs / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def main(arguments: list[str] | None = None) -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_source", default="unified", help="name below data/processed")
    parser.add_argument("--max_samples", type=int, help="only the first so many rows")
    parser.add_argument("--batch_size", type=int, default=4, help="most rows of a batch")
    parser.add_argument("--strategy", default=STRATEGY, help="name of a packed prompt, or a YAML file")
    parser.add_argument("--output_dir", type=Path, default=OUTPUTS, help="where the folder of the run is made")
    parser.add_argument("--model_name", default=MODEL, help="a name on the hub, or a folder")
    parser.add_argument("--device_map", choices=("auto", "balanced"), default="auto", help="one GPU, or all of them")
    print(run_baseline(parser.parse_args(arguments)))  # noqa: T201 - a program of its own


if __name__ == "__main__":
    main()
