"""Rotary embeddings that change with a batch's longest row set how long rows may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import transformers

from drumline.config.inference import GenerateTask
from drumline.data.tokenizers import Ids
from drumline.infer.generate import GeneratePredictor
from drumline.infer.records import Row
from drumline.infer.steady_room import room_note, steady_room
from tests.unit.infer.tiny_causal import NumberTokenizer, causal_model

_SHAPE = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
_WORDS = {"vocab_size": 64, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}


class Given:
    """Rows hold their prompts' ids."""

    def ids(self, row: Row) -> Ids:
        return np.array(row.values["ids"], dtype=np.int64)


def model_of(rope: dict[str, Any], room: int) -> Any:
    config = transformers.LlamaConfig(
        **_SHAPE, **_WORDS, max_position_embeddings=room, rope_parameters={"rope_theta": 10000.0, **rope}
    )
    return transformers.LlamaForCausalLM(config)


def test_no_row_is_longer_than_the_original_length() -> None:
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    model = model_of({"rope_type": "longrope", **factors, "original_max_position_embeddings": 24}, 96)
    assert steady_room(model) == 24
    own = GeneratePredictor(model, NumberTokenizer(), GenerateTask(engine="padded"), Given(), ())
    problem, _ = own.prepare([Row(0, {"ids": [20] * 24}), Row(1, {"ids": [20] * 23})])
    assert isinstance(problem, str)
    assert problem.startswith("its prompt has 24 tokens, and the model takes 24 with the answer (of its 96: beyond 24 ")


@pytest.mark.parametrize(
    ("rope", "room"),
    [({"rope_type": "dynamic", "factor": 4.0}, 24), ({"rope_type": "linear", "factor": 4.0}, 96)],
)
def test_others_have_all_of_their_room(rope: dict[str, Any], room: int) -> None:
    model = model_of(rope, room)
    assert steady_room(model) == room
    assert room_note(model) == ""


def test_without_rotary_embeddings_the_table_counts() -> None:
    assert steady_room(causal_model("gpt2")) == 96
