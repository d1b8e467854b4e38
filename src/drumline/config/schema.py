"""The one schema of a run, for YAML, --set, Python and REST. Every setting exists once, here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from drumline.config.parallel import AutoParallel, Parallel

Fraction = Annotated[float, Field(gt=0, le=1)]
Precision = Literal["auto", "fp32", "tf32", "bf16", "fp16"]


class Section(BaseModel):
    """Base of all sections: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=(), allow_inf_nan=False)


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
    """A model from a local Hugging Face folder."""

    kind: Literal["huggingface"] = "huggingface"
    path: Path = Field(description="Folder with config.json and safetensors.")
    head: Literal["causal", "sequence_classification"] = Field("causal", description="What the model is loaded for.")
    num_labels: PositiveInt | None = Field(
        None, description="Classes of sequence_classification; none: the folder's own."
    )
    random_weights: bool = Field(False, description="Take the shape only and start from random weights.")


Model = Annotated[DecoderModel | HuggingFaceModel, Field(discriminator="kind")]


class LoaderSettings(Section):
    """How batches are read."""

    num_workers: NonNegativeInt | None = Field(None, description="Loader processes a rank; none: from cores and ranks.")
    prefetch_factor: PositiveInt = Field(4, description="Batches that each loader process keeps ready.")
    pin_memory: bool = Field(True, description="Copy to a GPU through page-locked memory; no effect on CPU.")
    persistent_workers: bool = Field(True, description="Keep loader processes from one epoch to the next.")


class TextData(Section):
    """Text files, tokenised once into a cache and packed into rows of `context` tokens."""

    kind: Literal["text"] = "text"
    train: list[str] = Field(min_length=1, description="Files or globs; 'recipes:' names the packed recipes folder.")
    eval: list[str] = Field(default=[], description="Files or globs of held-out text.")
    tokenizer: str = Field(
        "byte",
        description="'byte', or a folder with a Hugging Face tokenizer (tokenizer.json, or vocab.json and merges.txt).",
    )
    context: PositiveInt = Field(256, description="Tokens a row.")
    cache_dir: Path = Field(
        Path(".drumline/cache"), description="Where tokenised text is kept, keyed by content and tokenizer."
    )


class RandomTokens(Section):
    """Random token rows, for speed and for tests of a recipe; nothing can be learned from them."""

    kind: Literal["random_tokens"] = "random_tokens"
    num_rows: PositiveInt = Field(8192, description="Rows an epoch.")
    num_eval_rows: NonNegativeInt = Field(0, description="Rows of the evaluation set.")
    vocab_size: PositiveInt = Field(50257, description="Ids are drawn from [0, vocab_size).")
    context: PositiveInt = Field(1024, description="Tokens a row.")


Data = Annotated[TextData | RandomTokens, Field(discriminator="kind")]


class TaskConfig(Section):
    """What is learned."""

    kind: Literal["language_modelling"] = Field("language_modelling", description="Next-token prediction.")


class OptimizerConfig(Section):
    """AdamW (Loshchilov and Hutter 2019) or SGD, fused where the device has it."""

    name: Literal["adamw", "sgd"] = Field("adamw", description="Which optimizer.")
    betas: tuple[float, float] = Field((0.9, 0.95), description="AdamW's decay rates of the two moments.")
    eps: PositiveFloat = Field(1e-8, description="AdamW's denominator term.")
    momentum: NonNegativeFloat = Field(0.0, description="SGD's momentum.")
    weight_decay: NonNegativeFloat = Field(0.1, description="Decoupled (AdamW) or L2 (SGD) decay.")


class ScheduleConfig(Section):
    """Learning rate over completed updates: warm-up from zero, then one of four shapes."""

    name: Literal["constant", "linear", "cosine", "wsd"] = Field(
        "cosine", description="wsd: warm-up, stable, then linear decay over the last part."
    )
    warmup_steps: NonNegativeInt = Field(0, description="Updates of linear warm-up.")
    final_fraction: Annotated[float, Field(ge=0, le=1)] = Field(0.1, description="Rate at the end, as a share of lr.")
    decay_fraction: Fraction = Field(0.2, description="wsd only: share of the updates that decay.")


