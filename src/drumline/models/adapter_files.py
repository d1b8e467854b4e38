"""Folders with an adapter, as peft writes and reads them, and what tells the model that one belongs to from others."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from drumline.config.model import AdapterConfig, HuggingFaceModel
from drumline.errors import ConfigError, DataError, MissingExtra
from drumline.models.hub import find_folder
from drumline.rundir import write_json

SETTINGS = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
BEFORE = "base_model.model."
"""What names in such a file begin with: peft's own wrapper."""
CHECKSUM = "drumline_base"
"""Key of the base's checksum in the file's header."""
TRANSPOSED = "fan_in_fan_out"
"""Key, in what tells of the base, of layers that keep their matrix the other way round, as GPT-2's."""

NO_SHAPE = frozenset({"transformers_version", "_name_or_path", "use_cache", "dtype", "torch_dtype"})
"""Keys of config.json that say by what and where it was written, or how it is to be used."""
LENGTH_BYTES = 8
"""Of a safetensors file: the length of its header, which says names, types and shapes."""
SAMPLE_BYTES = 64
"""Of each tensor's values that the checksum takes in: any training moves them all."""

UNLIKE = {
    "bias": ("none", "trains biases"),
    "use_rslora": (False, "is scaled by the root of its rank"),
    "use_qalora": (False, "has matrices by groups"),
    "rank_pattern": ({}, "has several ranks"),
    "alpha_pattern": ({}, "has several scales"),
    "layer_replication": (None, "repeats layers"),
    "trainable_token_indices": (None, "trains single tokens"),
    "target_parameters": (None, "stands beside parameters that are no layers"),
    "lora_bias": (False, "has biases of its own"),
}
"""Settings of peft's that our adapters have not: the value that stands for that, and what another one means."""


def base_identity(config: HuggingFaceModel) -> dict[str, str]:
    """What the base model is: path, revision, and a checksum.

    It is over the shape, names and sizes of the files of weights, and some values of each tensor.
    """
    folder = find_folder(config)
    return {"path": config.path, "revision": config.revision or "", "checksum": checksum_of(folder)}


def checksum_of(folder: Path) -> str:
    """The checksum of the model in a folder."""
    digest = hashlib.sha256()
    for name, value in sorted(read_settings(folder / "config.json").items()):
        if name not in NO_SHAPE:
            digest.update(f"{name}={json.dumps(value, sort_keys=True)}\n".encode())
    for file in sorted(folder.glob("*.safetensors")):
        if file.name != WEIGHTS:
            digest.update(f"{file.name} {file.stat().st_size}\n".encode())
            digest.update(sample_of(file))
    return digest.hexdigest()


def sample_of(file: Path) -> bytes:
    """The header of a safetensors file, and values from the middle of each tensor."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(LENGTH_BYTES), "little")
        header = stream.read(min(length, size))
        try:
            places = [entry["data_offsets"] for name, entry in json.loads(header).items() if name != "__metadata__"]
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigError(f"{file} is no safetensors file: {error}", "copy the model again") from error
        pieces = [header]
        for begin, end in sorted(places):
            stream.seek(LENGTH_BYTES + length + max(begin, (begin + end - SAMPLE_BYTES) // 2))
            pieces.append(stream.read(min(SAMPLE_BYTES, end - begin)))
    return b"".join(pieces)


def read_settings(file: Path) -> dict[str, Any]:
    """A JSON file. Raises ConfigError where it cannot be read."""
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}", "name another folder, or copy it again") from error
    return found


def name_in_file(name: str) -> str:
    """A weight's name in peft's files, from that in the model; of DoRA's sizes they have not even `weight`."""
    name = name.removeprefix("body.")  # of what gives one vector a row
    if ".lora_magnitude_vector." in name:
        return BEFORE + name.removesuffix(".default.weight")
    return BEFORE + name.replace(".default.weight", ".weight") if ".lora_" in name else BEFORE + name


def alpha_of(adapter: AdapterConfig) -> float | int:
    """What the update is scaled by, before it is divided by the rank; whole numbers without a point."""
    alpha = adapter.alpha if adapter.alpha is not None else 2.0 * adapter.rank
    return int(alpha) if float(alpha).is_integer() else alpha


def targets_of(adapter: AdapterConfig, names: Collection[str], whole: Collection[str]) -> list[str]:
    """Ends of names by which peft finds the same layers; their whole names where an end could fit others too."""
    layers = [name.removeprefix("body.").partition(".lora_A.")[0] for name in names if ".lora_A." in name]
    if whole:
        return sorted(layers)
    return sorted({name.rpartition(".")[2] for name in layers} if adapter.targets == "all" else adapter.targets)


