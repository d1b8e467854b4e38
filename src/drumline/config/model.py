"""Which model is trained: one kind a class. What it ends in follows from the task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from drumline.config.section import Section


class DecoderModel(Section):
    """The reference decoder, in GPT-2's or Llama's shape."""

    kind: Literal["decoder"] = "decoder"
    style: Literal["gpt2", "llama"] = Field(
        "gpt2", description="Layer norm, learned positions and GELU, or RMS norm, rotary positions and SwiGLU."
    )
    num_layers: PositiveInt = Field(4, description="Transformer blocks.")
    num_heads: PositiveInt = Field(4, description="Attention heads a block.")
    num_kv_heads: PositiveInt | None = Field(
        None, description="Key and value heads (grouped-query attention); none: as many as num_heads."
    )
    width: PositiveInt = Field(128, description="Size of the residual stream.")
    mlp_width: PositiveInt | None = Field(
        None, description="Hidden size of the MLP; none: 4 times width (gpt2), 8/3 of it rounded up to 64 (llama)."
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Dropout after embeddings, attention and MLP."
    )
    tie_embeddings: bool = Field(True, description="Use the token embedding as output matrix.")
    vocab_size: PositiveInt | None = Field(
        None, description="Rows of the embedding; none: the tokenizer's size rounded up to a multiple of 64."
    )


class AdapterConfig(Section):
    """Small matrices that are trained beside linear layers, whose own weights stay as they are (peft)."""

    kind: Literal["lora", "dora"] = Field(
        "lora", description="Low-rank updates (Hu et al. 2021), or those of direction and size apart (Liu et al. 2024)."
    )
    rank: PositiveInt = Field(16, description="Inner size of the two matrices of each layer.")
    alpha: PositiveFloat | None = Field(
        None, description="The update is scaled by alpha over rank; none: twice the rank."
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="Dropout before the first of the matrices.")
    targets: list[str] | Literal["all"] = Field(
        "all",
        description="Ends of the names of linear layers, as q_proj; all: every linear layer but the output layer.",
    )
    train_also: list[str] = Field(
        default=[], description="Ends of the names of modules that are trained whole, and kept with the adapter."
    )
    initial: Path | None = Field(
        None, description="Folder with an adapter that training goes on from, as peft or drumline export write it."
    )


class HuggingFaceModel(Section):
    """A Hugging Face model, with the head that the task needs."""

    kind: Literal["huggingface"] = "huggingface"
    path: str = Field(description="Folder with config.json and safetensors, or a name on the hub, as org/name.")
    revision: str | None = Field(None, description="Branch, tag or commit on the hub; none: its default.")
    cache_dir: Path | None = Field(None, description="Where what the hub gives is kept; none: Hugging Face's own.")
    token_variable: str = Field(
        "HF_TOKEN", description="Environment variable with the access token for the hub; a token never stands here."
    )
    trust_remote_code: bool = Field(
        False, description="Run Python code that comes with the model; never accepted from a service."
    )
    random_weights: bool = Field(False, description="Take the shape only and start from random weights.")
    weights: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="Type that trained weights are kept in; bfloat16 halves their memory and loses small updates.",
    )
    quantise: Literal["none", "nf4", "int8"] = Field(
        "none", description="Keep the weights beside an adapter in 4 bits (QLoRA, Dettmers et al. 2023) or 8."
    )
    attention: Literal["auto", "sdpa", "varlen", "flash_attention_2", "flex_attention", "eager"] = Field(
        "auto",
        description="How attention is computed. varlen: torch's own for packed texts, of causal models. auto: of "
        "varlen, sdpa and flash_attention_2 the fastest that is right for the model, measured at start on a GPU "
        "(with train.compile: whole not measured: the first); else eager.",
    )
    embedding_noise: NonNegativeFloat = Field(
        0.0, description="NEFTune's alpha (Jain et al. 2023): uniform noise on the embeddings while training; 0: none."
    )
    adapter: AdapterConfig | None = Field(None, description="None: the model's own weights are trained.")


class CnnModel(Section):
    """A small convolutional network for images, with BatchNorm."""

    kind: Literal["cnn"] = "cnn"
    width: PositiveInt = Field(16, description="Channels after the first stage; each further stage doubles them.")
    num_stages: PositiveInt = Field(3, description="Stages of two convolutions; each after the first halves the image.")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="Dropout before the last layer.")


class NgramModel(Section):
    """The mean of learned vectors of short runs of tokens, for texts; quick, and strong on little data."""

    kind: Literal["ngrams"] = "ngrams"
    width: PositiveInt = Field(64, description="Size of the vectors.")
    longest_run: PositiveInt = Field(5, description="Runs of one token up to so many count; with bytes: letters.")
    num_buckets: PositiveInt = Field(32768, description="Rows of the table that runs are hashed into.")
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="Dropout before the last layer.")


class PythonModel(Section):
    """Your own model, from a Python file that the command runs: never accepted from a service."""

    kind: Literal["python"] = "python"
    file: Path = Field(
        description="A file that defines make_model(config), and make_data, loss and make_optimizer as it likes; "
        "'recipes:' names the packed recipes folder."
    )


Model = Annotated[DecoderModel | HuggingFaceModel | CnnModel | NgramModel | PythonModel, Field(discriminator="kind")]
