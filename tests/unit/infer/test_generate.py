"""The task `generate` as the workers use it: prompts, facts, engines and answers."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from drumline.config.inference import GenerateTask
from drumline.config.model import DecoderModel
from drumline.data.tokenizers import Ids
from drumline.errors import ConfigError, DataError
from drumline.infer.engine_choice import fastest, tried_rows
from drumline.infer.generate import GeneratePredictor
from drumline.infer.prefix import LEAST_TOKENS
from drumline.infer.records import Prepared, Row
from drumline.models.decoder import decoder_from_config
from tests.unit.infer.tiny_causal import (
    ENDS,
    ROOM,
    VOCABULARY,
    NumberTokenizer,
    by_transformers,
    causal_model,
    ids_in,
    prompts_of,
)

LIMIT, SHARED = 8, LEAST_TOKENS + 3
LENGTHS = (60, 52, 44, 38)


class Given:
    """Rows hold their prompts' ids."""

    def ids(self, row: Row) -> Ids:
        if "ids" not in row.values:
            raise DataError("the row has no field 'ids'", "add it")
        return np.array(row.values["ids"], dtype=np.int64)


def predictor(kind: str = "llama", *, folder: Path | None = None, **task: Any) -> GeneratePredictor:
    settings = GenerateTask(**{"max_new_tokens": LIMIT, "engine": "padded", **task})
    return GeneratePredictor(causal_model(kind), NumberTokenizer(), settings, Given(), ENDS, folder=folder)


def rows_of(lengths: Sequence[int] = LENGTHS, shared: int = SHARED) -> list[Row]:
    return [Row(prompt.number, {"ids": prompt.ids.tolist()}) for prompt in prompts_of(lengths, LIMIT, shared)]


def prepared_of(own: GeneratePredictor, rows: Sequence[Row]) -> list[Prepared]:
    found = own.prepare(rows)
    assert all(isinstance(each, Prepared) for each in found)
    return [each for each in found if isinstance(each, Prepared)]


def expected_of(kind: str = "llama") -> list[list[int]]:
    return [by_transformers(causal_model(kind), prompt) for prompt in prompts_of(LENGTHS, LIMIT, SHARED)]


@pytest.mark.parametrize("engine", ["padded", "static", "continuous"])
def test_engines_give_the_answers_of_transformers(engine: str) -> None:
    own = predictor(engine=engine)
    prepared = prepared_of(own, rows_of())
    facts = own.survey(prepared)
    assert facts == {"prefix": rows_of()[0].values["ids"][:SHARED]}
    own.settle(facts)
    assert own.engine == engine
    answers = own.run([prepared[0], None, *prepared[1:]], LENGTHS[0])
    assert [ids_in(answer["answer"]) for answer in answers] == expected_of()
    assert [answer["new_tokens"] for answer in answers] == [len(ids) for ids in expected_of()]
    assert all(tuple(answer) == own.columns for answer in answers)
    assert {answer["finish"] for answer in answers} <= {"end", "length"}


def test_rows_are_prepared_or_have_a_problem() -> None:
    own = predictor(max_new_tokens=50)
    long = [20] * ROOM
    rows = [
        Row(0, {}, problem="line 7: not JSON"),
        Row(1, {"text": "?"}),
        Row(2, {"ids": []}),
        Row(3, {"ids": long}),
        Row(9, {"ids": [20, VOCABULARY]}),
        Row(4, {"ids": long[: ROOM - 3]}),
        Row(5, {"ids": [20, 21]}),
    ]
    *problems, tight, short = own.prepare(rows)
    assert problems[:3] == ["line 7: not JSON", "the row has no field 'ids'", "its prompt is empty"]
    assert problems[3] == f"its prompt has {ROOM} tokens, and the model takes {ROOM} with the answer"
    assert problems[4] == f"it holds the token {VOCABULARY}, and the model knows {VOCABULARY}"
    assert isinstance(tight, Prepared) and isinstance(short, Prepared)
    assert (tight.number, tight.length, tight.size) == (4, ROOM - 3, ROOM)
    assert (short.length, short.size) == (2, 52)


def test_sliding_windows_share_no_prefix() -> None:
    own = predictor("mixed", engine="auto")
    facts = own.survey(prepared_of(own, rows_of()))
    assert facts == {}
    own.settle(facts)
    # On a CPU nothing is measured.
    assert own.engine == "padded"
    prepared = prepared_of(own, rows_of())
    assert [ids_in(each["answer"]) for each in own.run(prepared, LENGTHS[0])] == expected_of("mixed")


def test_measuring_names_an_engine_and_changes_nothing() -> None:
    own = predictor(engine="auto")
    prepared = prepared_of(own, rows_of())
    facts = own.measure(prepared)
    assert facts["engine"] in {"padded", "static", "continuous"}
    assert own.engine == "padded"
    own.settle(facts)
    assert own.engine == facts["engine"]
    assert own.measure([]) == {"engine": own.engine}


def test_stop_texts_end_answers() -> None:
    whole = max(expected_of(), key=len)
    own = predictor(stop=[f"{whole[1]} {whole[2]}"])
    prepared = prepared_of(own, rows_of())
    answers = own.run(prepared, LENGTHS[0])
    place = expected_of().index(whole)
    assert answers[place] == {"answer": f"{whole[0]} ", "finish": "stop", "new_tokens": 3}


