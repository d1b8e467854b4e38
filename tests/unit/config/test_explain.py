"""What users read when a recipe is wrong: place, key, mistake, nearest name, fix."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from drumline.config.fields import all_keys, field_leaves, kind_of, sections_of, wanted
from drumline.config.load import load_config
from drumline.config.problem import Key, dotted
from drumline.config.schema import RunConfig
from drumline.errors import ConfigError


def message(tmp_path: Path, text: str, *overrides: str) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_config(path, overrides)
    assert caught.value.exit_status == 2
    return str(caught.value).replace(str(path), "recipe.yaml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "gloabl_batch: 3",
            "recipe.yaml line 1: gloabl_batch: there is no such key\n  fix: did you mean train.global_batch?",
        ),
        ("sede: 3", "recipe.yaml line 1: sede: there is no such key\n  fix: did you mean seed?"),
        (
            "# note\ntrain:\n  lr: 1\n  gloabl_batch: 3",
            "recipe.yaml line 4: train.gloabl_batch: there is no such key\n  fix: did you mean train.global_batch?",
        ),
        (
            "train:\n  optimizer:\n    momentun: 3",
            "recipe.yaml line 3: train.optimizer.momentun: there is no such key\n"
            "  fix: did you mean train.optimizer.momentum?",
        ),
        (
            "global_batch: 3",
            "recipe.yaml line 1: global_batch: there is no such key\n  fix: did you mean train.global_batch?",
        ),
        (
            "evaluate: {early_stopping: {patienec: 3}}",
            "recipe.yaml line 1: evaluate.early_stopping.patienec: there is no such key\n"
            "  fix: did you mean evaluate.early_stopping.patience?",
        ),
        ("train: {learning_rate: 1}", "train.learning_rate: there is no such key\n  fix: did you mean train.lr?"),
        ("batch_size: 1", "batch_size: there is no such key\n  fix: did you mean train.global_batch?"),
        ("train: {num_workers: 1}", "fix: did you mean loader.num_workers?"),
        ("checkpoint: {zzz: 1}", "checkpoint.zzz: there is no such key\n  fix: checkpoint has every, every_s, at_end"),
        ("zzz: 1", "zzz: there is no such key\n  fix: there are name, run_dir, seed, model"),
    ],
)
def test_a_mistyped_key(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in message(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "seed: 0\ntrain:\n  global_batch: many",
            "recipe.yaml line 3: train.global_batch: wants a whole number above 0 or null, not 'many'\n"
            "  fix: correct the value",
        ),
        ("train: {epochs: 1.5}", "train.epochs: wants a whole number above 0 or null, not 1.5"),
        (
            "train: {lr: 0}",
            "wants a number above 0, not 0\n  fix: correct the value, or leave the key out: it is 0.0003 then",
        ),
        ("train: {lr: fast}", "train.lr: wants a number above 0, not 'fast'"),
        (
            "train: {shuffle: maybe}",
            "wants true or false, not 'maybe'\n  fix: correct the value, or leave the key out: it is true then",
        ),
        (
            "train: {compile: true}",
            "train.compile: wants none, whole, blocks or auto, not true\n"
            "  fix: correct the value, or leave the key out: it is none then",
        ),
        ("train: {micro_batch: atuo}", "wants a whole number above 0 or auto, not 'atuo'\n  fix: did you mean auto?"),
        ("train: {precision: fp8}", "wants auto, fp32, tf32, bf16 or fp16, not 'fp8'\n  fix: correct the value"),
        ("hardware: {memory_fraction: 2}", "wants a number above 0 and not above 1, not 2"),
        ("train: {optimizer: {betas: [0.9, x]}}", "train.optimizer.betas.1: wants a number, not 'x'"),
        ("train: {optimizer: {betas: [0.9]}}", "train.optimizer.betas.1: is missing: a number"),
        (
            "train: {optimizer: {betas: 0.9}}",
            "wants a list of 2, each a number, not 0.9\n  fix: write it in brackets: [0.9]",
        ),
        (
            "hardware: {gpus: 0}",
            "hardware.gpus: wants a list (each entry text) or null, not 0\n  fix: write it in brackets: [0]",
        ),
        ("hardware: {gpus: [null]}", "hardware.gpus.0: wants text, not nothing"),
        ("name: a/b", "name: wants text of the form"),
        ("name: [a]", "not a list of 1"),
        (f"seed: {'x' * 100}", f"not '{'x' * 60}...'"),
        ("seed: -1", "seed: wants a whole number not below 0, not -1"),
        ("seed:\n  a: 1", "recipe.yaml line 1: seed: wants a whole number not below 0, not a section"),
        (
            "train:\nseed: 1",
            "line 1: train: wants a section, not nothing\n  fix: write its keys below it, or leave train out",
        ),
        ("evaluate: {early_stopping: 3}", "evaluate.early_stopping: wants a section or null, not 3"),
        (
            "data: {kind: text}",
            "line 1: data.train: is missing: a list (each entry text or a section) with a length of at least 1\n"
            "  fix: add data.train",
        ),
        (
            "data: {kind: text, train: []}",
            "data.train: wants a list (each entry text or a section) with a length of at least 1, not a list of 0",
        ),
        ("model: {kind: huggingface}", "model.path: is missing: text\n  fix: add model.path"),
    ],
)
def test_a_wrong_value(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in message(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[3, null]", "data.train.1: wants text or a section, not nothing\n  fix: correct the value"),
        ("[[a]]", "data.train.0: wants text or a section, not a list of 1"),
        ("[a, {}]", "recipe.yaml line 3: data.train.1.paths: is missing: a list (each entry text)"),
        ("[{paths: [], weight: 2}]", "data.train.0.paths: wants a list (each entry text) with a length of at least 1"),
        ("[{paths: [a], weight: 0}]", "line 3: data.train.0.weight: wants a number above 0, not 0\n  fix: correct the"),
        ("[{paths: a}]", "data.train.0.paths: wants a list (each entry text) with a length of at least 1, not 'a'"),
        (
            "[b, {paths: [a], wieght: 2}]",
            "data.train.1.wieght: there is no such key\n  fix: did you mean data.train.1.weight?",
        ),
    ],
)
def test_a_wrong_entry_of_a_list_of_sources(tmp_path: Path, text: str, expected: str) -> None:
    error = message(tmp_path, f"data:\n  kind: records\n  train: {text}\n")
    assert expected in error
    assert "correct all" not in error, "one mistake is one line"


def test_two_mistakes_of_one_entry_are_both_reported(tmp_path: Path) -> None:
    lines = message(tmp_path, "data:\n  kind: text\n  train:\n  - paths: []\n    weight: -1\n").splitlines()
    assert lines[0].startswith("recipe.yaml line 4: data.train.0.paths: wants a list")
    assert lines[1].startswith("recipe.yaml line 5: data.train.0.weight: wants a number above 0, not -1")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "train: {optimizer: {rules: [{pattern: '*', freez: true}]}}",
            "train.optimizer.rules.0.freez: there is no such key\n  fix: did you mean train.optimizer.rules.0.freeze?",
        ),
        (
            "train: {optimizer: {rules: [{pattern: '*', lr_factor: -1}]}}",
            "train.optimizer.rules.0.lr_factor: wants a number above 0 or null, not -1",
        ),
        ("train: {optimizer: {rules: [head]}}", "train.optimizer.rules.0: wants a section, not 'head'"),
        (
            "train: {schedule: {options: {step: null}}}",
            "train.schedule.options.step: wants true or false, a whole number, a number, text, ",
        ),
        ("train: {schedule: {options: 3}}", "train.schedule.options: wants names with values (each true or false, "),
        (
            "data: {kind: records, train: [a], columns: {label: [a]}}",
            "data.columns.label: wants text, not a list of 1\n  fix: correct the value",
        ),
        ("data: {kind: records, train: [a], columns: b}", "data.columns: wants names with values (each text), not 'b'"),
    ],
)
def test_a_wrong_value_inside_lists_and_names(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in message(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "seed: 1\nparallel:\n  timeout_s: 3\n  kind: dpp",
            "recipe.yaml line 4: parallel.kind: 'dpp' is no kind; there are auto, single, data_parallel, ddp and fsdp\n"
            "  fix: did you mean ddp?",
        ),
        (
            "parallel: {kind: 3}",
            "parallel.kind: '3' is no kind; there are auto, single, data_parallel, ddp and fsdp\n"
            "  fix: choose one of auto, single, data_parallel, ddp or fsdp",
        ),
        ("parallel: ddp", "parallel: wants a section with a kind, not 'ddp'\n  fix: did you mean parallel.kind=ddp?"),
        (
            "data: {train: [x]}",
            "line 1: data.kind: is missing: text, records, text_folders, image_folders, datasets or random_tokens\n"
            "  fix: add data.kind",
        ),
        (
            "parallel: {bucket_mb: 3}",
            "parallel.bucket_mb: parallel.kind is auto, which has no such key; data_parallel and ddp have\n"
            "  fix: remove the key, or set parallel.kind to data_parallel or ddp",
        ),
        (
            "parallel: {kind: ddp, bukcet_mb: 3}",
            "parallel.bukcet_mb: there is no such key\n  fix: did you mean parallel.bucket_mb?",
        ),
    ],
)
def test_a_wrong_kind(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in message(tmp_path, text)


def test_a_kind_changed_by_an_override_says_which_line_no_longer_fits(tmp_path: Path) -> None:
    text = "parallel:\n  kind: ddp\n  bucket_mb: 9\n"
    assert message(tmp_path, text, "parallel.kind=single") == (
        "recipe.yaml line 3: parallel.bucket_mb: parallel.kind is single, which has no such key; "
        "data_parallel and ddp have\n"
        "  fix: remove line 3, or replace the whole section: --set 'parallel={kind: single}'"
    )


def test_an_error_of_an_override_names_the_override(tmp_path: Path) -> None:
    assert message(tmp_path, "seed: 1", "trian.lr=3") == (
        "--set trian.lr=3: trian: there is no such key\n  fix: did you mean train?"
    )
    assert message(tmp_path, "train: {lr: 1}", "train.lr=0").startswith(
        "--set train.lr=0: train.lr: wants a number above"
    )
    assert message(tmp_path, "train: {lr: 1}", "train.lr.x=0").startswith(
        "--set train.lr.x=0: train.lr: wants a number"
    )
    assert message(tmp_path, "seed: 1", "data.kind=text").startswith("--set data.kind=text: data.train: is missing")


@pytest.mark.parametrize("override", ["train.lr", "=3", "train..lr=3", ".lr=3", "train.=3", ""])
def test_an_override_that_is_no_pair(tmp_path: Path, override: str) -> None:
    assert message(tmp_path, "seed: 1", override) == (
        f"--set {override}: this is not KEY=VALUE\n  fix: write it as in --set train.lr=0.001"
    )


def test_an_override_that_is_no_yaml(tmp_path: Path) -> None:
    text = message(tmp_path, "seed: 1", "data.train=[*.txt]")
    assert text.startswith("--set data.train=[*.txt]: this is not YAML")
    assert "quotes" in text


def test_all_mistakes_are_reported_a_line_each_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = "parallel: {kind: x}\ntrain:\n  lr: 0\n  lr: 1\n  epochz: 2\nseed: a\n"
    lines = message(tmp_path, text, "hardware.memory_fraction=2").splitlines()
    starts = [
        "recipe.yaml line 1: parallel.kind: ",
        "recipe.yaml line 4: train.lr: the key stands here a second time (first in line 3)",
        "recipe.yaml line 5: train.epochz: ",
        "recipe.yaml line 6: seed: ",
        "--set hardware.memory_fraction=2: hardware.memory_fraction: ",
        "  fix: correct all 5",
    ]
    assert len(lines) == len(starts)
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=True)), lines
    assert "did you mean train.epochs?" in lines[2], "each line has its own fix"


def required(section: type[BaseModel], name: str) -> Iterator[str]:
    for key, field in section.model_fields.items():
        if field.is_required():
            yield f"{name}.{key}={'[a]' if wanted(field_leaves(field)).startswith('a list') else 'a'}"


def required_within(section: type[BaseModel], key: Key) -> Iterator[str]:
    """What the sections below this one need, down to where the key is."""
    for depth, part in enumerate(key[1:-1], start=2):
        below = sections_of(field_leaves(section.model_fields[str(part)]))
        if len(below) != 1:
            return
        (section,) = below
        yield from required(section, dotted(key[:depth]))


def settings() -> Iterator[tuple[Key, tuple[str, ...]]]:
    """Every key of the schema, with the overrides that make its section one that has the key."""
    for name, field in RunConfig.model_fields.items():
        sections = sections_of(field_leaves(field))
        if not sections:
            yield (name,), ()
        for section in sections:
            kind = kind_of(section) if len(sections) > 1 else ""
            base = (f"{name}.kind={kind}", *required(section, name)) if kind else ()
            for key in all_keys(section, (name,)):
                yield key, (*base, *required_within(section, key))


@pytest.mark.parametrize("value", ["", "x y", "-1", "0", "1e400", "true", "[]", "[[1]]", "{a: 1}", "[null, 2, {}]"])
def test_any_value_for_any_key_is_taken_or_refused_in_plain_words(value: str) -> None:
    refused = 0
    for key, base in settings():
        try:
            load_config(None, [*base, f"{dotted(key)}={value}"])
        except ConfigError as error:
            refused += 1
            text = str(error)
            assert f"--set {dotted(key)}={value}: {dotted(key)}" in text
            assert error.fix
            assert not any(
                word in text for word in ("type=", "pydantic", "Input should", "constrained", "NoneType", "<class")
            )
    assert refused > 20


def test_every_key_that_is_mistyped_by_one_letter_is_found_again() -> None:
    for key, base in settings():
        name = str(key[-1])
        if len(name) < 4:
            continue
        typed = dotted((*key[:-1], name[:1] + name[2:]))
        with pytest.raises(ConfigError) as caught:
            load_config(None, [*base, f"{typed}=1"])
        assert dotted(key) in str(caught.value), typed
