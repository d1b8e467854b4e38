"""A chat model labels texts by four roads, side by side: the answers are the same, the speed is not.

    python examples/hate_speech/four_roads.py                                  # SmolLM2-135M-Instruct from the hub
    python examples/hate_speech/four_roads.py --model FOLDER --wordnet FOLDER  # data.noun and data.verb of WordNet
    python examples/hate_speech/four_roads.py --model openai/gpt-oss-20b \
        --data unified_val.json --text text --label label --strategy combined_optimized

The roads are those that one would otherwise walk by hand: the model split over the GPUs, one worker a GPU, shards made
by hand and merged, and several machines under torchrun (here two agents on this one). Each is a `drumline infer` from
a shell, so that what is printed can be typed.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from drumline.config.recipes import recipes_folder
from drumline.hardware.inventory import detect

HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
ROADS = {1: "model split", 2: "one worker a GPU", 3: "shards by hand, merged", 4: "two agents of torchrun"}


@dataclass(frozen=True)
class Work:
    """What all roads do alike."""

    rows: Path
    model: str
    settings: tuple[str, ...]
    """Of every `drumline infer`."""
    gpus: tuple[str, ...]
    """UUIDs; empty on a CPU."""
    workers: int
    folder: Path
    write: int | None = None
    """Tokens that are written for each row; None: a label is chosen."""

    def infer(self, out: Path, *settings: str, rows: Path | None = None) -> list[str]:
        """The command that answers the rows into `out`."""
        words = ["--model", self.model, "--data", str(rows or self.rows), "--out", str(out)]
        words += ["--task", "choose" if self.write is None else "generate"]
        length = () if self.write is None else (f"task.max_new_tokens={self.write}",)
        for setting in (*self.settings, *length, *settings):
            words += ["--set", setting]
        return ["infer", *words]


@dataclass(frozen=True)
class Figures:
    """What came of a road."""

    road: int
    rows: int
    seconds: float
    """From the first command to the last file, loading the model included."""
    busy_s: float
    """Of the worker that computed longest."""
    answers: tuple[str | None, ...]
    right: float


def main(chosen: argparse.Namespace) -> None:
    """Walk the roads, and print a table."""
    folder = chosen.folder / time.strftime("%Y%m%d-%H%M%S")
    folder.mkdir(parents=True)
    strategy, rows = read_rows(chosen)
    with (folder / "rows.jsonl").open("w", encoding="utf-8") as stream:
        stream.writelines(json.dumps(row) + "\n" for row in rows)
    gpus = tuple(gpu.uuid for gpu in detect().gpus)
    settings = ("rows.id=id", "rows.label=label", f"task.prompt.strategy={strategy}", *chosen.set)
    work = Work(folder / "rows.jsonl", chosen.model, settings, gpus, len(gpus) or chosen.workers, folder, chosen.write)
    try:
        found = [walk(road, work, rows) for road in chosen.roads]
    finally:
        end_children()
    show(found)
    if chosen.json is not None:
        with chosen.json.open("w", encoding="utf-8") as stream:
            stream.writelines(json.dumps({**asdict(road), "answers": len(road.answers)}) + "\n" for road in found)
    different = [road.road for road in found if road.answers != found[0].answers]
    print(f"answers: {'the same by all roads' if not different else f'roads {different} differ from the first'}")
    if different and not gpus and "model.random_weights=true" not in chosen.set:
        raise SystemExit(1)  # on one kind of machine, in float32, they must not; a split model draws its own weights


def read_rows(chosen: argparse.Namespace) -> tuple[str, list[dict[str, Any]]]:
    """The strategy, and rows with id, text and label."""
    if chosen.data is not None:
        given = rows_of_file(chosen.data, chosen.text, chosen.label)
        strategy = chosen.strategy or "combined_optimized"
    elif chosen.wordnet is not None:
        given, strategy = definitions(chosen.wordnet), chosen.strategy or str(HERE / "word_class.yaml")
    else:
        packed = recipes_folder() / "wordnet/eval.csv"
        given = rows_of_file(packed, "definition", "topic")
        strategy = chosen.strategy or str(HERE / "kind_of_thing.yaml")
    rows = [{"id": f"row-{number}", "text": text, "label": label} for number, (text, label) in enumerate(given)]
    return strategy, rows[: chosen.rows]


def rows_of_file(file: Path, text: str, label: str) -> list[tuple[str, str]]:
    """Texts and labels of a .json (a list), .jsonl or .csv file."""
    # Excel puts a byte order mark before its CSV, which would be part of the first column's name.
    with file.open(encoding="utf-8-sig", newline="") as stream:
        if file.suffix == ".csv":
            rows: list[Mapping[str, Any]] = list(csv.DictReader(stream))
        elif file.suffix == ".json":
            rows = json.load(stream)
        else:
            rows = [json.loads(line) for line in stream if line.strip()]
    for number, row in enumerate(rows):
        for option, name in (("--text", text), ("--label", label)):
            if name not in row:
                raise SystemExit(
                    f"{file}: row {number} has no column {name!r}; name one with {option}: {', '.join(row)}"
                )
    return [(str(row[text]), str(row[label])) for row in rows]


def definitions(folder: Path) -> list[tuple[str, str]]:
    """Definitions of nouns and verbs in turn, spread over the whole dictionary."""
    columns = []
    for kind in ("noun", "verb"):
        file = next(folder.rglob(f"data.{kind}"))
        lines = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("  ")]
        columns.append([(line.rpartition("| ")[2].partition('; "')[0].strip(), kind) for line in lines[::53]])
    return [row for pair in zip(*columns, strict=False) for row in pair]


def walk(road: int, work: Work, rows: Sequence[Mapping[str, Any]]) -> Figures:
    """Answer all rows by one road."""
    folder = work.folder / f"road-{road}"
    folder.mkdir()
    out = folder / "answers.jsonl"
    print(f"\nroad {road}: {ROADS[road]}", flush=True)
    begin = time.perf_counter()
    {1: split, 2: data_parallel, 3: shards, 4: torchrun}[road](work, out)
    seconds = time.perf_counter() - begin
    answers = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [answer["id"] for answer in answers] == [row["id"] for row in rows], "each row once, in order"
    column = "prediction" if work.write is None else "answer"
    right = [answer[column] == answer["label"] for answer in answers if answer["error"] is None]
    found = tuple(answer[column] for answer in answers)
    return Figures(road, len(rows), seconds, busy_seconds(folder), found, sum(right) / max(1, len(right)))


def split(work: Work, out: Path) -> None:
    """Road 1: one replica of the model over all GPUs, as `device_map="balanced"` has it; on a CPU it lies on that."""
    start(["drumline", *work.infer(out, f"split.gpus={len(work.gpus) or 1}")]).check()


def data_parallel(work: Work, out: Path) -> None:
    """Road 2: a whole model on each GPU, which take batches from one ledger."""
    workers = () if work.gpus else (f"hardware.num_processes={work.workers}",)
    start(["drumline", *work.infer(out, *workers)]).check()


def shards(work: Work, out: Path) -> None:
    """Road 3: as many files as GPUs, a run each at the same time, and `drumline merge`."""
    lines = work.rows.read_text(encoding="utf-8").splitlines(keepends=True)
    size = -(-len(lines) // work.workers)
    runs, parts = [], []
    for number in range(work.workers):
        shard = out.with_name(f"rows-{number}.jsonl")
        shard.write_text("".join(lines[number * size : (number + 1) * size]), encoding="utf-8")
        parts.append(out.with_name(f"answers-{number}.jsonl"))
        own = {"CUDA_VISIBLE_DEVICES": work.gpus[number]} if work.gpus else {}
        runs.append(start(["drumline", *work.infer(parts[-1], rows=shard)], own))
    for run in runs:
        run.check()
    start(["drumline", "merge", *map(str, parts), "--out", str(out), "--data", str(work.rows), "--id", "id"]).check()


def torchrun(work: Work, out: Path) -> None:
    """Road 4: the command that each of two machines is given; here they are two agents with half of the GPUs each."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    runs = []
    num_nodes = 1 if len(work.gpus) == 1 else 2
    for node in range(num_nodes):
        mine = work.gpus[node::2]
        own = {"CUDA_VISIBLE_DEVICES": ",".join(mine)} if work.gpus else {}
        agent = [
            "torchrun",
            "--nnodes",
            str(num_nodes),
            "--node-rank",
            str(node),
            "--nproc-per-node",
            str(len(mine) or 1),
        ]
        agent += ["--master-addr", "127.0.0.1", "--master-port", str(port)]
        runs.append(start([*agent, "--no-python", "drumline", *work.infer(out)], own))
    for run in runs:
        run.check()


