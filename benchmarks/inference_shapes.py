"""Shapes of well-known models, whose weights are random, and folders that have such a shape and a tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from drumline.config.recipes import recipes_folder

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "[CLS]", "[SEP]", "[PAD]"]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def llama_8b(layers: int | None) -> Any:
    """Llama 3.1 8B's."""
    from transformers import LlamaConfig

    return LlamaConfig(
        **{"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": layers or 32},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192},
        **{"rope_theta": 500000.0, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0},
    )


def tiny(layers: int | None) -> Any:
    """A Llama for a look at whether all of it runs."""
    from transformers import LlamaConfig

    return LlamaConfig(
        **{"vocab_size": 4096, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": layers or 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048},
        **{"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0},
    )


def gpt_oss_20b(layers: int | None) -> Any:
    """gpt-oss-20b's: 24 layers of 32 experts, of which 4 are asked."""
    from transformers import GptOssConfig

    return GptOssConfig(
        **{"num_hidden_layers": layers or 24, "num_local_experts": 32, "num_experts_per_tok": 4, "vocab_size": 201088},
        **{"hidden_size": 2880, "intermediate_size": 2880, "head_dim": 64, "num_attention_heads": 64},
        **{"num_key_value_heads": 8, "sliding_window": 128, "pad_token_id": 5, "eos_token_id": 0},
    )


def tiny_gpt_oss(layers: int | None) -> Any:
    """The same kind, small."""
    from transformers import GptOssConfig

    return GptOssConfig(
        **{"num_hidden_layers": layers or 2, "num_local_experts": 4, "num_experts_per_tok": 2, "vocab_size": 4096},
        **{"hidden_size": 64, "intermediate_size": 64, "head_dim": 16, "num_attention_heads": 4},
        **{"num_key_value_heads": 2, "sliding_window": 128, "pad_token_id": 5, "eos_token_id": 0},
    )


def minilm(layers: int | None) -> Any:
    """all-MiniLM-L6-v2's."""
    from transformers import BertConfig

    return BertConfig(
        **{"vocab_size": 30522, "hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": layers or 6},
        **{"num_attention_heads": 12, "max_position_embeddings": 512, "pad_token_id": 5, "num_labels": 4},
    )


def tiny_encoder(layers: int | None) -> Any:
    """The same kind, small."""
    from transformers import BertConfig

    return BertConfig(
        **{"vocab_size": 4096, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": layers or 2},
        **{"num_attention_heads": 4, "max_position_embeddings": 512, "pad_token_id": 5, "num_labels": 4},
    )


SHAPES: dict[str, Callable[[int | None], Any]] = {
    function.__name__: function for function in (llama_8b, gpt_oss_20b, minilm, tiny, tiny_gpt_oss, tiny_encoder)
}


def save_folder(folder: Path, shape: Any) -> None:
    """config.json of the shape, and a byte-level tokenizer of 4,096 words with a chat template."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    chapters = sorted((recipes_folder() / "moby_dick").glob("chapter_*.txt"))
    tokenizer.train_from_iterator([chapter.read_text(encoding="utf-8") for chapter in chapters], trainer)
    is_encoder = shape.model_type == "bert"
    if is_encoder:
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 4), ("[CLS]", 3))
    whole = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", bos_token="<|im_start|>", pad_token="[PAD]"
    )
    whole.chat_template = CHATML
    folder.mkdir(parents=True, exist_ok=True)
    whole.save_pretrained(folder)
    kind = "BertModel" if is_encoder else f"{type(shape).__name__.removesuffix('Config')}ForCausalLM"
    shape.architectures = [kind]
    shape.save_pretrained(folder)