def test_draws_are_of_row_and_seed() -> None:
    task = GenerateTask(max_new_tokens=LIMIT, temperature=2.0, engine="padded")
    one, other = (GeneratePredictor(causal_model("llama"), NumberTokenizer(), task, Given(), (), s) for s in (1, 2))
    prepared = prepared_of(one, rows_of())
    whole = one.run(prepared, LENGTHS[0])
    assert one.run(prepared[2:], LENGTHS[2]) == whole[2:]
    assert one.run([None, *prepared[1:]], LENGTHS[0]) == whole[1:]
    assert other.run(prepared, LENGTHS[0]) != whole


def test_an_engine_that_cannot_draw_is_refused() -> None:
    with pytest.raises(ConfigError, match="continuous does not fit"):
        predictor(engine="continuous", temperature=1.0)


def test_vllm_that_is_not_there_is_told_before_any_row_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    own = predictor(engine="vllm", folder=Path())
    with pytest.raises(ConfigError, match="the package vllm is not installed"):
        own.settle(own.survey(prepared_of(own, rows_of())))


def test_vllm_is_not_given_weights_that_lie_in_no_folder() -> None:
    task = GenerateTask(engine="vllm")
    with pytest.raises(ConfigError, match="there is no folder of these"):
        GeneratePredictor(causal_model("llama"), NumberTokenizer(), task, Given(), ENDS)


def test_vllm_reads_the_folder_in_the_type_that_was_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: dict[str, Any] = {}
    package = ModuleType("vllm")
    monkeypatch.setattr(package, "LLM", seen.update, raising=False)
    monkeypatch.setitem(sys.modules, "vllm", package)
    predictor(engine="vllm", folder=tmp_path).settle({})
    assert (seen["model"], seen["dtype"]) == (str(tmp_path), "float32")


def test_a_padding_token_that_the_model_lacks_is_not_used() -> None:
    class Wide(NumberTokenizer):
        pad_id = VOCABULARY

    task = GenerateTask(max_new_tokens=LIMIT, engine="padded")
    own = GeneratePredictor(causal_model("llama"), Wide(), task, Given(), ENDS)
    prepared = prepared_of(own, rows_of())
    assert [ids_in(answer["answer"]) for answer in own.run(prepared, LENGTHS[0])] == expected_of()


def test_the_reference_decoder_writes_too() -> None:
    torch.manual_seed(0)
    shape = DecoderModel(num_layers=1, num_heads=2, width=16, vocab_size=VOCABULARY)
    model = decoder_from_config(shape, VOCABULARY, 48)
    task = GenerateTask(max_new_tokens=5)
    own = GeneratePredictor(model, NumberTokenizer(), task, Given(), ENDS)
    prepared = prepared_of(own, rows_of((20, 11, 2), 0))
    assert own.survey(prepared) == {}
    own.settle({})
    whole = own.run(prepared, 20)
    assert [own.run([each], each.length)[0] for each in prepared] == whole
    with pytest.raises(ConfigError, match="static does not fit Decoder"):
        GeneratePredictor(model, NumberTokenizer(), GenerateTask(engine="static"), Given(), ENDS)


def test_a_rehearsal_leaves_nothing_behind() -> None:
    for engine in ("padded", "static", "continuous"):
        for most in (1, 2, LIMIT):
            own = predictor(engine=engine, max_new_tokens=most)
            own.rehearse(prepared_of(own, rows_of()), LENGTHS[0])
            assert own._stepper is None


class TestChoice:
    def test_the_second_call_counts(self) -> None:
        now = 0.0
        first = {"slow start": 50.0, "fast start": 1.0}
        later = {"slow start": 2.0, "fast start": 3.0}

        def engine(name: str) -> None:
            nonlocal now
            now += first.pop(name, later[name])

        trials = {name: lambda name=name: engine(name) for name in list(first)}
        assert fastest(trials, clock=lambda: now) == "slow start"

    def test_one_that_fails_is_passed_over(self, caplog: pytest.LogCaptureFixture) -> None:
        def broken() -> None:
            raise RuntimeError("no kernel image")

        with caplog.at_level(logging.WARNING):
            assert fastest({"static": broken, "padded": list}) == "padded"
        assert "the engine static does not run with this model: RuntimeError: no kernel image" in caplog.text
        with pytest.raises(RuntimeError, match="no kernel"):
            fastest({"static": broken})

    def test_of_too_many_rows_fewer_are_tried(self, monkeypatch: pytest.MonkeyPatch) -> None:
        own = predictor(engine="auto")
        prepared, tried = prepared_of(own, rows_of()), list[int]()

        def narrow(self: GeneratePredictor, prompts: Sequence[Any], width: int, most: int) -> list[Any]:
            tried.append(len(prompts))
            assert width == max(len(prompt.ids) for prompt in prompts)
            if len(prompts) > 1:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return []

        monkeypatch.setattr(GeneratePredictor, "_write", narrow)
        assert own.measure(prepared)["engine"] in {"padded", "static", "continuous"}
        assert tried == [4, 2, *[1] * 6]

    def test_rows_of_middling_length_are_tried(self) -> None:
        rows = [Prepared(number, length, length) for number, length in enumerate([5, 9, 1, 7, 3])]
        assert [row.length for row in tried_rows(rows, 3)] == [7, 5, 3]
        assert len(tried_rows(rows, 10)) == 5
