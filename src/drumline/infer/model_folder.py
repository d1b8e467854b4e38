"""A transformers model out of a folder or the hub, for prediction: in its type, on its device, perhaps quantised."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from drumline.config.inference import InferenceConfig, InferenceModel
from drumline.config.model import HuggingFaceModel
from drumline.data.hub import local_folder
from drumline.data.tokenizers import Tokenizer, has_tokenizer, load_tokenizer
from drumline.engine.recover import finds_no_memory
from drumline.errors import ConfigError, DrumlineError, MissingExtra
from drumline.infer.team import in_parts
from drumline.infer.tries import LOST, WorkerLost
from drumline.models.adapter_files import SETTINGS, WEIGHTS, read_settings, with_folder
from drumline.models.hub import find_folder, refuse_code
from drumline.models.huggingface import Head
from drumline.rundir import read_json

HEADS: dict[str, Head] = {
    "generate": "causal",
    "choose": "causal",
    "score": "causal",
    "classify": "sequence_classification",
    "token_classify": "token_classification",
    "embed": "embedding",
}
"""What a model ends in, by the task's kind; of images a classifier is another one."""

MOSTLY_FREE = 0.9
"""Share of a GPU's memory; where less was free, a model that does not fit may fit elsewhere or later."""


@dataclass(frozen=True)
class Places:
    """Where a model lies."""

    base: Path
    """config.json and weights."""
    adapter: Path | None = None
    """What is merged into it."""
    trusted: bool = False
    """Whether code that comes with it may run."""


def places_of(model: InferenceModel) -> Places:
    """The folders of a model, fetched where they must be; of an adapter also that of the model which it names.

    Raises ConfigError where there is none, DataError where the hub cannot be reached.
    """
    settings = as_huggingface(model, model.path)
    folder = local_folder(model.path)
    if folder is not None and (folder / SETTINGS).is_file():
        named = read_settings(folder / SETTINGS)
        base = named.get("base_model_name_or_path")
        if not base:
            raise ConfigError(
                f"the adapter in {folder} does not say which model it belongs to",
                f"write the model's name or folder into its {SETTINGS} as base_model_name_or_path",
            )
        settings = as_huggingface(model, str(base), named.get("revision"))
        places = Places(find_folder(settings), folder, model.trust_remote_code)
    else:
        places = Places(find_folder(settings), None, model.trust_remote_code)
    refuse_code(settings, places.base)
    return places


def as_huggingface(model: InferenceModel, path: str, revision: str | None = None) -> HuggingFaceModel:
    """The same place in the words of a recipe."""
    return HuggingFaceModel(
        path=path,
        revision=revision if path != model.path else model.revision,
        cache_dir=model.cache_dir,
        token_variable=model.token_variable,
        trust_remote_code=model.trust_remote_code,
        random_weights=model.random_weights,
    )


def head_for(kind: str, places: Places) -> Head:
    """What the model must end in for a task."""
    if kind == "classify" and reads_images(read_json(places.base / "config.json")):
        return "image_classification"
    return HEADS[kind]


def reads_images(shape: dict[str, Any]) -> bool:
    """Whether a model's config.json is that of a model of images alone."""
    names = shape.get("architectures") or []
    return any(name.endswith("ForImageClassification") for name in names) or (
        "vocab_size" not in shape and "num_channels" in shape
    )


def tokenizer_in(places: Places) -> tuple[Tokenizer, Path]:
    """The model's tokenizer, and the folder that it is from: the adapter's own where it has one."""
    own = places.adapter is not None and has_tokenizer(places.adapter)
    folder = places.adapter if own and places.adapter is not None else places.base
    return load_tokenizer(str(folder)), folder


def dtype_of(config: InferenceConfig, device: torch.device) -> torch.dtype:
    """The type to compute in. auto: bfloat16 on a GPU that computes with it, else float32; with int8 float16."""
    if config.model.dtype != "auto":
        found: torch.dtype = getattr(torch, config.model.dtype)
        return found
    if config.model.quantise == "int8":
        return torch.float16  # bitsandbytes computes in no other
    if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.bfloat16
    return torch.float32


