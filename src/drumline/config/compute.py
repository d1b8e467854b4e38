"""How the model is computed, whatever the strategy: compiler, recomputation, number formats of products."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from drumline.config.section import Section

Compile = Literal["none", "whole", "blocks", "auto"]
Products = Literal["default", "float8", "float8_rowwise", "int8", "sparse_24"]


class CheckpointingConfig(Section):
    """Activation checkpointing (Chen et al. 2016): what the backward pass computes again instead of keeping it."""

    kind: Literal["none", "selective", "full", "budget"] = Field(
        "none",
        description="selective: in each block all but the outputs of products and attention, or every `every`th block "
        "whole; full: each block whole; budget: what is cheapest to compute again, with compile: whole.",
    )
    every: Annotated[int, Field(ge=2)] | None = Field(
        None, description="selective only: checkpoint every n-th block whole, and leave the others as they are."
    )
    budget: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.5, description="budget only: share of the activations' memory that may be kept."
    )


class LinearConfig(Section):
    """Number format of the products of linear layers, forward and backward; float8 and int8 by torchao."""

    products: Products = Field(
        "default",
        description="default: the run's precision; float8: one scale a tensor; float8_rowwise: one a row; int8: one a "
        "row; sparse_24: in the run's precision, with at most two of each four weights in a row and in a column, the "
        "largest; slower than with all of them on an H200. Checkpoints and exports hold all weights, as they are.",
    )
    skip: list[str] = Field(
        default=[],
        description="Names of layers that stay as they are, with * and ? as in file names; besides them the output "
        "layer, and layers whose sides are no multiple of 16 (sparse_24: 128).",
    )
