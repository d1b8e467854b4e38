"""Which model is trained: one kind a class. What it ends in follows from the task."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

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


class HuggingFaceModel(Section):
    """A model from a local Hugging Face folder, with the head that the task needs."""

    kind: Literal["huggingface"] = "huggingface"
    path: Path = Field(description="Folder with config.json and safetensors.")
    random_weights: bool = Field(False, description="Take the shape only and start from random weights.")


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
