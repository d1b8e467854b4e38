"""Models that keep a state, and those without a cache of keys and values, write what transformers makes of a row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from drumline.config.inference import GenerateTask
from drumline.data.tokenizers import Ids
from drumline.errors import ConfigError
from drumline.infer.causal import Causal, takes_cache
from drumline.infer.generate import GeneratePredictor
from drumline.infer.padding_trial import way_of_writing
from drumline.infer.records import Prepared, Row
from drumline.infer.static_decoding import is_static
from tests.unit.infer.tiny_causal import (
    ENDS,
    PAD,
    VOCABULARY,
    NumberTokenizer,
    by_transformers,
    causal_model,
    ids_in,
    prompts_of,
)

LENGTHS, LIMIT = (17, 12, 3, 1), 6
_NO_ENDS = {"vocab_size": VOCABULARY, "pad_token_id": PAD, "eos_token_id": None, "bos_token_id": None}


class Given:
    """Rows hold their prompts' ids."""

    def ids(self, row: Row) -> Ids:
        return np.array(row.values["ids"], dtype=np.int64)


def made(model: type[Any], config: Any) -> Any:
    """A model with large random weights."""
    own = model(config).eval()
    stream = torch.Generator().manual_seed(1)
    for parameter in own.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3, generator=stream)
    return own


def mamba() -> Any:
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}
    return made(transformers.MambaForCausalLM, transformers.MambaConfig(**_NO_ENDS, **shape))


def recurrent() -> Any:
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4}
    more = {"lru_width": 32, "attention_window_size": 8, "head_dim": 8}
    config = transformers.RecurrentGemmaConfig(**_NO_ENDS, **shape, **more)
    return made(transformers.RecurrentGemmaForCausalLM, config)


@pytest.mark.parametrize("model", [mamba, recurrent])
def test_tokens_are_those_of_transformers(model: Any) -> None:
    own, prompts = model(), prompts_of(LENGTHS, LIMIT)
    predictor = GeneratePredictor(own, NumberTokenizer(), GenerateTask(max_new_tokens=LIMIT), Given(), ENDS)
    rows = predictor.prepare([Row(prompt.number, {"ids": prompt.ids.tolist()}) for prompt in prompts])
    prepared = [row for row in rows if isinstance(row, Prepared)]
    predictor.settle(predictor.survey(prepared))
    predictor.rehearse(prepared, LENGTHS[0])
    expected = [by_transformers(own, prompt) for prompt in prompts]
    assert [ids_in(answer["answer"]) for answer in predictor.run(prepared, LENGTHS[0])] == expected
    assert [ids_in(answer["answer"]) for answer in predictor.run([None, *prepared[1:]], LENGTHS[0])] == expected[1:]


def test_only_what_padding_changes_is_written_otherwise() -> None:
    # In a release of transformers whose Mamba takes its state under another name all tokens are taken again.
    state = mamba()
    assert not takes_cache(state) or way_of_writing(state, Causal(state), PAD) in ("together", "alone")
    own = recurrent()
    assert way_of_writing(own, Causal(own), PAD) == "alone"
    for kind in ("llama", "mixed"):
        assert way_of_writing(causal_model(kind), Causal(causal_model(kind)), PAD) == "together"


def test_without_a_cache_all_tokens_are_taken_again() -> None:
    shape = {"hidden_size": 16, "attention_hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 16}
    own = made(transformers.RwkvForCausalLM, transformers.RwkvConfig(**_NO_ENDS, **shape))
    assert not takes_cache(own)
    assert way_of_writing(own, None, PAD) == "recomputed"


def test_a_model_that_sees_what_comes_later_is_refused() -> None:
    shape = {"d_model": 32, "n_layer": 1, "n_head": 4, "d_inner": 48}
    own = made(transformers.XLNetLMHeadModel, transformers.XLNetConfig(vocab_size=VOCABULARY, **shape))
    with pytest.raises(ConfigError, match="does not write as it reads"):
        way_of_writing(own, None, PAD)


def test_where_columns_count_none_is_left_unused() -> None:
    shape = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 48}
    kinds = [[["global", "local"], 1]]
    config = transformers.GPTNeoConfig(**shape, attention_types=kinds, window_size=6, max_position_embeddings=64)
    causal = Causal(made(transformers.GPTNeoForCausalLM, config))
    assert not causal.allows_gaps
    assert not is_static(causal)
