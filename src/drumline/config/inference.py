"""What a prediction run is: model, rows, task, and where the answers go."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from drumline.config.schema import HardwareConfig
from drumline.config.section import Fraction, Section


class InferenceModel(Section):
    """Which model answers."""

    path: str = Field(
        description="Folder with config.json and safetensors or with an adapter, run directory, or a name on the hub."
    )
    step: NonNegativeInt | Literal["best"] | None = Field(
        None,
        description="Of a run directory: the checkpoint after this update, or best by its checkpoint.metric; none: the "
        "newest.",
    )
    revision: str | None = Field(None, description="Branch, tag or commit on the hub; none: its default.")
    cache_dir: Path | None = Field(None, description="Where what the hub gives is kept; none: Hugging Face's own.")
    token_variable: str = Field(
        "HF_TOKEN", description="Environment variable with the access token for the hub; a token never stands here."
    )
    trust_remote_code: bool = Field(
        False, description="Run Python code that comes with the model; never accepted from a service."
    )
    random_weights: bool = Field(False, description="Take the shape only, with random weights: for measurements.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="Type to compute in. auto: bfloat16 on a GPU that computes with it, else float32."
    )
    quantise: Literal["none", "nf4", "int8"] = Field("none", description="Load the weights in 4 or 8 bits.")
    attention: Literal["auto", "sdpa", "flash_attention_2", "eager"] = Field(
        "auto", description="How attention is computed; auto: as transformers chooses for the model."
    )


class SplitConfig(Section):
    """A model over several GPUs of one machine, of which a machine with more GPUs holds several replicas."""

    gpus: PositiveInt | Literal["auto"] = Field(
        "auto", description="GPUs of one replica; auto: as few as hold the model, of 1, 2, 4, 8."
    )
    kind: Literal["layers", "tensor"] = Field(
        "layers",
        description="layers: each GPU has some of the layers, balanced by their measured cost; tensor: each has a part "
        "of every layer, where the model has a plan for it.",
    )
    device_map: dict[str, int] | None = Field(
        None, description="By hand: beginnings of module names, and the GPU of the replica (from 0) that holds them."
    )


class RowsConfig(Section):
    """Which rows are answered."""

    files: list[str] = Field(
        min_length=1,
        description="Files with rows (.jsonl, .json, .csv, .tsv, .parquet, also .gz; .txt: a row a line), or a folder "
        "of them or of images; patterns as *.jsonl are allowed.",
    )
    limit: PositiveInt | None = Field(None, description="Only the first so many rows; none: all.")
    id: str | None = Field(
        None, description="Column that names a row, which no other row may have; none: rows are told by their place."
    )
    text: str = Field("text", description="Column with the text, for tasks without a prompt.")
    text_pair: str | None = Field(None, description="Column with a second text, for classifiers of pairs.")
    label: str | None = Field(
        None, description="Column with the right answer, for confusion and F1 in the report; it is never shown a model."
    )
    image_roots: list[Path] | None = Field(
        None, description="Only images below these folders are read, links followed; none: any that a row names."
    )


class PromptConfig(Section):
    """What the model is asked, of a row."""

    strategy: str | None = Field(
        None,
        description="A named prompt, or a YAML file with one (system, prompt, labels); what is set beside it wins.",
    )
    prompt: str | None = Field(
        None, description="Text with row fields in braces, as 'Is this about cats? {text}'; {{ and }} are braces."
    )
    system: str | None = Field(None, description="System message, with row fields too; for models with a template.")
    messages: str | None = Field(None, description="Column with a whole chat, instead of prompt and system.")
    template: str | None = Field(None, description="Chat template: a packed one or a file; none: the tokenizer's own.")
    raw: bool = Field(False, description="Go on from the prompt as it stands, without a chat template.")


class GenerateTask(Section):
    """An answer in words."""

    kind: Literal["generate"] = "generate"
    prompt: PromptConfig = PromptConfig()
    max_new_tokens: PositiveInt = Field(256, description="Most tokens of an answer.")
    temperature: NonNegativeFloat = Field(0.0, description="0: always the likeliest token.")
    top_p: Fraction = Field(1.0, description="Draw from the likeliest tokens that have this share (nucleus).")
    top_k: PositiveInt | None = Field(None, description="Draw from so many of the likeliest tokens; none: all.")
    repetition_penalty: PositiveFloat = Field(
        1.0, description="Divides scores of tokens that stand there already (Keskar et al. 2019); 1: none."
    )
    stop: list[str] = Field(default=[], description="Texts at which an answer ends; they are cut off.")
    engine: Literal["auto", "padded", "static", "continuous", "vllm"] = Field(
        "auto",
        description="padded: batches with a growing cache; static: a cache of fixed size, with CUDA graphs on a GPU; "
        "continuous: transformers' continuous batching; vllm: where it is installed (unverified). auto: padded on a "
        "CPU, else the fastest by measurement at start.",
    )


class ChooseTask(Section):
    """One of given labels, by how likely the model finds each as the answer."""

    kind: Literal["choose"] = "choose"
    prompt: PromptConfig = PromptConfig()
    labels: list[str] = Field(default=[], description="What may be answered; none: the strategy's.")
    score: Literal["sum", "mean"] = Field(
        "sum", description="Log-likelihood of a label: over its tokens, or a token, which favours long labels less."
    )


class ClassifyTask(Section):
    """A class a row, of a text or an image, by a model with a classifier."""

    kind: Literal["classify"] = "classify"
    context: PositiveInt | None = Field(None, description="Most tokens of a row; none: what the model takes.")
    too_long: Literal["error", "cut"] = Field("error", description="What becomes of longer rows.")
    threshold: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.5, description="Of models with several classes a row: probability from which on one counts."
    )


class TokenClassifyTask(Section):
    """A class a word of a text, or of a list of words."""

    kind: Literal["token_classify"] = "token_classify"
    context: PositiveInt | None = Field(None, description="Most tokens of a row; none: what the model takes.")
    too_long: Literal["error", "cut"] = Field("error", description="What becomes of longer rows.")


class EmbedTask(Section):
    """One vector a row."""

    kind: Literal["embed"] = "embed"
    pooling: Literal["mean", "cls", "last"] = Field(
        "mean", description="mean of all tokens, the first one, or the last one (decoders)."
    )
    normalise: bool = Field(True, description="Give vectors of length 1.")
    context: PositiveInt | None = Field(None, description="Most tokens of a row; none: what the model takes.")
    too_long: Literal["error", "cut"] = Field("error", description="What becomes of longer rows.")


class ScoreTask(Section):
    """How likely a causal model finds a text."""

    kind: Literal["score"] = "score"
    context: PositiveInt | None = Field(None, description="Most tokens of a row; none: what the model takes.")
    too_long: Literal["error", "cut"] = Field("error", description="What becomes of longer rows.")


InferenceTask = Annotated[
    GenerateTask | ChooseTask | ClassifyTask | TokenClassifyTask | EmbedTask | ScoreTask, Field(discriminator="kind")
]


class BatchingConfig(Section):
    """How rows are put together; planned once, and kept for the whole run."""

    tokens: PositiveInt | Literal["auto"] = Field(
        "auto",
        description="Most tokens of a batch, padding and new tokens counted; auto: found by trial on a GPU, 4096 on a "
        "CPU. It stands in the ledger, so that a resumed run has the same batches.",
    )
    rows: PositiveInt = Field(256, description="Most rows of a batch.")
    window: PositiveInt = Field(4096, description="Rows that are sorted by length together.")


class OutputConfig(Section):
    """Where the answers go."""

    file: Path = Field(description="File to make: .jsonl, .csv or .parquet. It appears when all rows are answered.")
    prefix: str = Field(
        "",
        max_length=64,
        description="Put before the names of the columns that are added, where the rows have such names already.",
    )


class InferenceConfig(Section):
    """A prediction run: a data set in, one answer a row out."""

    model: InferenceModel
    rows: RowsConfig
    output: OutputConfig
    task: InferenceTask = GenerateTask()
    batching: BatchingConfig = BatchingConfig()
    split: SplitConfig | None = Field(None, description="Spread a model over several GPUs; none: one GPU holds it.")
    hardware: HardwareConfig = HardwareConfig()
    run_dir: Path | None = Field(
        None, description="Directory with the ledger, which all machines must see; none: <output file>.run."
    )
    seed: NonNegativeInt = Field(0, description="With a row's place it decides what is drawn for that row.")
    max_deaths: PositiveInt = Field(
        3, description="Workers that may die at a batch before its rows are tried in parts, to find the one."
    )
    max_restarts: NonNegativeInt = Field(
        100,
        description="Workers that are started again after one has died, over the whole run of one machine. Not counted "
        "are those after deaths that brought something new: batches done meanwhile, or more known of the row at fault.",
    )
    hang_timeout_s: PositiveFloat = Field(
        1800, description="How long a worker may be at one batch before it is ended and another takes its place."
    )

    @property
    def directory(self) -> Path:
        """Where the run keeps its ledger."""
        return self.run_dir or self.output.file.with_name(f"{self.output.file.name}.run")
