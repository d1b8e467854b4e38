"""Choices by measurement."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from drumline.engine.choices import (
    IN_A_ROW,
    TIMED,
    WARM_UP,
    Choices,
    Trials,
    choose_attention,
    choose_compile,
    described,
    quickest,
)
from drumline.errors import DrumlineError
from drumline.launcher.world import World
from drumline.parallel import compile
from drumline.parallel.compile import compiled_blocks, run_as_written
from drumline.parallel.groups import Groups
from drumline.parallel.side_channel import Alone
from drumline.parallel.strategy import MicroBatch
from tests.unit.engine.training import events, trainer_of

PASSES = WARM_UP + TIMED * IN_A_ROW


class Timed:
    """A strategy whose passes take what they are said to take."""

    forwards_together = False

    def __init__(self, now: Callable[[], float | Exception]) -> None:
        self._now = now
        self.passes = 0

    def trial(self, micro_batches: Sequence[MicroBatch], times: int = 1) -> float:
        seconds = 0.0
        for _ in range(times):
            self.passes += 1
            taken = self._now()
            if isinstance(taken, Exception):
                raise taken
            seconds += taken
        return seconds


def trials(now: Callable[[], float | Exception], side: Any = None) -> tuple[Timed, Trials]:
    strategy: Any = Timed(now)
    groups = Groups(World(), torch.device("cpu"), side or Alone(), None, owns_default=False)
    return strategy, Trials(strategy, groups, [MicroBatch({}, 1, 1)])


def blocks() -> nn.Module:
    """Three that count as compiled; to have torch do so takes seconds."""
    model = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(3))
    for block in model:
        block._compiled_call_impl = block._call_impl
    return model


def test_the_quickest_must_be_noticeably_quicker_than_the_first() -> None:
    assert quickest({"varlen": 1.0, "sdpa": 0.98}) == "varlen"
    assert quickest({"varlen": 1.0, "sdpa": 0.9}) == "sdpa"
    assert quickest({"varlen": None, "sdpa": 5.0, "eager": 4.0}) == "eager"
    assert quickest({"varlen": 1.0, "sdpa": None}) == "varlen"
    assert quickest({"varlen": None, "sdpa": None}) == "varlen"
    assert described({"varlen": 0.0121, "sdpa": None}) == "varlen 12.1 ms, sdpa failed a pass"


def test_passes_that_warm_up_do_not_count_and_of_the_others_the_quickest_does() -> None:
    times = iter([0.1] * WARM_UP + [0.8, 0.6, 0.7] + [0.4, 0.5, 0.6])
    strategy, tried = trials(lambda: next(times))
    assert tried.seconds() == pytest.approx(0.5)
    assert strategy.passes == PASSES


class Others(Alone):
    """Another rank, whose answers are given."""

    def __init__(self, warm: bool, seconds: float | None) -> None:
        self._answers = iter([warm, seconds])
        self.tags: list[str] = []

    def exchange(self, tag: str, payload: Any = None, limit_s: float | None = None) -> list[Any]:
        self.tags.append(tag)
        return [payload, next(self._answers)]


def test_all_ranks_wait_for_the_slowest_and_begin_to_time_together() -> None:
    side = Others(True, 0.7)
    strategy, tried = trials(lambda: 0.5 if len(side.tags) else 0.1, side)
    assert tried.seconds() == 0.7
    assert strategy.passes == PASSES
    assert side.tags == ["passes that warm up", "seconds of a pass"]


def test_what_fails_on_one_rank_is_no_choice(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "drumline"):
        assert trials(lambda: ValueError("no kernel\nof that kind"))[1].seconds() is None
    assert "a choice is not taken: ValueError: no kernel" in caplog.text
    for warm, passes in ((True, PASSES), (False, WARM_UP)):
        strategy, tried = trials(lambda: 0.5, Others(warm, None))
        assert tried.seconds() is None
        assert strategy.passes == passes


def test_where_passes_are_collectives_a_failure_ends_the_run() -> None:
    strategy, tried = trials(lambda: DrumlineError("stuck", "wait"))
    strategy.forwards_together = True
    tried.groups.world = World(0, 2, 0, 2, "tcp://localhost:1")
    with pytest.raises(DrumlineError, match="stuck"):
        tried.seconds()


def test_the_quicker_attention_stays_set() -> None:
    import transformers

    shape = transformers.LlamaConfig(
        vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    model, choices = transformers.LlamaForCausalLM(shape), Choices()
    times = {"drumline_varlen": 0.2, "sdpa": 0.4, "eager": 0.1}
    tried = trials(lambda: times[str(model.config._attn_implementation)])[1]
    choose_attention(model, ["varlen", "sdpa", "eager"], tried, choices)
    assert model.config._attn_implementation == "eager"
    assert choices.facts["attention"] == {
        "chosen": "eager",
        "seconds": {"varlen": 0.2, "sdpa": 0.4, "eager": 0.1},
        "reason": "auto: varlen 200 ms, sdpa 400 ms, eager 100 ms a pass",
    }
    choose_attention(model, ["sdpa"], tried, choices)
    assert model.config._attn_implementation == "sdpa"


def test_without_trials_the_first_attention_is_taken() -> None:
    model, choices = nn.ModuleList(), Choices()
    choose_attention(model, ["varlen", "sdpa"], None, choices)
    assert choices.facts["attention"]["chosen"] == "varlen"
    assert choices.messages == [
        "attention: varlen (auto: the first, since to compile the whole model for each takes minutes)"
    ]
    choose_attention(model, ["sdpa"], None, choices)
    assert len(choices.messages) == 1


def test_attention_is_tried_as_the_run_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled the first kind wins, as written the second one; the trials themselves say which of the two they are."""
    model, choices = blocks(), Choices()
    set_to: list[str] = []
    monkeypatch.setattr("drumline.engine.choices.set_attention", lambda _, name: set_to.append(name))

    def now() -> float:
        runs_compiled = bool(compiled_blocks(model)) and not compile._num_uncompiled
        first, second = (0.1, 0.2) if runs_compiled else (0.2, 0.1)
        return first if set_to[-1] == "varlen" else second

    tried = trials(now)[1]
    choose_attention(model, ["varlen", "sdpa"], tried, choices)
    run_as_written(compiled_blocks(model))
    choose_attention(model, ["varlen", "sdpa"], tried, choices)
    assert set_to == ["varlen", "sdpa", "varlen", "varlen", "sdpa", "sdpa"]


