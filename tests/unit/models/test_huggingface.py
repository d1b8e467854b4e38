from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from drumline.config.model import HuggingFaceModel
from drumline.errors import ConfigError
from drumline.models.decoder import Decoder
from drumline.models.huggingface import Head, head_of, is_pretrained, learned_positions, load_model
from drumline.tasks.sequence_to_sequence import SequenceToSequence

TINY: dict[str, Any] = {"vocab_size": 40, "n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2}
IDS = torch.arange(12).reshape(2, 6)


def tiny_gpt2(**changes: Any) -> Any:
    return transformers.GPT2Config(**{**TINY, "bos_token_id": 38, "eos_token_id": 39, **changes})


def tiny_bart() -> Any:
    return transformers.BartConfig(
        vocab_size=40,
        d_model=8,
        decoder_layers=1,
        decoder_attention_heads=2,
        decoder_ffn_dim=8,
        max_position_embeddings=16,
    )


def tiny_bert() -> Any:
    return transformers.BertConfig(
        vocab_size=40,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        num_labels=3,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(tiny_gpt2()).save_pretrained(tmp_path)
    return tmp_path


def test_a_causal_model_comes_with_its_weights(folder: Path) -> None:
    model = load_model(HuggingFaceModel(path=str(folder)), "causal")
    torch.manual_seed(0)
    saved = transformers.GPT2LMHeadModel(tiny_gpt2())
    assert torch.equal(model.eval()(input_ids=IDS).logits, saved.eval()(input_ids=IDS).logits)


def test_it_is_ready_to_train(folder: Path) -> None:
    model: Any = load_model(HuggingFaceModel(path=str(folder)), "causal")
    assert model.training
    assert model.config.use_cache is False
    assert model.config._attn_implementation == "sdpa"


def test_weights_saved_in_bfloat16_are_trained_in_float32(folder: Path) -> None:
    transformers.GPT2LMHeadModel(tiny_gpt2()).bfloat16().save_pretrained(folder)
    for random in (False, True):
        model = load_model(HuggingFaceModel(path=str(folder), random_weights=random), "causal")
        assert {weight.dtype for weight in model.parameters()} == {torch.float32}


def test_random_weights_take_the_shape_and_the_seed_only(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    config = HuggingFaceModel(path=str(folder), random_weights=True)
    torch.manual_seed(5)
    first = load_model(config, "causal")
    torch.manual_seed(5)
    second = load_model(config, "causal")
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert first.training
    assert first.config.use_cache is False  # type: ignore[union-attr]


def test_a_classifier_gets_a_new_head_and_a_padding_token(folder: Path) -> None:
    model: Any = load_model(HuggingFaceModel(path=str(folder)), "sequence_classification", 5)
    assert (model.config.num_labels, model.config.pad_token_id) == (5, 39)
    assert model(input_ids=IDS).logits.shape == (2, 5)
    saved = transformers.GPT2LMHeadModel.from_pretrained(folder)
    assert torch.equal(model.transformer.wte.weight, saved.transformer.wte.weight)


def test_a_classifiers_head_is_replaced_only_for_another_number_of_labels(tmp_path: Path) -> None:
    saved = transformers.BertForSequenceClassification(tiny_bert())
    saved.save_pretrained(tmp_path)
    kept: Any = load_model(HuggingFaceModel(path=str(tmp_path)), "sequence_classification")
    assert torch.equal(kept.classifier.weight, saved.classifier.weight)
    replaced: Any = load_model(HuggingFaceModel(path=str(tmp_path)), "sequence_classification", 7)
    assert replaced.classifier.weight.shape == (7, 8)
    assert torch.equal(replaced.bert.pooler.dense.weight, saved.bert.pooler.dense.weight)


def test_a_body_without_pooling_layer_still_becomes_a_classifier(tmp_path: Path) -> None:
    saved = transformers.BertForMaskedLM(tiny_bert())
    saved.save_pretrained(tmp_path)
    model: Any = load_model(HuggingFaceModel(path=str(tmp_path)), "sequence_classification")
    words = "embeddings.word_embeddings.weight"
    assert torch.equal(model.bert.get_parameter(words), saved.bert.get_parameter(words))


def test_a_list_of_end_tokens_gives_its_first_as_padding(folder: Path) -> None:
    change_config(folder, eos_token_id=[37, 39])
    model: Any = load_model(HuggingFaceModel(path=str(folder), random_weights=True), "sequence_classification")
    assert model.config.pad_token_id == 37


def test_a_classifier_without_padding_and_end_token_is_refused(folder: Path) -> None:
    change_config(folder, eos_token_id=None)
    with pytest.raises(ConfigError, match="set pad_token_id"):
        load_model(HuggingFaceModel(path=str(folder), random_weights=True), "sequence_classification")


@pytest.mark.parametrize("name", ["absent", "."])
def test_a_folder_that_holds_no_model_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="no Hugging Face folder"):
        load_model(HuggingFaceModel(path=str(tmp_path / name)), "causal")


def test_a_folder_without_weights_is_refused_with_the_way_out(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"model\.random_weights"):
        load_model(HuggingFaceModel(path=str(folder)), "causal")


def test_a_file_cut_short_is_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(ConfigError, match="could not be loaded as causal"):
        load_model(HuggingFaceModel(path=str(folder)), "causal")


@pytest.mark.parametrize("head", ["causal", "sequence_classification", "embedding"])
def test_another_models_weights_are_never_replaced_by_random_ones(folder: Path, head: Any) -> None:
    change_config(folder, **tiny_bert().to_diff_dict())
    with pytest.raises(ConfigError, match="lacks"):
        load_model(HuggingFaceModel(path=str(folder)), head)


def tiny_t5(**changes: Any) -> Any:
    values = {"vocab_size": 40, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    return transformers.T5Config(**{**values, "decoder_start_token_id": 0, **changes})


def tiny_vit() -> Any:
    return transformers.ViTConfig(
        image_size=8, patch_size=4, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
    )


def test_a_sequence_to_sequence_model_makes_its_decoders_inputs(tmp_path: Path) -> None:
    transformers.T5ForConditionalGeneration(tiny_t5()).save_pretrained(tmp_path)
    model: Any = load_model(HuggingFaceModel(path=str(tmp_path)), "sequence_to_sequence").eval()
    assert model.config.use_cache is False
    labels = torch.tensor([[5, 6, 1], [7, 1, -100]])
    scores = SequenceToSequence(40).forward(model, {"input_ids": IDS, "labels": labels})
    assert torch.equal(scores, model(input_ids=IDS, labels=labels).logits)
    assert model.prepare_decoder_input_ids_from_labels(labels).tolist() == [[0, 5, 6], [0, 7, 1]]


def test_a_model_that_cannot_begin_a_target_is_refused(tmp_path: Path) -> None:
    transformers.T5ForConditionalGeneration(tiny_t5()).save_pretrained(tmp_path)
    change_config(tmp_path, decoder_start_token_id=None)
    with pytest.raises(ConfigError, match="what token a target begins with"):
        load_model(HuggingFaceModel(path=str(tmp_path)), "sequence_to_sequence")


def test_an_image_classifier_gets_a_new_head(tmp_path: Path) -> None:
    saved = transformers.ViTForImageClassification(tiny_vit())
    saved.save_pretrained(tmp_path)
    model: Any = load_model(HuggingFaceModel(path=str(tmp_path)), "image_classification", 5)
    assert model(pixel_values=torch.zeros(2, 3, 8, 8)).logits.shape == (2, 5)
    assert torch.equal(model.vit.embeddings.cls_token, saved.vit.embeddings.cls_token)


def test_a_masked_models_body_classifies_tokens(tmp_path: Path) -> None:
    saved = transformers.BertForMaskedLM(tiny_bert())
    saved.save_pretrained(tmp_path)
    masked: Any = load_model(HuggingFaceModel(path=str(tmp_path)), "masked")
    assert masked(input_ids=IDS).logits.shape == (2, 6, 40)
    model: Any = load_model(HuggingFaceModel(path=str(tmp_path)), "token_classification", 4)
    assert model(input_ids=IDS).logits.shape == (2, 6, 4)
    words = "embeddings.word_embeddings.weight"
    assert torch.equal(model.bert.get_parameter(words), saved.bert.get_parameter(words))


@pytest.mark.parametrize("kind", [transformers.BertModel, transformers.BertForMaskedLM])
def test_an_embedding_is_the_mean_over_what_is_no_padding(tmp_path: Path, kind: Any) -> None:
    kind(tiny_bert()).save_pretrained(tmp_path)
    model: Any = load_model(HuggingFaceModel(path=str(tmp_path)), "embedding")
    assert model.training and model.config.hidden_size == 8
    model.eval()
    short = model(IDS[:, :4])
    assert torch.allclose(short, model.body(input_ids=IDS[:, :4]).last_hidden_state.mean(1), atol=1e-6)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0]] * 2)
    assert torch.allclose(model(input_ids=IDS, attention_mask=mask), short, atol=1e-6)
    assert torch.equal(model(IDS[:1], mask[:1] * 0), torch.zeros(1, 8))
    model(IDS).sum().backward()
    # No part is left that a run would warn of as unused.
    assert all(p.grad is not None for p in model.parameters())


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


