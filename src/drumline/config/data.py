"""What a run learns from: one kind a class, and how batches are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from drumline.config.section import Fraction, Section


class WeightedPaths(Section):
    """One of several sources, and how often an epoch goes through it."""

    paths: list[str] = Field(min_length=1, description="Files, globs or folders.")
    weight: PositiveFloat = Field(
        1.0,
        description="Passes an epoch makes: 2 reads each row twice, 0.5 one half in one epoch, the other in the next.",
    )


Paths = Annotated[list[str | WeightedPaths], Field(min_length=1)]

EvalFraction = Annotated[
    float,
    Field(
        ge=0,
        lt=1,
        description="Share of the rows that is held out where no held-out data is named, at most 2,000 rows, chosen by "
        "their content: the same each time, and equal rows on one side. 0: none.",
    ),
]

RowFormat = Literal["auto", "text", "chat", "prompt_completion", "preference"]


class TextColumns(Section):
    """Base of the kinds whose rows are read by name and hold text."""

    columns: dict[str, str] = Field(
        default={}, description="Names that the task asks for, and the data's own where they differ, as label: topic."
    )
    tokenizer: str | None = Field(None, description="As for kind text.")
    context: PositiveInt = Field(256, description="Most tokens of a text; what is longer is cut.")
    cache_dir: Path = Field(
        Path(".drumline/cache"), description="Where rows and their tokens are kept in a form that is quick to read."
    )
    row_format: RowFormat = Field(
        "auto",
        description="What a row of language_modelling is: text; messages with roles (chat); prompt and completion, of "
        "which the completion is learned; or prompt, chosen and rejected, for preference. auto: told from columns, "
        "with the reason.",
    )
    template: str | None = Field(
        None,
        description="How messages become text: a file with a Jinja chat template, or one of the packed ones: chatml, "
        "llama2, llama3, zephyr, gemma, phi3; none: the tokenizer's own. Prompt and completion that are plain texts "
        "become a chat where this is set; else one stands after the other.",
    )
    learn: Literal["last", "assistant", "all"] = Field(
        "assistant", description="Words of a chat that are learned: the assistant's last turn, all its turns, or all."
    )
    packing: Literal["auto", "packed", "none"] = Field(
        "auto",
        description="Several texts a row of `context` tokens, none of which sees another (language_modelling). auto: "
        "where the model's attention can keep them apart, and an epoch still has 8 updates: their size counts rows.",
    )
    eval_fraction: EvalFraction = 0.0
    group_by_length: bool | None = Field(
        None,
        description="Updates of texts of similar length, drawn anew each epoch. null: where texts are written and not "
        "packed (language_modelling), and for pairs of answers (preference). Other tasks group records, by their size "
        "in the file, where it is true: a text's length may say something of its label.",
    )
    check: bool = Field(
        True, description="Look through the rows before training: duplicates, empty and cut ones, labels, leakage."
    )


class TextData(Section):
    """Text files, tokenised once into a cache and packed into rows of `context` tokens."""

    kind: Literal["text"] = "text"
    train: Paths = Field(description="Files or globs; 'recipes:' names the packed recipes folder.")
    eval: list[str] = Field(default=[], description="Files or globs of held-out text.")
    eval_fraction: EvalFraction = 0.0
    tokenizer: str | None = Field(
        None,
        description="'byte', a folder with a Hugging Face tokenizer (tokenizer.json, vocab.json and merges.txt, "
        "vocab.txt, or a SentencePiece model), or a name on the hub; none: the Hugging Face model's own, else bytes.",
    )
    context: PositiveInt = Field(256, description="Tokens a row.")
    cache_dir: Path = Field(
        Path(".drumline/cache"), description="Where tokenised text is kept, keyed by content and tokenizer."
    )


class RecordData(TextColumns):
    """Rows with named columns from JSON, JSONL, CSV and Parquet files."""

    kind: Literal["records"] = "records"
    train: Paths = Field(description="Files or globs; .json, .jsonl, .ndjson, .csv, .tsv or .parquet.")
    eval: list[str] = Field(default=[], description="Files or globs of held-out rows.")
    bad_rows: Literal["set_aside", "stop"] = Field(
        "set_aside", description="A row that cannot be read is counted and written aside, or ends the run at start."
    )
    max_bad_fraction: Fraction = Field(0.05, description="Share of bad rows from which on the files must be wrong.")


class TextFolders(TextColumns):
    """Text files in one folder a class; the class is the folder's name."""

    kind: Literal["text_folders"] = "text_folders"
    train: Paths = Field(description="Folders, each with one folder a class.")
    eval: list[str] = Field(default=[], description="The same for held-out texts.")


class ImageFolders(Section):
    """Images in one folder a class; the class is the folder's name."""

    kind: Literal["image_folders"] = "image_folders"
    train: Paths = Field(description="Folders, each with one folder a class.")
    eval: list[str] = Field(default=[], description="The same for held-out images.")
    size: PositiveInt = Field(32, description="Pixels of a side; images are scaled to it and cut square.")
    channels: Literal[1, 3] = Field(3, description="1 reads grey values, 3 colours.")
    mean: list[float] = Field(default=[0.5], description="Subtracted from values in [0, 1]; one, or one a channel.")
    std: list[PositiveFloat] = Field(default=[0.5], description="Divided by, after that; one, or one a channel.")
    flip: bool = Field(False, description="Mirror half of the training images, drawn anew each epoch.")
    shift: NonNegativeInt = Field(0, description="Move training images by up to so many pixels, drawn anew each epoch.")


class HuggingFaceData(TextColumns):
    """A data set that the package datasets reads."""

    kind: Literal["datasets"] = "datasets"
    path: str = Field(description="Folder written by save_to_disk, folder with data files, or a name on the hub.")
    subset: str | None = Field(None, description="Configuration of the data set, where it has several.")
    train_split: str = Field("train", description="Split to train on.")
    eval_split: str | None = Field(None, description="Held-out split.")
    streaming: bool = Field(False, description="Read rows as they come rather than at any place.")
    size: PositiveInt = Field(32, description="Images only, as for image_folders.")
    channels: Literal[1, 3] = Field(3, description="Images only, as for image_folders.")


class RandomTokens(Section):
    """Random token rows, for speed and for tests of a recipe; nothing can be learned from them."""

    kind: Literal["random_tokens"] = "random_tokens"
    num_rows: PositiveInt = Field(8192, description="Rows an epoch.")
    num_eval_rows: NonNegativeInt = Field(0, description="Rows of the evaluation set.")
    vocab_size: PositiveInt = Field(50257, description="Ids are drawn from [0, vocab_size).")
    context: PositiveInt = Field(1024, description="Tokens a row.")


Data = Annotated[
    TextData | RecordData | TextFolders | ImageFolders | HuggingFaceData | RandomTokens, Field(discriminator="kind")
]


class LoaderSettings(Section):
    """How batches are read."""

    num_workers: NonNegativeInt | None = Field(None, description="Loader processes a rank; none: from cores and ranks.")
    prefetch_factor: PositiveInt = Field(4, description="Batches that each loader process keeps ready.")
    pin_memory: bool = Field(True, description="Copy to a GPU through page-locked memory; no effect on CPU.")
    persistent_workers: bool = Field(True, description="Keep loader processes from one epoch to the next.")
