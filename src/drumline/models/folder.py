"""Hugging Face folders of a model that is at hand: its weights from one, and one made of its weights."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drumline.config.model import HuggingFaceModel
from drumline.errors import DataError, MissingExtra
from drumline.models.hub import find_folder
from drumline.models.huggingface import Embedder, is_pretrained
from drumline.parallel.keys import unwrapped
from drumline.rundir import write_json

CONFIG = "config.json"

OTHER_NAMES = {"encoder.json": "vocab.json", "vocab.bpe": "merges.txt"}
"""What OpenAI calls the files of GPT-2's tokenizer, and what transformers looks for."""

SHARD = "5GB"
"""Most bytes of one file of weights, as Hugging Face's hub advises; transformers itself has larger ones."""


def body_of(model: nn.Module) -> tuple[Any, str]:
    """The transformers model, and what its names begin with in the whole; (None, "") where there is none."""
    model = unwrapped(model)
    if is_pretrained(model):
        return model, ""
    return (model.body, "body.") if isinstance(model, Embedder) and is_pretrained(model.body) else (None, "")


def class_of(body: Any) -> Any:
    """Its class as transformers has it; fully_shard puts one of its own before it."""
    return next(base for base in type(body).__mro__ if not base.__module__.startswith("torch.distributed.fsdp"))


def read_pretrained(model: nn.Module, folder: Path) -> dict[str, Tensor] | None:
    """The weights in a Hugging Face folder by the model's names, as transformers itself reads them for its class.

    It knows what names were called in older files, and what a class without a head leaves out. None where the model is
    none of transformers', or the folder no such one. Raises DataError where a weight of the model is not in the folder,
    or one in the folder not in the model.
    """
    body, before = body_of(model)
    if body is None or not (folder / CONFIG).is_file():
        return None
    kind, dtype = class_of(body), next(p.dtype for p in body.parameters() if p.is_floating_point())
    try:
        with torch.random.fork_rng(devices=[]):
            found, info = kind.from_pretrained(
                folder, config=body.config, dtype=dtype, output_loading_info=True, local_files_only=True
            )
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{folder} does not fit a {kind.__name__}: {error}", "give the folder of such a model"
        ) from error
    for names, problem in ((info["missing_keys"], "lacks"), (info["unexpected_keys"], "has besides")):
        if names:
            raise DataError(
                f"{folder} does not fit a {kind.__name__}: it {problem} {min(names)} and {len(names) - 1} more",
                "give the folder of such a model",
            )
    return {f"{before}{name}": value for name, value in found.state_dict().items()}


def keep_shape(model: nn.Module, folder: Path) -> None:
    """Write config.json of a transformers model into this folder, which is made; of other models nothing.

    With it a Hugging Face folder can be made of its weights when the model itself is gone.
    """
    body, _ = body_of(model)
    if body is None:
        return
    folder.mkdir(exist_ok=True)
    settings = body.config.to_dict() | {"architectures": [class_of(body).__name__]}
    if "use_cache" in settings:
        settings["use_cache"] = True  # off for training alone
    write_json(folder / CONFIG, settings)


def class_in(shape: Path) -> tuple[Any, Any]:
    """The class and the configuration of the model that `keep_shape` has written; (None, None) where there is none.

    Raises MissingExtra without transformers.
    """
    if not (shape / CONFIG).is_file():
        return None, None
    try:
        import transformers
    except ImportError as error:
        raise MissingExtra("transformers", "hf") from error
    try:
        config = transformers.AutoConfig.from_pretrained(shape, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError):  # a kind that came with code of its own
        return None, None
    kind = getattr(transformers, (config.architectures or [""])[0], None)
    return (None, None) if kind is None else (kind, config)


def base_of(settings: HuggingFaceModel, shape: Path, known: Collection[str]) -> nn.Module:
    """The model that training began with, of the shape that `keep_shape` has written.

    known: names of weights that come from elsewhere, which its folder need not have. Raises ConfigError where the model
    is not there any more, DataError where it is another one.
    """
    kind, config = class_in(shape)
    if kind is None:
        raise DataError(f"{shape} does not hold the shape of a transformers model", "export another run")
    if settings.random_weights:
        with torch.device("meta"):
            body = kind._from_config(config)
    else:
        folder = find_folder(settings)
        body, info = kind.from_pretrained(
            folder,
            config=config,
            dtype=settings.weights,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            local_files_only=True,
        )
        names = {name.removeprefix("body.") for name in known}
        if lacking := {*info["missing_keys"], *(name for name, *_ in info["mismatched_keys"])} - names:
            raise DataError(
                f"{settings.path} is not the model that the adapter was trained on: it lacks {min(lacking)}, or has it "
                "in another shape",
                "bring that model back to its place",
            )
    return Embedder(body) if any(name.startswith("body.") for name in known) else body


def model_of(weights: Mapping[str, Tensor], shape: Path, *, values: bool = True) -> Any | None:
    """The transformers model with these weights, which are by the names of a whole model, in evaluation mode.

    shape: folder that `keep_shape` has written to; None where there is none, or transformers has no class of that name.
    values: make what no weight gives too, as tables of positions, so that the model computes. Raises MissingExtra
    without transformers, DataError where the weights are not that model's.
    """
    kind, config = class_in(shape)
    if kind is None:
        return None
    if all(name.startswith("body.") for name in weights):
        weights = {name.removeprefix("body."): value for name, value in weights.items()}
    with torch.device("meta"):
        body = kind._from_config(config)
    try:
        body.load_state_dict(weights, strict=True, assign=True)
    except RuntimeError as error:
        raise DataError(
            f"the weights are not those of the {kind.__name__} in {shape}: {error}", "name another checkpoint"
        ) from error
    if values:
        dtype = next(value.dtype for value in weights.values() if value.is_floating_point())
        body = kind.from_pretrained(None, config=config, state_dict=dict(body.state_dict()), dtype=dtype)
    body.tie_weights()
    return body.eval()


def write_pretrained(weights: Mapping[str, Tensor], shape: Path, out: Path, dtype: torch.dtype | None = None) -> bool:
    """Make `out` a Hugging Face folder of these weights, as `model_of` takes them; False where it gives no model.

    dtype: of all weights that are no whole numbers; None: as they are.
    """
    if dtype is not None:
        weights = cast(weights, dtype)
    body = model_of(weights, shape, values=False)
    if body is None:
        return False
    body.save_pretrained(out, max_shard_size=SHARD)
    return True


def cast(weights: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Weights in another type, those that are one tensor once; whole numbers stay."""
    once: dict[tuple[int, torch.Size], Tensor] = {}
    return {
        name: once.setdefault((value.data_ptr(), value.shape), value.to(dtype)) if value.is_floating_point() else value
        for name, value in weights.items()
    }


def copy_files(folder: Path, out: Path, patterns: Iterable[str]) -> list[str]:
    """Copy the files that match and that `out` has not, under the names that transformers looks for; their names."""
    copied = []
    for pattern in patterns:
        for file in sorted(folder.glob(pattern)):
            place = out / file.relative_to(folder).with_name(OTHER_NAMES.get(file.name, file.name))
            if file.is_file() and not place.exists():
                place.parent.mkdir(exist_ok=True)
                shutil.copyfile(file, place)
                copied.append(file.name)
    return copied
