"""The model and the task of a recipe, made to fit its data."""

from __future__ import annotations

import logging
from typing import Any

from torch import nn

from drumline.build.preference import preference_for
from drumline.build.rows import Loaded
from drumline.config.model import CnnModel, DecoderModel, HuggingFaceModel, NgramModel
from drumline.config.schema import RunConfig
from drumline.config.task import (
    ClassificationTask,
    ContrastiveTask,
    LanguageModellingTask,
    MultiLabelTask,
    PreferenceTask,
    RegressionTask,
)
from drumline.data.schema import told_names
from drumline.data.tokenizers import ByteTokenizer, Tokenizer, extends, has_tokenizer, load_tokenizer
from drumline.errors import ConfigError
from drumline.models.causal_head import choose_chunked
from drumline.models.cnn import Cnn
from drumline.models.decoder import Decoder, decoder_from_config
from drumline.models.hub import find_folder, hub_of
from drumline.models.huggingface import Head, is_pretrained, learned_positions, load_model, text_config
from drumline.models.ngrams import Ngrams
from drumline.models.vocabulary import grow_embeddings, untrained
from drumline.parallel.groups import started_world
from drumline.parallel.strategy import Task
from drumline.tasks.classification import Classification
from drumline.tasks.contrastive import Contrastive
from drumline.tasks.language_modelling import LanguageModelling
from drumline.tasks.multi_label import MultiLabel
from drumline.tasks.regression import Regression
from drumline.tasks.sequence_to_sequence import SequenceToSequence
from drumline.tasks.token_classification import TokenClassification

logger = logging.getLogger("drumline.build")

_HEADS: dict[str, Head] = {
    "language_modelling": "causal",
    "preference": "causal",
    "token_classification": "token_classification",
    "sequence_to_sequence": "sequence_to_sequence",
    "contrastive": "embedding",
}
_PROBLEMS = {
    "classification": "single_label_classification",
    "multi_label": "multi_label_classification",
    "regression": "regression",
}


def make_model(config: RunConfig, loaded: Loaded) -> nn.Module:
    """The model of a catalogue kind for these rows; random weights depend on torch's stream alone.

    Raises ConfigError for a combination of model, task and data that is none.
    """
    model, facts = config.model, loaded.facts
    if isinstance(model, HuggingFaceModel):
        return load_pretrained(config, model, loaded)
    if isinstance(model, CnnModel):
        if loaded.reads != "image" or facts.num_outputs is None:
            raise ConfigError(
                "model.kind cnn reads images, and the data has texts", "set model.kind to ngrams or huggingface"
            )
        return Cnn(facts.channels or 3, facts.num_outputs, model.width, model.num_stages, model.dropout)
    if loaded.reads == "image":
        raise ConfigError(
            f"model.kind {model.kind} reads texts, and the data has images", "set model.kind to cnn or huggingface"
        )
    assert facts.vocab_size is not None and facts.context is not None
    if isinstance(model, DecoderModel):
        return decoder_from_config(model, facts.vocab_size, facts.context)
    assert isinstance(model, NgramModel)
    return Ngrams(
        facts.num_outputs,
        width=model.width,
        longest_run=model.longest_run,
        num_buckets=model.num_buckets,
        dropout=model.dropout,
    )


def load_pretrained(config: RunConfig, model: HuggingFaceModel, loaded: Loaded) -> nn.Module:
    """A Hugging Face model with the head that the task needs, whose configuration names the classes."""
    task, facts = config.task.kind, loaded.facts
    head = _HEADS.get(task, "image_classification" if loaded.reads == "image" else "sequence_classification")
    if loaded.reads == "image" and head != "image_classification":
        raise ConfigError(f"{task} needs texts, and the data has images", "set task.kind to classification")
    module = load_model(model, head, facts.num_outputs, values=has_values(model, started_world().rank))
    settings: Any = module.config
    if facts.classes is not None:
        settings.id2label = dict(enumerate(facts.classes))
        settings.label2id = {name: number for number, name in enumerate(facts.classes)}
    if task in _PROBLEMS:
        settings.problem_type = _PROBLEMS[task]
    if loaded.reads == "image":
        check_images(module, loaded)
    else:
        check_texts(module, model, loaded)
        grow(module, model, loaded)
    if model.adapter is None and model.quantise == "none" and not model.embedding_noise:
        return module
    from drumline.models.adapters import with_adapter  # peft takes a second that other runs need not wait

    return with_adapter(module, model, head)


def has_values(model: HuggingFaceModel, rank: int) -> bool:
    """Whether this rank reads the weights, rather than be given them by rank 0 when the model is spread.

    Each reads what it must change by itself (quantised weights), and what runs code that may not know of torch's meta
    device.
    """
    return rank == 0 or model.quantise != "none" or model.trust_remote_code


