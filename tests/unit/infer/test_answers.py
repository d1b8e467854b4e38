from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from drumline.infer.answers import AnswersIndex, AnswersWriter, encode
from drumline.infer.ledger_folder import make_folders
from drumline.infer.records import Answer
from drumline.predictions import PredictionDir


@pytest.fixture
def directory(tmp_path: Path) -> PredictionDir:
    """An empty ledger."""
    make_folders(PredictionDir(tmp_path))
    return PredictionDir(tmp_path)


def write(directory: PredictionDir, worker: str, *batches: int, text: str = "a") -> None:
    writer = AnswersWriter(directory.answers / f"{worker}.jsonl")
    for batch in batches:
        writer.write(batch, [2 * batch, 2 * batch + 1], [{"answer": text}, {"error": "bad"}])
    writer.close()
    writer.close()


def test_answers_of_several_workers_are_found_by_batch(directory: PredictionDir) -> None:
    write(directory, "a", 4, 0)
    write(directory, "b", 2)
    index = AnswersIndex(directory)
    assert [batch in index for batch in range(5)] == [True, False, True, False, True]
    assert index.read(2) == {4: {"answer": "a"}, 5: {"error": "bad"}}
    assert index.read(0) == {0: {"answer": "a"}, 1: {"error": "bad"}}


def test_a_batch_that_stands_there_twice_counts_once(directory: PredictionDir) -> None:
    write(directory, "a", 1, 1, text="first")
    write(directory, "b", 1, text="second")
    assert AnswersIndex(directory).read(1)[2] == {"answer": "first"}


def test_a_torn_line_is_passed_over_and_what_follows_it_is_not(directory: PredictionDir) -> None:
    write(directory, "a", 0)
    file = directory.answers / "a.jsonl"
    whole = file.read_bytes()
    for cut in range(0, len(whole), 7):
        file.write_bytes(whole[:cut])
        assert 0 not in AnswersIndex(directory)
        write(directory, "a", 1)
        index = AnswersIndex(directory)
        assert 0 not in index
        assert index.read(1) == {2: {"answer": "a"}, 3: {"error": "bad"}}


def test_vectors_are_kept_to_the_bit(directory: PredictionDir) -> None:
    vector = np.random.default_rng(0).standard_normal(384).astype(np.float32)
    writer = AnswersWriter(directory.answers / "a.jsonl")
    writer.write(0, [0], [{"embedding": vector, "norm": np.float32(0.1), "ids": np.arange(3), "p": {"x": 0.5}}])
    writer.close()
    answer = AnswersIndex(directory).read(0)[0]
    assert answer["embedding"].dtype == np.float32
    assert answer["embedding"].tobytes() == vector.tobytes()
    assert (np.float32(answer["norm"]), answer["ids"], answer["p"]) == (np.float32(0.1), [0, 1, 2], {"x": 0.5})


def test_lists_of_numbers_are_packed_only_where_nothing_is_lost(directory: PredictionDir) -> None:
    short, double, single, whole = [0.5] * 3, [0.1] * 20, [float(np.float32(0.1))] * 20, list(range(20))
    writer = AnswersWriter(directory.answers / "a.jsonl")
    writer.write(0, [0], [{"short": short, "double": double, "single": single, "whole": whole}])
    writer.close()
    answer = AnswersIndex(directory).read(0)[0]
    assert (answer["short"], answer["double"], answer["whole"]) == (short, double, whole)
    assert answer["single"].tolist() == single


def test_what_json_cannot_hold_is_refused_before_anything_is_written(directory: PredictionDir) -> None:
    writer = AnswersWriter(directory.answers / "a.jsonl")
    with pytest.raises(TypeError, match="holds a object"):
        writer.write(0, [0], [{"answer": object()}])
    assert not (directory.answers / "a.jsonl").exists()


def test_a_line_that_takes_several_writes_is_whole(directory: PredictionDir, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:7]))
    write(directory, "a", 0, 1)
    monkeypatch.undo()
    assert AnswersIndex(directory).read(1) == {2: {"answer": "a"}, 3: {"error": "bad"}}


def test_an_answer_that_was_encoded_before_gives_the_same_line(directory: PredictionDir) -> None:
    answers: list[Answer] = [{"v": np.array([0.1, 0.2], np.float32), "t": "ä", "n": None}, {"l": [0.5] * 20}]
    for name, given in (("a", answers), ("b", [encode(answer) for answer in answers])):
        writer = AnswersWriter(directory.answers / f"{name}.jsonl")
        writer.write(3, [4, 5], given)
        writer.close()
    first, second = ((directory.answers / f"{name}.jsonl").read_bytes() for name in "ab")
    assert first == second
    assert json.loads(first)["answers"][1][0] == 5


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_without_room_the_file_is_as_it_was(
    directory: PredictionDir, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = AnswersWriter(directory.answers / "a.jsonl")
    writer.write(0, [0], [{"answer": "x"}])
    before = (directory.answers / "a.jsonl").read_bytes()
    real, room = os.write, iter([7])

    def full(file: int, data: bytes | memoryview = b"") -> int:
        if call == "write" and (size := next(room, 0)):
            return real(file, data[:size])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space left"):
        writer.write(1, [1], [{"answer": "y"}])
    monkeypatch.undo()
    assert (directory.answers / "a.jsonl").read_bytes() == before
    writer.close()
