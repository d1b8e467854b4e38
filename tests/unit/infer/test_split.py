"""Where a model's layers go when one device does not hold them."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from drumline.config.inference import InferenceConfig, SplitConfig
from drumline.errors import ConfigError, HardwareError
from drumline.infer.layer_balance import balanced
from drumline.infer.layer_costs import costs_by_bytes, measured_costs
from drumline.infer.layer_units import units_of
from drumline.infer.loading import load_model_for
from drumline.infer.split import describe, device_map_of, load_split
from tests.tiny_models import VOCAB_SIZE, save_llama


def slowest(costs: list[float], places: list[int], num_devices: int) -> float:
    return max(sum(c for c, p in zip(costs, places, strict=True) if p == device) for device in range(num_devices))


def every_cut(count: int, num_devices: int) -> Iterator[list[int]]:
    for cuts in itertools.combinations_with_replacement(range(count + 1), num_devices - 1):
        yield [sum(place >= cut for cut in cuts) for place in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_the_slowest_device_is_as_fast_as_trying_all_ways(seed: int) -> None:
    draw = random.Random(seed)
    count, num_devices = draw.randint(1, 8), draw.randint(1, 4)
    costs = [draw.choice([0.0, draw.random(), 1.0]) for _ in range(count)]
    sizes = [draw.randint(0, 9) for _ in range(count)]
    capacities = [float(draw.randint(5, 30)) for _ in range(num_devices)]

    def fits(places: list[int]) -> bool:
        held = [sum(s for s, p in zip(sizes, places, strict=True) if p == d) for d in range(num_devices)]
        return all(one <= most for one, most in zip(held, capacities, strict=True))

    ways = [places for places in every_cut(count, num_devices) if fits(places)]
    if not ways:
        with pytest.raises(HardwareError, match="do not fit on"):
            balanced(costs, num_devices, sizes, capacities)
        return
    found = balanced(costs, num_devices, sizes, capacities)
    assert found in ways
    assert slowest(costs, found, num_devices) == pytest.approx(min(slowest(costs, w, num_devices) for w in ways))


@pytest.mark.parametrize(
    ("costs", "num_devices", "expected"),
    [
        ([1.0] * 8, 4, [0, 0, 1, 1, 2, 2, 3, 3]),
        ([1.0, 1.0], 3, [0, 1]),
        ([5.0, 1.0, 1.0, 1.0], 3, [0, 1, 1, 2]),
        ([], 2, []),
    ],
)
def test_layers_are_spread_evenly(costs: list[float], num_devices: int, expected: list[int]) -> None:
    found = balanced(costs, num_devices)
    assert sorted(found) == found
    assert [found.count(d) for d in range(num_devices)] in (
        [expected.count(d) for d in range(num_devices)],
        [expected.count(d) for d in (0, *reversed(range(1, num_devices)))],
    )


def test_a_small_device_gets_less() -> None:
    assert balanced([1.0] * 4, 2, [10] * 4, [10, 100]) == [0, 1, 1, 1]


def on_meta(**settings: Any) -> nn.Module:
    shape: dict[str, Any] = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, **settings}
    with torch.device("meta"):
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**shape))
    return model


def test_layers_stay_whole_and_in_order() -> None:
    where = device_map_of(on_meta(), SplitConfig(), ["one", "two"])
    assert where == {
        "model.embed_tokens": "one",
        **{f"model.layers.{i}": "one" if i < 2 else "two" for i in range(4)},
        "model.norm": "two",
        "model.rotary_emb": "one",
        "lm_head": "two",
    }
    assert describe(where).startswith("one: 4 parts, model.embed_tokens to model.rotary_emb; two: ")


def test_tied_weights_lie_together_and_count_once() -> None:
    model = on_meta(tie_word_embeddings=True)
    where = device_map_of(model, SplitConfig(), ["one", "two"])
    assert where["lm_head"] == where["model.embed_tokens"] == "one"
    assert where["model.layers.3"] == "two"
    units = units_of(model)
    assert units[0].names == ("model.embed_tokens", "lm_head")
    assert units[0].num_bytes == 64 * 32 * 4
    assert costs_by_bytes(model, units)[0] == 64 * 32 * 4  # as the head it is read whole
    assert costs_by_bytes(on_meta(), units_of(on_meta()))[0] == 0


@pytest.mark.parametrize(
    ("make", "together", "blocks"),
    [
        (
            lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=3, n_embd=16, n_head=2)),
            ("transformer.wte", "lm_head"),
            "transformer.h.2",
        ),
        (
            lambda: transformers.T5ForConditionalGeneration(
                transformers.T5Config(num_layers=3, d_model=16, d_ff=16, d_kv=8, num_heads=2)
            ),
            ("shared", "encoder.embed_tokens", "decoder.embed_tokens", "lm_head"),
            "decoder.block.2",
        ),
        (
            lambda: transformers.BertForSequenceClassification(
                transformers.BertConfig(num_hidden_layers=3, hidden_size=16, num_attention_heads=2)
            ),
            ("bert.embeddings",),
            "bert.encoder.layer.2",
        ),
        (
            lambda: transformers.GptOssForCausalLM(
                transformers.GptOssConfig(num_hidden_layers=3, hidden_size=16, num_local_experts=4, vocab_size=32)
            ),
            ("model.embed_tokens",),
            "model.layers.2",
        ),
    ],
)
def test_other_models(make: Any, together: tuple[str, ...], blocks: str) -> None:
    with torch.device("meta"):
        model = make()
    where = device_map_of(model, SplitConfig(), ["one", "two", "three"])
    assert blocks in where
    assert {where[name] for name in together} == {where[together[0]]}
    named = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    assert all(any(name == key or name.startswith(f"{key}.") for key in where) for name in named)


def test_a_model_that_is_none_of_transformers() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ModuleList([nn.Tanh(), nn.Tanh()]), nn.Linear(4, 4))
    where = device_map_of(model, SplitConfig(), ["one", "two"])
    assert (where["0"], where["2"]) == ("one", "two")


BY_HAND = {"model.embed_tokens": 0, "model.layers.1": 1, "model.layers": 0, "model.norm": 1, "lm_head": 1}


def test_a_map_by_hand_takes_the_longest_beginning() -> None:
    where = device_map_of(on_meta(num_hidden_layers=12), SplitConfig(device_map=BY_HAND), ["one", "two"])
    assert where["model.layers.1"] == "two"
    assert where["model.layers.10"] == where["model.layers.0"] == where["model.rotary_emb"] == "one"
    everything = device_map_of(on_meta(), SplitConfig(device_map={"": 1}), ["one", "two"])
    assert set(everything.values()) == {"two"}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"transformer.h": 0}, r"does not have: transformer\.h"),
        ({"model.layers.99": 0}, r"does not have: model\.layers\.99"),
        ({"model.layers.0.mlp": 1}, r"cuts model\.layers\.0 in two with model\.layers\.0\.mlp"),
        ({"lm_head": 2}, "names GPU 2, and a replica has 2"),
        ({"lm_head": -1}, "names GPU -1, and a replica has 2"),
    ],
)
def test_a_map_by_hand_that_does_not_fit(change: dict[str, int], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        device_map_of(on_meta(), SplitConfig(device_map=BY_HAND | change), ["one", "two"])


def test_modules_without_a_place_are_named() -> None:
    with pytest.raises(ConfigError, match=r"gives no GPU for model\.norm, lm_head"):
        device_map_of(on_meta(), SplitConfig(device_map={"model.embed_tokens": 0, "model.layers": 1}), [0, 1])


def test_a_map_by_hand_does_not_tear_what_is_tied() -> None:
    where = device_map_of(on_meta(tie_word_embeddings=True), SplitConfig(device_map=BY_HAND), ["one", "two"])
    assert where["lm_head"] == "one"


def test_too_little_memory_says_how_much_there_is() -> None:
    with pytest.raises(HardwareError, match="do not fit on 2 devices"):
        device_map_of(on_meta(), SplitConfig(), ["one", "two"], capacities=[1000.0, 1000.0])


def test_layers_are_timed_by_kind() -> None:
    def make(shape: Any) -> nn.Module:
        made.append(shape.num_hidden_layers)
        return transformers.AutoModelForCausalLM.from_config(shape).eval()  # type: ignore[no-any-return]

    made: list[int] = []
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.GptOssConfig(
                **{"num_hidden_layers": 6, "hidden_size": 16, "num_local_experts": 4, "vocab_size": 32},
                **{"intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8},
            )
        )
    units = units_of(model)
    costs = measured_costs(model, units, make, torch.device("cpu"))
    assert costs is not None
    assert made == [2]  # sliding and full attention
    of = dict(zip((unit.name for unit in units), costs, strict=True))
    assert of["model.layers.0"] == of["model.layers.4"] > 0
    assert of["model.layers.1"] == of["model.layers.5"] > 0
    assert of["lm_head"] > 0


def test_what_cannot_be_timed_goes_by_bytes(caplog: pytest.LogCaptureFixture) -> None:
    def make(_: Any) -> nn.Module:
        raise RuntimeError("no room")

    model = on_meta()
    with caplog.at_level(logging.WARNING):
        assert measured_costs(model, units_of(model), make, torch.device("cpu")) is None
    assert "no room" in caplog.text


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("llama"))


def run(folder: Path, **settings: Any) -> InferenceConfig:
    sections: dict[str, Any] = {"rows": {"files": ["rows.jsonl"]}, "output": {"file": "out.jsonl"}, "split": {}}
    model = {"path": str(folder), "dtype": "float32", **settings.pop("model", {})}
    return InferenceConfig.model_validate({**sections, "model": model, **settings})


def test_the_same_scores_as_unsplit(folder: Path) -> None:
    split = load_split(folder, run(folder), ["cpu", "cpu"])
    whole = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.arange(40).view(2, 20) % VOCAB_SIZE
    assert not split.training
    assert not any(p.requires_grad for p in split.parameters())
    with torch.no_grad():
        assert torch.equal(split(ids).logits, whole(ids).logits)


def test_random_weights_are_made_in_place(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    model = load_split(tmp_path, run(tmp_path, model={"random_weights": True}), ["cpu", "cpu"])
    assert all(p.device.type == "cpu" and bool(p.isfinite().all()) for p in model.parameters())
    assert 0.015 < float(model.get_parameter("model.layers.1.mlp.up_proj.weight").std()) < 0.025


def test_what_the_folder_lacks_is_told(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="lacks 1 of the classifier's weights, score"):
        load_split(folder, run(folder, task={"kind": "classify"}), ["cpu"])
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(ConfigError, match="could not be loaded as causal"):
        load_split(tmp_path, run(tmp_path), ["cpu"])
    with pytest.raises(ConfigError, match=r"split\.kind tensor takes several processes"):
        load_model_for(run(folder, split={"kind": "tensor", "gpus": 2}), torch.device("cpu"))
