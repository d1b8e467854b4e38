"""How the GPUs of a machine are shared out where one replica of a model takes several of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pathlib import Path

from drumline.config.inference import GenerateTask, InferenceConfig, InferenceModel
from drumline.errors import ConfigError, DataError, HardwareError
from drumline.plan.memory import GIB, RESERVE_BYTES

SIZES = (1, 2, 4, 8)
"""GPUs that a replica may have where nobody says how many."""
FOR_WEIGHTS = 0.75
"""Share of the usable memory that weights may take; the rest is for caches of keys and values, and activations."""
_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
"""Of one value of a safetensors file; all others have one, or less."""
_FLOATS = ("F64", "F32", "F16", "BF16")
_COMPUTED = {"float32": 4, "bfloat16": 2, "float16": 2}
_PACKED = {"nf4": 0.5 + 4 / 64, "int8": 1 + 4 / 64}
"""Bytes of one packed value with its share of the scale of a block."""
_MOST_HEADER = 100 * 2**20


def check_split(config: InferenceConfig) -> None:
    """Raise ConfigError for settings that do not go with the kind of split."""
    split, model, task = config.split, config.model, config.task
    if split is None or split.kind == "layers":
        return
    fix = "leave it out, or set split.kind to layers"
    for setting, is_set in (
        ("split.device_map", split.device_map is not None),
        ("model.quantise", model.quantise != "none"),
        ("model.random_weights", model.random_weights),
        ("model.step", model.step is not None),
    ):
        if is_set:
            raise ConfigError(f"{setting} is set, and split.kind is tensor", fix)
    if isinstance(task, GenerateTask) and task.engine not in ("auto", "padded"):
        raise ConfigError(f"task.engine is {task.engine}, and split.kind tensor computes with padded", fix)


def replicas(gpus: Sequence[str], num_per_replica: int, groups: Iterable[Sequence[str]] = ()) -> list[tuple[str, ...]]:
    """Disjoint sets of so many GPUs each, as many as there are; pure.

    groups: GPUs that reach each other well, the best connected groups first; replicas lie within one as far as that
    goes, and are made of what is left after. Raises HardwareError where the GPUs do not make one.
    """
    if num_per_replica < 1:
        raise ConfigError(f"a replica cannot have {num_per_replica} GPUs", "set split.gpus to 1 or more")
    made: list[tuple[str, ...]] = []
    remaining = list(gpus)
    for group in [*groups, list(gpus)]:
        near = [gpu for gpu in remaining if gpu in set(group)]
        while len(near) >= num_per_replica:
            made.append(tuple(near[:num_per_replica]))
            near = near[num_per_replica:]
            remaining = [gpu for gpu in remaining if gpu not in made[-1]]
    if not made:
        raise HardwareError(
            f"a replica of the model takes {num_per_replica} GPUs, and there are {len(gpus)}: {', '.join(gpus) or '-'}",
            "set split.gpus to fewer, or quantise the model",
        )
    return sorted(made, key=lambda replica: gpus.index(replica[0]))


def left_over(gpus: Sequence[str], taken: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """The GPUs that are in no replica, in their order, for a message that names them; pure."""
    used = {gpu for replica in taken for gpu in replica}
    return tuple(gpu for gpu in gpus if gpu not in used)


def gpus_needed(weight_bytes: int, memory_bytes: int) -> int:
    """As few GPUs of so much memory each as hold the weights and leave room to compute: 1, 2, 4 or 8; pure.

    Raises HardwareError where 8 do not.
    """
    room = (memory_bytes - RESERVE_BYTES) * FOR_WEIGHTS
    for count in SIZES:
        if weight_bytes <= room * count:
            return count
    raise HardwareError(
        f"the model's weights take {weight_bytes / GIB:,.1f} GiB, which {SIZES[-1]} GPUs of {memory_bytes / GIB:,.1f} "
        f"GiB do not hold with room to compute",
        "quantise the model (model.quantise), or say with split.gpus how many to take",
    )


def weight_bytes(folder: Path, model: InferenceModel, *, half: bool) -> int:
    """Bytes that a folder's weights take once loaded, from the heads of its safetensors files; nothing else is read.

    half: whether dtype auto stands for two bytes a value. Raises ConfigError where the folder has no safetensors,
    DataError for a damaged one.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ConfigError(
            f"the size of {folder} cannot be told, since it has no safetensors",
            "set split.gpus to the number of GPUs of one replica",
        )
    value_bytes = _COMPUTED.get(model.dtype, 2 if half else 4)
    total = 0.0
    for file in files:
        for name, (dtype, shape) in _tensors(file).items():
            size: float = value_bytes if dtype in _FLOATS else _BYTES.get(dtype, 1)
            # Embeddings and the head stay as they are; they have names in all models that end so.
            is_linear = len(shape) == 2 and not any(part in name for part in ("embed", "wte", "wpe", "lm_head"))
            if model.quantise != "none" and dtype in _FLOATS and is_linear:
                size = _PACKED[model.quantise]
            total += size * prod(shape)
    return round(total)


def _tensors(file: Path) -> Mapping[str, tuple[str, Sequence[int]]]:
    """Type and shape of each tensor: the file begins with the length of a JSON head, eight bytes, little-endian."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 2 <= length <= _MOST_HEADER:
                raise ValueError(f"a head of {length:,} bytes")
            head = json.loads(stream.read(length))
        return {
            name: (str(entry["dtype"]), tuple(map(int, entry["shape"])))
            for name, entry in head.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{file} is damaged: {error}", "fetch or copy it again") from error
