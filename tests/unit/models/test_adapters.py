from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import peft
import pytest
import safetensors.torch
import torch
import transformers
from torch import Tensor, nn

from drumline.config.model import AdapterConfig, HuggingFaceModel
from drumline.errors import ConfigError
from drumline.models.adapter_files import base_identity
from drumline.models.adapters import kept_names, merged, with_adapter, without_adapter, write_adapter
from drumline.models.embedding_noise import add_embedding_noise
from drumline.models.huggingface import Head
from drumline.models.quantised import PackedLinear
from drumline.parallel.saved_names import base_problem, kept_of

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2]])
SIZES = {"vocab_size": 40, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


def llama(seed: int = 0, **changes: Any) -> Any:
    torch.manual_seed(seed)
    shape = {**SIZES, "max_position_embeddings": 32, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**shape, **changes}))


def gpt2() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=40, n_embd=32, n_layer=2, n_head=2, n_positions=32)
    config.bos_token_id = config.eos_token_id = 0
    return transformers.GPT2LMHeadModel(config)


def bert() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(**SIZES, num_labels=3, max_position_embeddings=32, pad_token_id=0)
    return transformers.BertForSequenceClassification(config)


MODELS: dict[str, tuple[Any, Head]] = {
    "llama": (llama, "causal"),
    "gpt2": (gpt2, "causal"),
    "bert": (bert, "sequence_classification"),
}


def config_for(folder: Path, **settings: Any) -> HuggingFaceModel:
    quantise = settings.pop("quantise", "none")
    return HuggingFaceModel(path=str(folder), quantise=quantise, adapter=AdapterConfig(rank=4, **settings))