class TrainConfig(Section):
    """Batch, length, optimizer, precision: everything about the updates."""

    global_batch: PositiveInt | None = Field(None, description="Samples an update, over everything.")
    micro_batch: PositiveInt | Literal["auto"] = Field(
        "auto", description="Samples a forward pass and shard; auto: the shard's whole share."
    )
    batch_size_per_gpu: PositiveInt | None = Field(
        None, description="Instead of global_batch, with gradient_accumulation_steps."
    )
    gradient_accumulation_steps: PositiveInt | None = Field(None, description="Goes with batch_size_per_gpu; none: 1.")
    epochs: PositiveInt | None = Field(
        None, description="Passes over the data; this or max_steps (both: whichever ends first)."
    )
    max_steps: PositiveInt | None = Field(None, description="Completed updates.")
    lr: PositiveFloat = Field(3e-4, description="Peak learning rate.")
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    precision: Precision = Field("auto", description="auto: bf16 from Ampere on, fp16 before it, fp32 on CPU.")
    max_norm: PositiveFloat | None = Field(1.0, description="Clip the global gradient norm to this; none: no clipping.")
    compile: bool = Field(False, description="Compile model and loss with torch.compile.")
    non_finite: Literal["stop", "skip"] = Field(
        "stop", description="A NaN or infinite gradient ends the run, or skips the update."
    )
    max_skipped: PositiveInt = Field(
        10, description="Skipped updates in a row after which the run stops (non_finite: skip, and fp16)."
    )
    shuffle: bool = Field(True, description="Draw a new order each epoch from seed and epoch.")


class EarlyStopping(Section):
    """Stop when an evaluation metric no longer gets better."""

    metric: str = Field("loss", description="Name of an evaluation metric.")
    mode: Literal["min", "max"] = Field("min", description="Which way is better.")
    patience: PositiveInt = Field(3, description="Evaluations without a better value before the run stops.")
    min_delta: NonNegativeFloat = Field(0.0, description="Smallest change that counts as better.")


class EvaluateConfig(Section):
    """When and how the held-out data is evaluated."""

    every: PositiveInt | Literal["epoch", "end"] = Field(
        "epoch", description="Updates between evaluations, or at each epoch's end, or only at the end."
    )
    at_start: bool = Field(False, description="Also evaluate before the first update.")
    batch: PositiveInt | None = Field(
        None, description="Samples a forward pass and shard; none: the training micro-batch."
    )
    early_stopping: EarlyStopping | None = Field(None, description="None: run to the end.")


class CheckpointConfig(Section):
    """When state is saved."""

    every: PositiveInt | None = Field(None, description="Updates between saves; none: only at the end.")
    at_end: bool = Field(True, description="Save when the run ends.")


class TrackConfig(Section):
    """Where metrics go. metrics.jsonl is always written."""

    every: PositiveInt = Field(10, description="Updates between two log lines.")
    console: bool = Field(True, description="Show progress on rank 0's terminal.")


class HardwareConfig(Section):
    """Which devices, and how much of them."""

    device: Literal["auto", "cuda", "cpu"] = Field("auto", description="auto: every visible GPU, else the CPU.")
    gpus: list[str] | None = Field(
        None, description="GPU UUIDs or indexes as nvidia-smi lists them; none: all that are visible."
    )
    num_processes: PositiveInt | None = Field(
        None, description="Workers on a machine without GPU (none: 1); with GPUs there is one a GPU, see gpus."
    )
    memory_fraction: Fraction = Field(1.0, description="Share of each GPU's memory that its process may allocate.")


class RunConfig(Section):
    """A run: what, on what data, how long, on which devices."""

    name: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Name of the run; none: recipe or script, date and time.",
    )
    run_dir: Path | None = Field(None, description="Where the run is kept; none: runs/<name>.")
    seed: NonNegativeInt = Field(0, description="Of weights, order and random streams.")
    model: Model = DecoderModel()
    data: Data | None = Field(None, description="Needed by the command; a library user hands in data sets.")
    loader: LoaderSettings = LoaderSettings()
    task: TaskConfig = TaskConfig()
    train: TrainConfig = TrainConfig()
    parallel: Parallel = AutoParallel()
    evaluate: EvaluateConfig = EvaluateConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    track: TrackConfig = TrackConfig()
    hardware: HardwareConfig = HardwareConfig()
