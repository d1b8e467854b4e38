"""`drumline train` and `config validate --deep` on rows of a user's own: what is shown, left out and refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from drumline.rundir import RunDir, read_lines
from tests.cli.real_command import Command, Ended, end_of

RECIPE = """
name: rows
model: {kind: ngrams, width: 8, num_buckets: 500}
data: {kind: records, train: [train.csv], eval: [eval.csv], columns: {text: body, label: topic}}
task: {kind: classification}
train: {global_batch: 16, max_steps: 16, lr: 0.05}
hardware: {device: cpu, num_processes: 2}
"""
IMAGES = """
name: images
model: {kind: cnn, width: 2, num_stages: 1}
data: {kind: image_folders, train: [images], size: 8, channels: 1}
task: {kind: classification}
train: {global_batch: 2, max_steps: 2}
"""


def write_table(path: Path, num_rows: int, bad: int = 0) -> None:
    """A CSV file of two topics that one word tells apart; a bad row lacks its topic."""
    lines = [
        f'"number {row}, about {"wind" if row % 2 else "rain"}",{"air" if row % 2 else "water"}'
        for row in range(num_rows)
    ]
    lines += [f"lost {row}," for row in range(bad)]
    path.write_text("\n".join(["body,topic", *lines]) + "\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe on a CSV file with two bad rows."""
    folder = tmp_path_factory.mktemp("rows")
    (folder / "rows.yaml").write_text(RECIPE)
    write_table(folder / "train.csv", 100, bad=2)
    write_table(folder / "eval.csv", 20)
    return folder


@pytest.fixture(scope="module")
def trained(folder: Path) -> tuple[Ended, RunDir]:
    """That recipe, trained to its end."""
    return Command(folder, "train", "rows.yaml").wait(), RunDir(folder / "runs/rows")


def test_it_shows_columns_and_classes_before_the_run(trained: tuple[Ended, RunDir]) -> None:
    ended, run = trained
    assert ended.status == 0, ended.err
    assert end_of(run)["reason"] == "done"
    lines = ended.out.splitlines()
    [train] = [number for number, line in enumerate(lines) if line.startswith("data.train: ")]
    assert lines[train].startswith("data.train: 100 rows, 2 left out (")
    assert lines[train].endswith("; text: text (100 different); label: text (2 different)")
    assert lines[train + 1].startswith("data.eval: 20 rows; ")
    assert lines[train + 2] == "data: 2 classes (air, water)"
    assert lines[train + 3].split() == ["data", "report", "train", "eval"]
    [plan] = [number for number, line in enumerate(lines) if line.startswith("2 processes on cpu, ddp; ")]
    assert [line.split()[0] for line in lines[train + 4 : plan]] == [
        *("rows", "left", "duplicates", "tokens", "shortest,", "95%,", "scripts", "labels")
    ]


def test_bad_rows_are_told_of_once_with_the_file_that_lists_them(trained: tuple[Ended, RunDir], folder: Path) -> None:
    ended, run = trained
    [warning] = [line for line in ended.err.splitlines() if "cannot be read" in line]
    assert "data.train: 2 of 102 rows" in warning and "train.csv:102" in warning
    [event] = [event for event in read_lines(run.events) if event["event"] == "data"]
    assert (event["classes"], event["train"]["bad_rows"]) == (["air", "water"], 2)
    [listed] = event["train"]["bad_rows_files"]
    assert listed in warning
    assert "lost 1" in (folder / listed).read_text()


def test_it_has_learned(trained: tuple[Ended, RunDir]) -> None:
    _, run = trained
    last = list(read_lines(run.metrics))[-1]
    assert (last["kind"], last["count"]) == ("eval", 20)
    assert last["accuracy"] == 1.0


def test_wrong_columns_end_with_2_and_the_columns_that_there_are(folder: Path) -> None:
    ended = Command(folder, "train", "rows.yaml", "--set", "name=wrong", "--set", "data.columns={text: body}").wait()
    assert ended.status == 2
    assert "'label'" in ended.err and "'body', 'topic'" in ended.err and "--set data.columns.label=" in ended.err


def test_a_combination_that_cannot_be_ends_with_2(folder: Path) -> None:
    ended = Command(folder, "config", "validate", "rows.yaml", "--set", "model={kind: cnn}").wait()
    assert (ended.status, ended.out) == (2, "")
    assert "cnn reads images" in ended.err


def test_deep_validation_finds_bad_columns_labels_and_images(folder: Path) -> None:
    def deep(*arguments: str) -> Ended:
        return Command(folder, "config", "validate", "--deep", *arguments).wait()

    assert deep("rows.yaml").out.endswith("rows.yaml is valid\n")
    wrong = deep("rows.yaml", "--set", "data.columns={text: bodi, label: topic}")
    assert (wrong.status, wrong.out) == (2, "") and "'bodi'" in wrong.err and "'body', 'topic'" in wrong.err
    (folder / "other.csv").write_text("body,topic\nx,fire\n")
    other = deep("rows.yaml", "--set", "data.eval=[other.csv]")
    assert other.status == 2 and "data.eval, row 0: the label 'fire' is none of the 2 classes" in other.err
    (folder / "images.yaml").write_text(IMAGES)
    for name in ("cat", "dog"):
        (folder / "images" / name).mkdir(parents=True)
        Image.new("L", (64, 64), 100).save(folder / "images" / name / "a.png")
    assert deep("images.yaml").status == 0
    broken = folder / "images/cat/a.png"
    broken.write_bytes(broken.read_bytes()[:45])
    short = deep("images.yaml")
    assert short.status == 2 and "images/cat/a.png cannot be read" in short.err


def test_an_error_in_a_users_file_keeps_its_line_and_ends_with_what_was_wanted(folder: Path) -> None:
    (folder / "model.py").write_text("def make_model(config):\n    return config.nothing\n")
    changes = ["--set", "name=own", "--set", "model={kind: python, file: model.py}"]
    ended = Command(folder, "train", "rows.yaml", *changes).wait()
    assert ended.status == 1
    assert 'model.py", line 2, in make_model' in ended.err
    assert "it should be make_model(config) or make_model(config, data), returning an nn.Module" in ended.err