def write_adapter(weights: Mapping[str, Tensor], config: HuggingFaceModel, base: Mapping[str, str], out: Path) -> None:
    """Write an adapter into the folder `out`, which is made where it is not there, so that peft finds its base and it.

    weights: what a checkpoint of such a model holds, by the names in the model. base: as `base_identity` gives it.
    Raises MissingExtra without safetensors.
    """
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise MissingExtra("safetensors", "hf") from error
    adapter = config.adapter
    assert adapter is not None
    out.mkdir(parents=True, exist_ok=True)
    found = {name_in_file(name): value.detach().cpu().contiguous().clone() for name, value in weights.items()}
    save_file(found, out / WEIGHTS, metadata={"format": "pt", CHECKSUM: base.get("checksum", "")})
    whole = sorted({name.removeprefix("body.").rpartition(".")[0] for name in weights if ".lora_" not in name})
    settings = {
        "peft_type": "LORA",
        "base_model_name_or_path": base.get("path", config.path),
        "revision": config.revision,
        "r": adapter.rank,
        "lora_alpha": alpha_of(adapter),
        "lora_dropout": adapter.dropout,
        "use_dora": adapter.kind == "dora",
        "target_modules": targets_of(adapter, weights.keys(), whole),
        "modules_to_save": whole or None,
        "bias": "none",
        "fan_in_fan_out": bool(base.get(TRANSPOSED)),
        "inference_mode": True,
        "task_type": None,
    }
    write_json(out / SETTINGS, settings)


def read_adapter(folder: Path, config: HuggingFaceModel, wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of an adapter in a folder, by the names in the model, on the CPU.

    wanted: what the model keeps of its own, by name. Raises ConfigError where the adapter is of another model, of
    another kind, or not whole.
    """
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise MissingExtra("safetensors", "hf") from error
    if not (folder / SETTINGS).is_file():
        raise ConfigError(
            f"model.adapter.initial {folder} holds no adapter: it has no {SETTINGS}",
            "give a folder that peft or drumline export --adapter has written",
        )
    settings = read_settings(folder / SETTINGS)
    check_kind(folder, settings, config)
    try:
        with safe_open(folder / WEIGHTS, framework="pt", device="cpu") as file:
            about = file.metadata() or {}
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no mapping
    except (SafetensorError, OSError) as error:
        raise ConfigError(
            f"model.adapter.initial: {folder / WEIGHTS} cannot be read: {error}",
            f"give a folder with a whole {WEIGHTS}; older .bin files: load them with peft and save them again",
        ) from error
    check_base(folder, settings.get("base_model_name_or_path"), about.get(CHECKSUM), config)
    return fitted(folder, found, wanted)


def check_kind(folder: Path, settings: Mapping[str, Any], config: HuggingFaceModel) -> None:
    """Raise ConfigError where the settings of an adapter are not those that the recipe asks for."""
    adapter = config.adapter
    assert adapter is not None
    key = f"model.adapter.initial {folder}"
    if settings.get("peft_type") != "LORA":
        raise ConfigError(f"{key} is of kind {settings.get('peft_type')}", "give one of LoRA or DoRA")
    for name, (plain, meaning) in UNLIKE.items():
        if (settings.get(name) or plain) != plain:
            raise ConfigError(f"{key} {meaning} ({name}), which is not built", "merge it into its model with peft")
    for name, mine, theirs in (
        ("kind", adapter.kind, "dora" if settings.get("use_dora") else "lora"),
        ("rank", adapter.rank, settings.get("r")),
        ("alpha", alpha_of(adapter), settings.get("lora_alpha")),
    ):
        if mine != theirs:
            raise ConfigError(
                f"{key} has {name} {theirs}, and model.adapter.{name} is {mine}",
                f"set model.adapter.{name} to {theirs}",
            )


def check_base(folder: Path, name: str | None, checksum: str | None, config: HuggingFaceModel) -> None:
    """Raise ConfigError where an adapter says that its base is another model than `path`.

    By the checksum where it has one, else by that of the folder that it names where that is here, else by the last
    part of the name.
    """
    if name and not checksum and (Path(name) / "config.json").is_file():
        checksum = checksum_of(Path(name))
    here = Path(config.path).name.casefold()
    if checksum:
        differs = checksum != base_identity(config)["checksum"]
    else:
        differs = bool(name) and Path(str(name)).name.casefold() != here
    if differs:
        raise ConfigError(
            f"the adapter in {folder} is of another model, {name}, than model.path {config.path}",
            "give the model that it was trained beside"
            + ("" if checksum else f"; if it is the same under another name, write that name into its {SETTINGS}"),
        )


def with_folder(model: Any, folder: Path, *, merged: bool = True) -> Any:
    """Transformers' model with a folder's adapter merged into it, by peft, or beside its weights, as packed ones need.

    Raises DataError for an adapter of another model.
    """
    try:
        from peft import PeftModel
    except ImportError as error:
        raise MissingExtra("peft", "hf") from error
    try:
        if merged:
            return PeftModel.from_pretrained(model, str(folder)).merge_and_unload()
        model.load_adapter(str(folder))
    except (ValueError, RuntimeError, KeyError) as error:
        raise DataError(f"the adapter in {folder} does not fit its model: {error}", "give another folder") from error
    return model


def fitted(folder: Path, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights by the names in the model. Raises ConfigError where names or shapes are others."""
    by_name = {name_in_file(name): name for name in wanted}
    for names, problem in ((by_name.keys() - found.keys(), "lacks"), (found.keys() - by_name.keys(), "has besides")):
        if names:
            raise ConfigError(
                f"the adapter in {folder} does not fit the model: it {problem} {min(names)} and {len(names) - 1} more",
                "give the model that it was trained beside, and its targets and train_also",
            )
    for name, value in found.items():
        mine = wanted[by_name[name]]
        if mine.shape != value.shape:
            raise ConfigError(
                f"the adapter in {folder} does not fit the model: {name} is {list(value.shape)} there and "
                f"{list(mine.shape)} here",
                "give the model that it was trained beside",
            )
    return {by_name[name]: value for name, value in found.items()}
