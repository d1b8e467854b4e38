"""Files of tensors that anybody wrote, always read on the CPU: torch's, without code of theirs, and safetensors."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drumline.errors import DataError, MissingExtra

INDEX = ".index.json"
"""End of the name of a file that says which tensor is in which of several."""

_LFS = b"version https://git-lfs"
_CLASS = re.compile(r"GLOBAL ([\w.]+)")


def read_file(path: Path) -> Any:
    """What one file holds. Raises DataError where it cannot be read, or holds more than tensors and plain values."""
    try:
        with path.open("rb") as file:
            head = file.read(len(_LFS))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}", "give the path of a file") from error
    if head == _LFS:
        raise DataError(f"{path} is a pointer of Git LFS, not the file itself", "fetch it with: git lfs pull")
    if path.name.endswith(INDEX):
        return read_parts(path)
    return read_safetensors(path) if path.suffix == ".safetensors" else read_torch(path)


def read_torch(path: Path) -> Any:
    """What torch.save has written, tensors on the CPU and, where the format allows it, not read before they are used.

    Nothing in the file is run (`weights_only`).
    """
    try:
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError as error:
            if "mmap can only be used" not in str(error):
                raise
        return torch.load(path, map_location="cpu", weights_only=True)  # the format of torch before 1.6
    except pickle.UnpicklingError as error:
        found = _CLASS.search(str(error))
        what = f"a {found[1]}" if found else "Python objects"
        raise DataError(
            f"{path} holds {what} besides tensors and plain values, which could run any code",
            "save the weights alone: torch.save(model.state_dict(), path); of a file that you trust, load it with "
            "torch.load(path, weights_only=False) in a program of your own and save its state_dict so",
        ) from error
    except (RuntimeError, OSError, EOFError, ValueError, KeyError) as error:
        first = f"{type(error).__name__}: {error}".partition(". ")[0]
        raise DataError(
            f"{path} is damaged, or nothing that torch.save has written: {first}", "copy it again, or name another file"
        ) from error


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors file, on the CPU. Raises MissingExtra without the package safetensors."""
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError as error:
        raise MissingExtra("safetensors", "hf") from error
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no mapping
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"{path} is damaged, or no safetensors file: {error}", "copy it again, or name another file"
        ) from error


def read_parts(index: Path) -> dict[str, Tensor]:
    """All tensors of the files that an index names, which lie beside it."""
    try:
        places: Mapping[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = sorted(set(places.values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{index} is no index of weights: {error}", "copy it again, or name a file of weights"
        ) from error
    found: dict[str, Tensor] = {}
    for name in files:
        if Path(name).name != name:
            raise DataError(f"{index} names a file in another folder: {name}", "put the files beside their index")
        found.update(read_file(index.with_name(name)))
    if missing := sorted(places.keys() - found.keys()):
        raise DataError(f"{index} names tensors that are in none of its files: {missing[0]}", "copy all files again")
    return found


def write_safetensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> None:
    """Write tensors into a .safetensors file; of names of one tensor the first is written, and the others are noted.

    about: text that is kept in the file's header. Raises MissingExtra without the package safetensors.
    """
    try:
        from safetensors.torch import save_file
    except ImportError as error:
        raise MissingExtra("safetensors", "hf") from error
    first: dict[tuple[Any, ...], str] = {}
    kept, same = {}, {}
    for name, value in tensors.items():
        place = (value.data_ptr(), value.dtype, value.shape, value.stride()) if value.numel() else (name,)
        if place in first:
            same[name] = first[place]  # as safetensors' own save_model notes it
            continue
        first[place] = name
        kept[name] = value.detach().contiguous()
    # Values may still share memory in part, as views of one tensor do, which the format cannot say.
    storages: set[int] = set()
    for name, value in kept.items():
        storage = value.untyped_storage().data_ptr()
        if value.numel() and storage in storages:
            kept[name] = value.clone()
        storages.add(storage)
    save_file(kept, path, metadata={"format": "pt", **same, **about})