@pytest.mark.parametrize(("written", "compiled", "passes"), [(0.1, 0.05, 10_000.0), (0.1, 0.05, None), (0.1, 0.2, 1e4)])
def test_blocks_stay_compiled_where_that_is_quicker(written: float, compiled: float, passes: float | None) -> None:
    model, choices = blocks(), Choices()
    found = compiled_blocks(model)
    assert len(found) == 3
    times = iter([written] * PASSES + [compiled] * PASSES)
    choose_compile(found, trials(lambda: next(times))[1], choices, passes)
    quicker = compiled < written
    assert len(compiled_blocks(model)) == (3 if quicker else 0)
    assert choices.facts["compile"]["chosen"] == ("blocks" if quicker else "none")
    assert choices.facts["compile"]["seconds"] == {"none": written, "blocks": compiled}


def test_a_short_run_is_not_compiled_for() -> None:
    model, choices = blocks(), Choices()
    strategy, tried = trials(lambda: 0.1)
    choose_compile(compiled_blocks(model), tried, choices, 500.0)
    assert strategy.passes == PASSES
    assert not compiled_blocks(model)
    assert choices.messages == [
        "compile: none (auto: the run takes about 50 s without the compiler, which takes nearly as long)"
    ]


def test_blocks_run_as_written_again() -> None:
    model = blocks()
    run_as_written(compiled_blocks(model))
    assert compiled_blocks(model) == []


def test_on_a_cpu_auto_compiles_nothing(tmp_path: Path) -> None:
    with trainer_of(tmp_path / "run", train={"compile": "auto"}) as trainer:
        trainer.fit()
    assert "choices" not in events(tmp_path / "run")
