"""What is learned: one kind a class."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from drumline.config.section import Section


class LanguageModellingTask(Section):
    """Next-token prediction."""

    kind: Literal["language_modelling"] = "language_modelling"
    chunked_loss: bool | Literal["auto"] = Field(
        "auto",
        description="Compute logits and loss of some thousand tokens at a time, so that never all logits are in "
        "memory; for kinds decoder and huggingface. auto: for a Hugging Face model with 16,384 ids or more that allows "
        "it.",
    )


class ClassificationTask(Section):
    """One class a row, of a text or an image."""

    kind: Literal["classification"] = "classification"
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="Share of the target that is spread over all classes (Szegedy et al. 2016)."
    )


class MultiLabelTask(Section):
    """Any number of classes a row."""

    kind: Literal["multi_label"] = "multi_label"
    threshold: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.5, description="Probability from which on a class counts as predicted."
    )


class RegressionTask(Section):
    """One or several numbers a row."""

    kind: Literal["regression"] = "regression"
    error: Literal["squared", "absolute", "huber"] = Field("squared", description="What is made small.")


class TokenClassificationTask(Section):
    """One class a word of a row of words."""

    kind: Literal["token_classification"] = "token_classification"


class SequenceToSequenceTask(Section):
    """Text from text, by an encoder and a decoder."""

    kind: Literal["sequence_to_sequence"] = "sequence_to_sequence"


class ContrastiveTask(Section):
    """Pairs that belong together against all others of a micro-batch (van den Oord et al. 2018, InfoNCE)."""

    kind: Literal["contrastive"] = "contrastive"
    temperature: PositiveFloat = Field(0.05, description="Similarities are divided by it.")


class PreferenceTask(Section):
    """Of two answers to a prompt the better one, by direct preference optimisation (Rafailov et al. 2023)."""

    kind: Literal["preference"] = "preference"
    beta: PositiveFloat = Field(0.1, description="How strongly the model is held to the one that training began with.")
    label_smoothing: Annotated[float, Field(ge=0, lt=0.5)] = Field(
        0.0, description="Share of pairs that are taken to be the wrong way round (Chen et al. 2023)."
    )


TaskConfig = Annotated[
    LanguageModellingTask
    | PreferenceTask
    | ClassificationTask
    | MultiLabelTask
    | RegressionTask
    | TokenClassificationTask
    | SequenceToSequenceTask
    | ContrastiveTask,
    Field(discriminator="kind"),
]