def grow(module: nn.Module, model: HuggingFaceModel, loaded: Loaded) -> None:
    """Make room for the ids that the tokenizer has and the model has not.

    Raises ConfigError where that cannot be meant: for another model's tokenizer, or rows that an adapter would freeze.
    """
    body, facts = getattr(module, "body", module), loaded.facts
    vocab_size = int(text_config(module).vocab_size)
    meant = is_meant(model, loaded.tokenizer)
    if facts.vocab_size is None or facts.vocab_size <= vocab_size:
        if not meant and loaded.tokenizer is not None:
            logger.warning(
                "data.tokenizer is not that of the model in %s, whose weights take its ids for other tokens", model.path
            )
        return
    if not meant:
        raise ConfigError(
            f"the rows have {facts.vocab_size} ids, the model in {model.path} takes {vocab_size}, and their tokenizer "
            "is not its own with more tokens",
            "leave data.tokenizer out, or set it to a tokenizer that was made by adding tokens to the model's own",
        )
    if model.adapter is not None and (names := untrained(body, model.adapter.train_also)):
        raise ConfigError(
            f"the rows have {facts.vocab_size} ids, the model in {model.path} takes {vocab_size}: the new rows of "
            f"{' and '.join(names)} would never be trained beside an adapter",
            f"add to model.adapter.train_also: [{', '.join(name.rpartition('.')[2] for name in names)}]",
        )
    grow_embeddings(body, facts.vocab_size)


def is_meant(model: HuggingFaceModel, tokenizer: Tokenizer | None) -> bool:
    """Whether a model may grow for this tokenizer: to its weights another model's ids would mean other tokens."""
    if model.random_weights:
        return True
    if tokenizer is None or isinstance(tokenizer, ByteTokenizer):
        return False
    folder = find_folder(model, weights=False)
    if getattr(tokenizer, "folder", None) == folder or not has_tokenizer(folder):
        return True  # where the model has none, it is the only one that there is
    return extends(tokenizer, load_tokenizer(model.path, hub_of(model)))


def check_texts(module: nn.Module, model: HuggingFaceModel, loaded: Loaded) -> None:
    """Raise ConfigError where the rows' length is beyond what the model has positions for."""
    facts = loaded.facts
    assert facts.vocab_size is not None and facts.context is not None
    longest = longest_row(module)
    if longest is not None and facts.context > longest:
        raise ConfigError(
            f"data.context is {facts.context}, the model in {model.path} has {longest} positions",
            f"set data.context to {longest} or less",
        )


def longest_row(module: nn.Module) -> int | None:
    """Most tokens that a Hugging Face model with learned positions takes; None where nothing limits them."""
    body: Any = getattr(module, "body", module)
    limit = learned_positions(body)
    for table in body.modules():
        # RoBERTa counts positions from the one after its padding id.
        if isinstance(table, nn.Embedding) and table.num_embeddings == limit and table.padding_idx is not None:
            return limit if table is body.get_input_embeddings() else limit - table.padding_idx - 1
    return limit


def check_images(module: nn.Module, loaded: Loaded) -> None:
    """Raise ConfigError where the model takes images of another size or another number of channels."""
    settings: Any = module.config
    for name, given, key in (
        ("image_size", loaded.facts.size, "size"),
        ("num_channels", loaded.facts.channels, "channels"),
    ):
        wanted = getattr(settings, name, None)
        if isinstance(wanted, int) and wanted != given:
            raise ConfigError(f"data.{key} is {given}, the model takes {wanted}", f"set data.{key} to {wanted}")


def make_task(config: RunConfig, loaded: Loaded, model: nn.Module) -> Task:
    """The task of a recipe for these rows and this model."""
    task, outputs = config.task, loaded.facts.num_outputs
    if isinstance(task, ContrastiveTask):
        return Contrastive(task.temperature)
    if isinstance(task, PreferenceTask):
        return preference_for(config, task, model)
    if task.kind in ("language_modelling", "sequence_to_sequence"):
        vocab_size = num_ids(model, loaded)
        if isinstance(task, LanguageModellingTask):
            chunked = choose_chunked(task.chunked_loss, model)
            # Of plain text nobody expects to see every token foretold.
            answers = loaded.form is not None and loaded.form.kind != "text"
            return LanguageModelling(vocab_size, chunked_loss=chunked, exact_match=answers)
        return SequenceToSequence(vocab_size)
    assert outputs is not None
    names = told_names(loaded.facts.classes or ())  # they go into metrics
    if isinstance(task, ClassificationTask):
        return Classification(outputs, task.label_smoothing, names)
    if isinstance(task, MultiLabelTask):
        return MultiLabel(outputs, task.threshold, names)
    if isinstance(task, RegressionTask):
        return Regression(task.error, outputs)
    return TokenClassification(outputs, names)


def num_ids(model: nn.Module, loaded: Loaded) -> int:
    """How many ids the model takes, else how many the tokenizer gives."""
    if isinstance(model, Decoder):
        return model.shape.vocab_size
    if is_pretrained(model):
        return int(text_config(model).vocab_size)
    assert loaded.facts.vocab_size is not None
    return loaded.facts.vocab_size
