"""Hugging Face folders of tiny models with random weights and a real tokenizer, made on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from drumline.config.recipes import recipes_folder

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "[CLS]", "[SEP]", "[PAD]")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VOCAB_SIZE = 320


def save_tokenizer(folder: Path) -> Any:
    """Byte-level BPE trained on one chapter, with a ChatML template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([(recipes_folder() / "moby_dick/chapter_1.txt").read_text(encoding="utf-8")], trainer)
    whole = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", bos_token="<|im_start|>", pad_token="[PAD]"
    )
    whole.chat_template = CHATML
    whole.save_pretrained(folder)
    return whole


def save_llama(folder: Path, **settings: Any) -> Path:
    """A causal model of two layers, with its tokenizer."""
    tokenizer = save_tokenizer(folder)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        **{
            **{"vocab_size": VOCAB_SIZE, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2},
            **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512},
            **{"eos_token_id": tokenizer.eos_token_id, "bos_token_id": tokenizer.bos_token_id},
            **{"pad_token_id": tokenizer.pad_token_id, **settings},
        }
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def save_bert(folder: Path) -> Path:
    """An encoder of two layers, with its tokenizer."""
    tokenizer = save_tokenizer(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=128,
        pad_token_id=tokenizer.pad_token_id,
    )
    transformers.BertModel(config).save_pretrained(folder)
    return folder
