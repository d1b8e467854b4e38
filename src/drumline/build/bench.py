"""What each rank of a benchmark executes: `python -m drumline.build.bench DIRECTORY`.

The directory holds config.yaml and request.json, which the command wrote; rank 0 writes result.json into it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drumline.bench.comm import bench_comm
from drumline.bench.data import bench_data
from drumline.bench.soundness import bench_soundness
from drumline.bench.train import Lengths, bench_train
from drumline.build.parts import build_parts
from drumline.config.load import load_config
from drumline.config.schema import RunConfig
from drumline.launcher.world import detect_world
from drumline.rundir import RunDir, read_json, write_json
from drumline.track.logs import log_to_file


def main(directory: Path) -> None:
    """Measure what the request asks for; raises what that ends with."""
    run = RunDir(directory)
    request = read_json(directory / "request.json")
    rank = detect_world().rank
    # What a user's model prints must not stand between the command's own lines, which may be a JSON document.
    os.dup2(2, 1)
    undo = log_to_file(run.log_of(rank), rank)
    try:
        result = measure(load_config(run.config), run, request)
        if rank == 0:
            write_json(directory / "result.json", {"kind": request["kind"], **result})
    finally:
        undo()


def measure(config: RunConfig, run: RunDir, request: Mapping[str, Any]) -> dict[str, Any]:
    """The result, on all ranks alike."""
    if request["kind"] == "comm":
        return bench_comm(config, request["sizes"], request["samples"])
    built = build_parts(config)
    if request["kind"] == "data":
        return bench_data(config, built.train, built.model, built.options, request)
    built.options["run"] = run
    if request["kind"] == "check":
        return bench_soundness(built.model, config, built.train, built.options, request)
    lengths = Lengths(request["warm_up"], request["steps"])
    return bench_train(built.model, config, built.train, built.options, lengths)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