@dataclass(frozen=True)
class Command:
    """A child that was started, and what was typed for it."""

    typed: str
    child: subprocess.Popen[str]
    log: Path

    def check(self) -> None:
        """Wait for its end; another exit status than 0 ends this program, with what the child said last."""
        if self.child.wait():
            raise SystemExit(f"{self.typed}\nended with {self.child.returncode}:\n{self.log.read_text()[-4000:]}")


LOGS: list[Path] = []
CHILDREN: list[subprocess.Popen[str]] = []
GRACE_S = 30.0
"""A run that is asked to stop first finishes the batch at hand."""


def end_children() -> None:
    """End what still runs, as after a failure of one of several: it would keep its GPUs."""
    left = [child for child in CHILDREN if child.poll() is None]
    for child in left:
        child.terminate()
    for child in left:
        try:
            child.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def start(words: Sequence[str], variables: Mapping[str, str] | None = None) -> Command:
    """Start a command of this environment's bin folder, its output in a file, and print it as one would type it."""
    typed = " ".join([*(f"{key}={value}" for key, value in (variables or {}).items()), shlex.join(words)])
    print(f"  $ {typed}", flush=True)
    LOGS.append(Path(words[words.index("--out") + 1]).with_name(f"command-{len(LOGS)}.log"))
    paths = os.pathsep.join([str(BIN), os.environ.get("PATH", "")])
    with LOGS[-1].open("w", encoding="utf-8") as stream:
        child = subprocess.Popen(
            [str(BIN / words[0]), *words[1:]],
            env={**os.environ, "PATH": paths, "OMP_NUM_THREADS": "1", **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            text=True,
        )
    CHILDREN.append(child)
    return Command(typed, child, LOGS[-1])


def busy_seconds(folder: Path) -> float:
    """How long the worker computed that computed longest, by the lines that workers leave."""
    return max((line["busy_s"] for line in last_lines(folder)), default=0.0)


def last_lines(folder: Path) -> Iterator[Mapping[str, Any]]:
    """The last line of each worker, of all runs under a folder."""
    for file in folder.rglob("workers/*.jsonl"):
        lines = file.read_text(encoding="utf-8").splitlines()
        if lines:
            yield json.loads(lines[-1])


def show(found: Sequence[Figures]) -> None:
    """The table."""
    print(f"\n{'road':<28}{'rows':>6}{'seconds':>10}{'rows/s':>9}{'computing':>11}{'rows/s':>9}{'right':>8}")
    for one in found:
        at_work = f"{one.rows / one.busy_s:9.2f}" if one.busy_s else f"{'-':>9}"
        print(
            f"{one.road} {ROADS[one.road]:<26}{one.rows:6d}{one.seconds:10.1f}{one.rows / one.seconds:9.2f}"
            f"{one.busy_s:11.1f}{at_work}{one.right:8.2f}"
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct", help="a name on the hub, or a folder")
    parser.add_argument("--data", type=Path, help="rows of your own: .json, .jsonl or .csv")
    parser.add_argument("--text", default="text", help="their column with the text")
    parser.add_argument("--label", default="label", help="their column with the right answer")
    parser.add_argument("--wordnet", type=Path, help="folder with data.noun and data.verb")
    parser.add_argument("--strategy", help="name of a packed prompt, or a YAML file")
    parser.add_argument("--rows", type=int, default=200, help="how many are labelled")
    parser.add_argument("--roads", type=int, nargs="+", default=list(ROADS), choices=list(ROADS))
    parser.add_argument("--workers", type=int, default=2, help="processes, where there is no GPU")
    parser.add_argument("--folder", type=Path, default=Path("runs/hate_speech"), help="where all files go")
    parser.add_argument("--write", type=int, metavar="TOKENS", help="write so many instead of choosing a label")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the table as JSON lines")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of every drumline infer")
    main(parser.parse_args())