def moved(model: nn.Module) -> nn.Module:
    """As training would have left it."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(torch.randn(p.shape, generator=generator).to(p.dtype) * 0.1)
    return model.eval()


@torch.no_grad()
def logits(model: Any) -> Tensor:
    found: Tensor = model.eval()(input_ids=IDS).logits
    return found


@pytest.mark.parametrize("kind", ["lora", "dora"])
@pytest.mark.parametrize("name", MODELS)
def test_it_begins_as_its_base_and_ends_as_one_model(tmp_path: Path, name: str, kind: str) -> None:
    """Merged, and written and read again by plain peft and by us: equal logits each time."""
    make, head = MODELS[name]
    make().save_pretrained(tmp_path / "base")
    config = config_for(tmp_path / "base", kind=kind)
    model = make()
    before = logits(model)
    assert with_adapter(model, config, head) is model
    torch.testing.assert_close(logits(model), before, rtol=0, atol=1e-6)
    after = logits(moved(model))
    assert float((after - before).abs().max()) > 0.01
    plain = make()
    plain.load_state_dict(merged(model))
    torch.testing.assert_close(logits(plain), after, rtol=0, atol=1e-5)
    kept, saved = kept_names(model), kept_of(model)
    assert kept is not None and saved is not None
    write_adapter({n: v for n, v in model.state_dict().items() if n in kept}, config, saved.base, tmp_path / "out")
    again = make()
    initial = AdapterConfig(kind=kind, rank=4, initial=tmp_path / "out")
    with_adapter(again, config.model_copy(update={"adapter": initial}), head)
    torch.testing.assert_close(logits(again), after, rtol=0, atol=0)
    with warnings.catch_warnings():  # of peft's own, about a name of transformers'
        warnings.simplefilter("ignore", FutureWarning)
        read = peft.PeftModel.from_pretrained(make(), tmp_path / "out")
    torch.testing.assert_close(logits(read), after, rtol=0, atol=1e-6)


def test_switched_off_it_is_its_base(tmp_path: Path) -> None:
    """In training too, where there are dropout and noise otherwise."""
    llama().save_pretrained(tmp_path / "base")
    config = config_for(tmp_path / "base", dropout=0.5).model_copy(update={"embedding_noise": 5.0})
    model: Any = with_adapter(llama(), config, "causal")
    expected, wanted = logits(llama()), {name for name, p in model.named_parameters() if p.requires_grad}
    after = logits(moved(model))
    with without_adapter(model):
        torch.testing.assert_close(logits(model), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(logits(model), after, rtol=0, atol=0)
    with without_adapter(model.train()):
        torch.testing.assert_close(model(input_ids=IDS).logits, expected, rtol=0, atol=1e-6)
    assert all(module.training for module in model.modules())
    assert {name for name, p in model.named_parameters() if p.requires_grad} == wanted


def test_its_values_depend_on_the_seed_alone_and_are_float32(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path / "base")
    found = []
    for draws in (0, 5):
        model = llama().bfloat16()
        torch.manual_seed(11)
        torch.rand(draws)
        before = torch.get_rng_state()
        with_adapter(model, config_for(tmp_path / "base"), "causal")
        assert torch.equal(torch.get_rng_state(), before)
        found.append({name: p for name, p in model.named_parameters() if p.requires_grad})
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    assert {p.dtype for p in found[0].values()} == {torch.float32}


def test_names_choose_layers_and_what_is_trained_whole(tmp_path: Path) -> None:
    """The head is tied to the embedding, so that both of its names are kept."""
    llama().save_pretrained(tmp_path / "base")
    config = config_for(tmp_path / "base", targets=["q_proj", "1.mlp.up_proj"], train_also=["embed_tokens"])
    model = with_adapter(llama(), config, "causal")
    layers = {f"model.layers.{i}.self_attn.q_proj" for i in (0, 1)} | {"model.layers.1.mlp.up_proj"}
    expected = {f"{layer}.lora_{part}.default.weight" for layer in layers for part in "AB"}
    kept = kept_names(model)
    assert kept is not None and set(kept) == expected | {"model.embed_tokens.weight", "lm_head.weight"}
    assert kept_names(llama()) is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"targets": ["qproj"]}, "model.adapter.targets: no module of the model is named qproj"),
        ({"train_also": ["head"]}, "model.adapter.train_also: no module of the model is named head"),
        ({"targets": ["q_proj"], "train_also": ["self_attn"]}, "which is trained whole"),
    ],
)
def test_names_that_the_model_has_not_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    llama().save_pretrained(tmp_path / "base")
    with pytest.raises(ConfigError, match=message):
        with_adapter(llama(), config_for(tmp_path / "base", **settings), "causal")


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """Folder of an adapter, beside that of its base."""
    llama().save_pretrained(tmp_path / "base")
    config = config_for(tmp_path / "base")
    model = moved(with_adapter(llama(), config, "causal"))
    kept = kept_names(model) or frozenset()
    base = base_identity(config)
    write_adapter({n: v for n, v in model.state_dict().items() if n in kept}, config, base, tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.parametrize(
    ("seed", "shape", "settings", "message"),
    [
        (1, {}, {}, "is of another model, .*base, than model.path .*other"),
        (0, {"hidden_size": 32}, {}, "is of another model"),
        (0, {}, {"rank": 8}, "has rank 4, and model.adapter.rank is 8"),
        (0, {}, {"kind": "dora"}, "has kind lora, and model.adapter.kind is dora"),
        (0, {}, {"alpha": 2.5}, "has alpha 8, and model.adapter.alpha is 2.5"),
        (0, {}, {"targets": ["q_proj"]}, "does not fit the model: it has besides"),
    ],
)
def test_an_adapter_of_another_model_is_refused(
    tmp_path: Path, adapter: Path, seed: int, shape: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    """Of another one of the same shape too, since values are looked at."""
    other = llama(seed, **shape)
    other.save_pretrained(tmp_path / "other")
    config = HuggingFaceModel(
        path=str(tmp_path / "other"), adapter=AdapterConfig(**{"rank": 4, "initial": adapter, **settings})
    )
    with pytest.raises(ConfigError, match=message):
        with_adapter(llama(seed, **shape), config, "causal")


def test_an_adapter_without_a_checksum_goes_by_names(tmp_path: Path, adapter: Path) -> None:
    """As plain peft writes it, of a model that is not on this machine."""
    weights = safetensors.torch.load_file(adapter / "adapter_model.safetensors")
    safetensors.torch.save_file(weights, adapter / "adapter_model.safetensors")
    settings = json.loads((adapter / "adapter_config.json").read_text())
    config = HuggingFaceModel(path=str(tmp_path / "base"), adapter=AdapterConfig(rank=4, initial=adapter))
    for name, fits in (("org/base", True), ("org/other", False)):
        (adapter / "adapter_config.json").write_text(json.dumps({**settings, "base_model_name_or_path": name}))
        if fits:
            with_adapter(llama(), config, "causal")
            continue
        with pytest.raises(ConfigError, match="is of another model, org/other") as error:
            with_adapter(llama(), config, "causal")
        assert "write that name into its adapter_config.json" in error.value.fix


def test_full_rank_takes_full_fine_tunings_first_step(tmp_path: Path) -> None:
    """With A orthonormal and square, B zero and a scale of 1, SGD gives B -lr G A^T, so that B A is -lr G.

    That is the very step that SGD makes on the layer's own matrix: equal to rounding, in float64, on every layer.
    """
    llama().save_pretrained(tmp_path / "base")
    config = config_for(tmp_path / "base", targets=["q_proj", "up_proj"])
    config = config.model_copy(update={"adapter": AdapterConfig(rank=64, alpha=64, targets=["q_proj", "up_proj"])})
    full, model = llama().double(), with_adapter(llama(), config, "causal").double()
    for name, p in model.named_parameters():
        if ".lora_A." in name:
            nn.init.orthogonal_(p)
    for each in (full, model):
        each.train()(input_ids=IDS, labels=IDS).loss.backward()
        torch.optim.SGD([p for p in each.parameters() if p.requires_grad], lr=0.1).step()
    found, begun, expected = merged(model), llama().double().state_dict(), full.state_dict()
    for name in (name for name in expected if name.endswith(("q_proj.weight", "up_proj.weight"))):
        assert float((expected[name] - begun[name]).abs().max()) > 1e-5
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("quantise", "bytes_a_value"), [("nf4", 0.5625), ("int8", 1.0625)])
def test_quantised_weights_are_small_and_train_an_adapter(tmp_path: Path, quantise: str, bytes_a_value: float) -> None:
    llama().save_pretrained(tmp_path / "base")
    config = config_for(tmp_path / "base", quantise=quantise, targets=["q_proj"])
    model: Any = with_adapter(llama(), config, "causal")
    packed = [module for module in model.modules() if isinstance(module, PackedLinear)]
    assert len(packed) == 14
    size = sum(p.nbytes for layer in packed for p in layer.parameters())
    assert size == bytes_a_value * sum(layer.in_features * layer.out_features for layer in packed)
    torch.testing.assert_close(logits(model), logits(llama()), rtol=0, atol=0.2)
    plain = llama().train()
    plain.load_state_dict(merged(moved(model)))
    torch.testing.assert_close(logits(plain), logits(model), rtol=0, atol=1e-5)
    for each in (plain, model.train()):
        each(input_ids=IDS, labels=IDS).loss.backward()
    layer = "model.layers.0.self_attn.q_proj"
    a, b = (model.get_submodule(f"{layer}.lora_{part}.default").weight for part in "AB")
    gradient = plain.get_submodule(layer).weight.grad
    torch.testing.assert_close(b.grad, 2 * gradient @ a.T, rtol=1e-4, atol=1e-6)


def test_dropout_is_repeatable_and_noise_is_for_training(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path / "base")
    config = config_for(tmp_path / "base", dropout=0.5).model_copy(update={"embedding_noise": 5.0})
    model: Any = moved(with_adapter(llama(), config, "causal"))
    torch.testing.assert_close(logits(model), logits(model), rtol=0, atol=0)
    model.train()
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(model(input_ids=IDS).logits)
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    assert not torch.equal(found[0], found[2])


def test_noise_has_the_papers_size() -> None:
    """Uniform up to alpha over the root of the length times the width."""
    model = llama().train()
    add_embedding_noise(model, 5.0)
    table = model.get_input_embeddings()
    noise = table(IDS) - nn.functional.embedding(IDS, table.weight)
    largest = 5.0 / (IDS.shape[1] * 64) ** 0.5
    assert 0.9 * largest < float(noise.detach().abs().max()) <= largest
    table.eval()
    assert torch.equal(table(IDS), nn.functional.embedding(IDS, table.weight))


def test_a_base_is_known_by_shape_and_values(tmp_path: Path) -> None:
    for name, model in (("one", llama()), ("same", llama()), ("values", llama(1)), ("shape", llama(rms_norm_eps=1e-3))):
        model.save_pretrained(tmp_path / name)
    found = {name: base_identity(HuggingFaceModel(path=str(tmp_path / name))) for name in ("one", "values", "shape")}
    assert len({each["checksum"] for each in found.values()}) == 3
    assert base_identity(HuggingFaceModel(path=str(tmp_path / "same")))["checksum"] == found["one"]["checksum"]
    plain, model = llama(), with_adapter(llama(), config_for(tmp_path / "one"), "causal")
    lora = ["model.layers.0.self_attn.q_proj.lora_A.default.weight"]
    assert base_problem(model, found["one"], lora) is None
    assert base_problem(plain, None, ["lm_head.weight"]) is None
    for subject, base, names, words in (
        (model, found["values"], lora, "another base model"),
        (model, None, ["lm_head.weight"], "it holds a whole model"),
        (plain, found["one"], lora, "this model has none"),
    ):
        problem = base_problem(subject, base, names)
        assert problem is not None and words in problem[0]


def test_a_base_whose_layers_were_trained_in_between_is_another(tmp_path: Path) -> None:
    """Also where neither the first nor the last tensor of the file has moved."""
    model = llama(num_hidden_layers=3)
    model.save_pretrained(tmp_path / "one")
    with torch.no_grad():
        model.model.layers[1].mlp.gate_proj.weight += 0.5
    model.save_pretrained(tmp_path / "two")
    one, two = (base_identity(config_for(tmp_path / name))["checksum"] for name in ("one", "two"))
    assert one != two
    assert base_identity(config_for(tmp_path / "one"))["checksum"] == one


def test_what_is_trained_whole_beside_half_precision_is_float32(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    plain = llama().bfloat16().eval()
    expected = logits(plain)
    config = config_for(tmp_path, train_also=["input_layernorm", "embed_tokens"])
    model = with_adapter(llama().bfloat16(), config, "causal")
    trained = {p.dtype for p in model.parameters() if p.requires_grad}
    assert trained == {torch.float32}
    found = logits(model)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)


def test_without_its_matrices_it_computes_as_in_evaluation(tmp_path: Path) -> None:
    """A reference has no dropout."""
    gpt2().save_pretrained(tmp_path)
    model: Any = with_adapter(gpt2(), config_for(tmp_path), "causal").train()
    with torch.no_grad(), without_adapter(model):
        one, two = (model(input_ids=IDS).logits for _ in range(2))
    assert torch.equal(one, two)
    assert all(module.training for module in model.modules())


def test_packed_weights_that_come_from_elsewhere_are_merged(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    config = config_for(tmp_path, targets=["q_proj"], quantise="nf4")
    model = moved(with_adapter(llama(), config, "causal"))
    expected = merged(model)
    given = {name: value.clone() for name, value in model.state_dict().items()}
    found = merged(model.to("meta"), given)
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], msg=name)