def load_folder(config: InferenceConfig, places: Places, head: Head, device: torch.device) -> nn.Module:
    """The model on its device in evaluation mode, adapter merged. Weights are read from safetensors alone.

    Random weights are made on the device itself, in its type, and depend on the seed alone. Raises ConfigError where it
    cannot be loaded with this head, MissingExtra for a package that is not installed, WorkerLost where something else
    fills the GPU.
    """
    try:
        import transformers
        from safetensors import SafetensorError
    except ImportError as error:
        raise MissingExtra("transformers", "hf") from error
    was_free = free_share(device)
    try:
        with without_bar(transformers.utils.logging):
            model = made(config, places, head, device)
        if config.model.quantise == "none":
            model = model.to(device)
    except ImportError as error:
        raise ConfigError(
            f"model.path {config.model.path} needs what is not installed: {error}",
            "install it, or set model.attention to auto and model.quantise to none",
        ) from error
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        if finds_no_memory(error):
            raise no_room(config, device, was_free) from error
        if any(sign in str(error).lower() for sign in LOST):
            raise  # the GPU's fault, and not the settings'
        raise ConfigError(
            f"model.path {config.model.path} could not be loaded as {head.replace('_', ' ')}: {error}",
            "check that the folder is complete and of that kind, and task.kind",
        ) from error
    return model.eval().requires_grad_(False)  # type: ignore[no-any-return]


def made(config: InferenceConfig, places: Places, head: Head, device: torch.device) -> Any:
    """The folder's model with its adapter, on the device or still on the CPU."""
    import transformers

    auto = {
        "causal": transformers.AutoModelForCausalLM,
        "token_classification": transformers.AutoModelForTokenClassification,
        "sequence_classification": transformers.AutoModelForSequenceClassification,
        "image_classification": transformers.AutoModelForImageClassification,
        "embedding": transformers.AutoModel,
    }[head]
    dtype = dtype_of(config, device)
    options: dict[str, Any] = {"dtype": dtype, "trust_remote_code": places.trusted}
    if config.model.attention != "auto":
        options["attn_implementation"] = config.model.attention
    shape = shape_of(places, head)
    if config.model.random_weights:
        return random_model(auto, shape, options, device, config.seed)
    if config.split is not None and config.split.kind == "tensor" and dist.is_initialized():  # by infer.team
        check_parts(shape, dist.get_world_size())
        with in_parts(device) as parts:
            model, lacking = read_model(auto, places, shape, {**options, **parts})
    else:
        model, lacking = read_model(auto, places, shape, {**options, **placement(config, device, dtype)})
    if places.adapter is not None:
        model, lacking = with_adapter(model, places.adapter, lacking, merged=config.model.quantise == "none")
    refuse_lacking(config, head, lacking)
    return model


def check_parts(shape: Any, num_parts: int) -> None:
    """Raise ConfigError for a model whose layers cannot be shared out among so many processes."""
    text = shape.get_text_config()
    if not getattr(text, "base_model_tp_plan", None):
        raise ConfigError(
            f"a model of type {shape.model_type} has no plan by which its layers are split, and split.kind is tensor",
            "set split.kind to layers",
        )
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    if heads % num_parts:
        raise ConfigError(
            f"the model has {heads} heads of keys and values, which {num_parts} GPUs cannot share evenly",
            "set split.gpus to a number that divides it, or split.kind to layers",
        )


def free_share(device: torch.device) -> float:
    """Share of a GPU's memory that nobody has; 1 for a CPU."""
    if device.type != "cuda":
        return 1.0
    free, total = torch.cuda.mem_get_info(device)
    return free / total


def no_room(config: InferenceConfig, device: torch.device, was_free: float) -> DrumlineError:
    """What is said where the model does not fit: for good, or since something else was there already."""
    if was_free < MOSTLY_FREE:
        return WorkerLost(
            f"{config.model.path} does not fit into the {was_free:.0%} of {device} that were free",
            "end what else uses that GPU (drumline gpus), or leave it out (hardware.exclude)",
        )
    return ConfigError(
        f"model.path {config.model.path} does not fit into the memory of {device}",
        "spread it over several GPUs (split.gpus), or load it in fewer bits (model.quantise)",
    )