class Mine(transformers.GPT2LMHeadModel):  # type: ignore[misc]
    """A user's subclass whose name says nothing."""


@pytest.mark.parametrize(
    ("model", "head"),
    [
        (transformers.GPT2LMHeadModel(tiny_gpt2()), "causal"),
        (Mine(tiny_gpt2()), "causal"),
        (transformers.GPT2ForTokenClassification(tiny_gpt2()), "token_classification"),
        (transformers.GPT2ForSequenceClassification(tiny_gpt2()), "sequence_classification"),
        (transformers.BertForMaskedLM(tiny_bert()), "masked"),
        # Compares position by position, although its name says causal.
        (transformers.BartForCausalLM(tiny_bart()), None),
        (transformers.BertForQuestionAnswering(tiny_bert()), None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, nn.Module) else str(value),
)
def test_the_head_is_read_from_the_class(model: nn.Module, head: Head | None) -> None:
    assert is_pretrained(model)
    assert head_of(model) == head


def test_other_models_are_not_taken_for_transformers() -> None:
    assert not is_pretrained(nn.Linear(1, 1))
    assert not any(is_pretrained(thing) for thing in (Decoder, None, "PreTrainedModel"))


def test_learned_positions_are_told_from_rotary_ones() -> None:
    opt = transformers.OPTConfig(
        vocab_size=40,
        hidden_size=8,
        word_embed_proj_dim=8,
        ffn_dim=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=24,
    )
    llama = transformers.LlamaConfig(
        vocab_size=40,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=40,
    )
    assert learned_positions(transformers.GPT2LMHeadModel(tiny_gpt2())) == 16
    assert learned_positions(transformers.OPTForCausalLM(opt)) == 24
    assert learned_positions(transformers.LlamaForCausalLM(llama)) is None


def test_weights_may_be_kept_in_bfloat16(folder: Path) -> None:
    for random in (False, True):
        section = HuggingFaceModel(path=str(folder), weights="bfloat16", random_weights=random)
        model = load_model(section, "causal")
        assert {weight.dtype for weight in model.parameters()} == {torch.bfloat16}
    model = load_model(HuggingFaceModel(path=str(folder), weights="bfloat16"), "causal")
    saved = transformers.GPT2LMHeadModel.from_pretrained(folder)
    assert torch.equal(model.get_parameter("transformer.wte.weight"), saved.transformer.wte.weight.bfloat16())


@pytest.mark.parametrize("tied", [False, True])
def test_tied_weights_are_one_and_others_two(tmp_path: Path, tied: bool) -> None:
    transformers.GPT2LMHeadModel(tiny_gpt2(tie_word_embeddings=tied)).save_pretrained(tmp_path)
    for values in (False, True):
        model: Any = load_model(HuggingFaceModel(path=str(tmp_path)), "causal", values=values)
        assert (model.lm_head.weight is model.transformer.wte.weight) == tied


@pytest.mark.parametrize("head", ["causal", "sequence_classification", "embedding"])
def test_without_values_it_is_the_same_model_on_the_meta_device(folder: Path, head: Head) -> None:
    section = HuggingFaceModel(path=str(folder), weights="bfloat16")
    labels = 5 if head == "sequence_classification" else None
    full, empty = (load_model(section, head, labels, values=values) for values in (True, False))
    (folder / "model.safetensors").unlink()
    again = load_model(section, head, labels, values=False)
    assert type(again) is type(empty) is type(full)
    for given in (empty, again):
        assert all(each.is_meta for each in (*given.parameters(), *given.buffers()))
        assert [(name, p.shape, p.dtype) for name, p in given.named_parameters()] == [
            (name, p.shape, p.dtype) for name, p in full.named_parameters()
        ]
        assert [name for name, _ in given.named_buffers()] == [name for name, _ in full.named_buffers()]


@pytest.mark.parametrize(("asked", "given"), [("auto", "sdpa"), ("varlen", "sdpa"), ("eager", "eager")])
def test_the_kind_of_attention(folder: Path, asked: Any, given: str) -> None:
    model: Any = load_model(HuggingFaceModel(path=str(folder), attention=asked), "causal")
    assert model.config._attn_implementation == given


def test_a_kind_of_attention_that_cannot_be_had_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.attention flash_attention_2 .*not installed: FlashAttention"):
        load_model(HuggingFaceModel(path=str(folder), attention="flash_attention_2"), "causal")


def test_code_that_comes_with_a_model_runs_only_where_it_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    (tmp_path / "shape.py").write_text(
        "from transformers import GPT2Config\n\n\nclass MyConfig(GPT2Config):\n    model_type = 'my_gpt2'\n"
    )
    (tmp_path / "network.py").write_text(
        "from transformers import GPT2LMHeadModel\n\nfrom .shape import MyConfig\n\n\n"
        "class MyModel(GPT2LMHeadModel):\n    config_class = MyConfig\n    is_mine = True\n"
    )
    transformers.GPT2LMHeadModel(tiny_gpt2()).save_pretrained(tmp_path)
    change_config(
        tmp_path,
        model_type="my_gpt2",
        auto_map={"AutoConfig": "shape.MyConfig", "AutoModelForCausalLM": "network.MyModel"},
    )
    with pytest.raises(ConfigError, match=r"(?s)comes with code.*\n  fix: .*model\.trust_remote_code"):
        load_model(HuggingFaceModel(path=str(tmp_path)), "causal")
    model: Any = load_model(HuggingFaceModel(path=str(tmp_path), trust_remote_code=True), "causal")
    assert model.is_mine