@contextmanager
def without_bar(settings: Any) -> Iterator[None]:
    """Inside, transformers draws no progress bars, which would fill a worker's log."""
    shown = settings.is_progress_bar_enabled()
    settings.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            settings.enable_progress_bar()


def shape_of(places: Places, head: Head) -> Any:
    """The folder's configuration; an adapter's classifier has its own number of classes."""
    import transformers

    shape = transformers.AutoConfig.from_pretrained(
        places.base, local_files_only=True, trust_remote_code=places.trusted
    )
    if head != "causal":
        shape.use_cache = shape.get_text_config().use_cache = False
    if head == "sequence_classification" and shape.get_text_config().pad_token_id is None:
        end = shape.get_text_config().eos_token_id
        shape.pad_token_id = shape.get_text_config().pad_token_id = end[0] if isinstance(end, list) else end
    if places.adapter is not None and head.endswith("classification"):
        number = num_classes(places.adapter)
        if number is not None and number != shape.num_labels:
            shape.num_labels = number
    return shape


def num_classes(adapter: Path) -> int | None:
    """How many classes an adapter's own classifier has; None where it has none, or is no safetensors file."""
    from safetensors import safe_open

    if not (adapter / WEIGHTS).is_file():
        return None
    with safe_open(adapter / WEIGHTS, framework="pt", device="cpu") as file:
        for name in file.keys():  # noqa: SIM118  # it is no mapping
            if name.endswith(("score.weight", "classifier.weight", "classifier.out_proj.weight")):
                return int(file.get_slice(name).get_shape()[0])
    return None


def placement(config: InferenceConfig, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """How weights come to the device: at once where accelerate is there, and packed where that is asked for."""
    if config.model.quantise == "none":
        return {"device_map": {"": device}} if importlib.util.find_spec("accelerate") else {}
    import transformers

    for package, extra in (("bitsandbytes", "quantise"), ("accelerate", "quantise")):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(package, extra)
    if config.model.quantise == "int8":
        packing = transformers.BitsAndBytesConfig(load_in_8bit=True)
    else:
        packing = transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype
        )
    return {"device_map": {"": device}, "quantization_config": packing}


def random_model(auto: Any, shape: Any, options: dict[str, Any], device: torch.device, seed: int) -> Any:
    """A model of this shape, made where it is used: eight billion weights on a CPU would take minutes."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.device(device):
        torch.manual_seed(seed)
        return auto.from_config(shape, **options)


def read_model(auto: Any, places: Places, shape: Any, options: dict[str, Any]) -> tuple[Any, set[str]]:
    """The folder's model, and the names of weights that are not in it."""
    model, info = auto.from_pretrained(
        places.base,
        config=shape,
        ignore_mismatched_sizes=places.adapter is not None,
        output_loading_info=True,
        local_files_only=True,
        use_safetensors=True,
        weights_only=True,
        **options,
    )
    return model, {*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])}


def with_adapter(model: Any, folder: Path, lacking: set[str], *, merged: bool) -> tuple[Any, set[str]]:
    """The model with an adapter in it, and what is lacking still. Into packed weights nothing is merged."""
    whole = read_json(folder / SETTINGS).get("modules_to_save") or []
    still = {name for name in lacking if not any(f".{name}".find(f".{part}.") >= 0 for part in whole)}
    return with_folder(model, folder, merged=merged), still


def refuse_lacking(config: InferenceConfig, head: Head, lacking: set[str]) -> None:
    """Raise ConfigError where weights would silently be random: an answer would mean nothing."""
    if head == "embedding":
        lacking = {name for name in lacking if not name.startswith("pooler.")}  # not used
    if not lacking:
        return
    classifier = "the classifier's " if head.endswith("classification") else ""
    raise ConfigError(
        f"{config.model.path} lacks {len(lacking)} of {classifier or 'the '}weights, {min(lacking)} among them",
        "give a model that was trained for this task" if classifier else "give the folder of a complete checkpoint",
    )
