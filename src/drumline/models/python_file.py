"""Your own model from a Python file: what the file may define, and how its mistakes are told."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from torch import nn

from drumline.config.recipes import expand_path
from drumline.config.schema import RunConfig
from drumline.errors import ConfigError

_FORMS = {
    "make_model": "make_model(config) or make_model(config, data), returning an nn.Module",
    "make_data": "make_data(config), returning (train, eval) as Trainer takes them; eval may be None",
    "loss": "loss(model, batch), returning a mean, or a drumline.Loss",
    "make_task": "make_task(config), returning a task: count, check, forward, loss",
    "make_optimizer": "make_optimizer(model), returning a torch optimizer",
}


class DataFacts(NamedTuple):
    """What the data section comes to, for a model's shape; None where the data has no such thing."""

    classes: tuple[str, ...] | None = None
    """Names of the classes, by number."""
    num_targets: int | None = None
    """Numbers to predict a row."""
    vocab_size: int | None = None
    """One more than the largest token id."""
    context: int | None = None
    """Most tokens of a row."""
    channels: int | None = None
    """Of images."""
    size: int | None = None
    """Pixels of an image's side."""
    columns: tuple[str, ...] = ()
    """Names of the values of a row."""

    @property
    def num_outputs(self) -> int | None:
        """How many numbers a row's prediction has: classes, or numbers to predict."""
        return self.num_targets if self.classes is None else len(self.classes)


@dataclass(frozen=True)
class ModelFile:
    """What a user's file defines; only make_model must be there."""

    path: Path
    functions: dict[str, Callable[..., Any]]

    def __contains__(self, name: str) -> bool:
        return name in self.functions

    def make_model(self, config: RunConfig, facts: DataFacts) -> nn.Module:
        """Call the file's make_model. Raises ConfigError for a result that is no module."""
        function = self.functions["make_model"]
        arguments = (config, facts) if _takes(function, 2) else (config,)
        model = self._call("make_model", *arguments)
        if not isinstance(model, nn.Module):
            raise self._wrong("make_model", model)
        return model

    def make_data(self, config: RunConfig) -> tuple[Any, Any]:
        """Call the file's make_data. Raises ConfigError for a result that is no pair."""
        data = self._call("make_data", config)
        if not isinstance(data, tuple | list) or len(data) != 2:
            raise self._wrong("make_data", data)
        return data[0], data[1]

    def make_loss(self, config: RunConfig) -> Any:
        """The file's task or loss function, None where it has neither."""
        if "make_task" in self:
            return self._call("make_task", config)
        return self.functions.get("loss")

    def make_optimizer(self) -> Callable[[nn.Module], Any] | None:
        """The file's make_optimizer, which says what it should be where it fails; None where it has none."""
        return (lambda model: self._call("make_optimizer", model)) if "make_optimizer" in self else None

    def _call(self, name: str, *arguments: Any) -> Any:
        with _noted(f"drumline called {name} in {self.path}; it should be {_FORMS[name]}"):
            return self.functions[name](*arguments)

    def _wrong(self, name: str, result: Any) -> ConfigError:
        return ConfigError(f"{name} in {self.path} returned a {type(result).__name__}", f"write {_FORMS[name]}")


def load_file(path: Path) -> ModelFile:
    """Run a Python file and take the functions from it; its neighbours can be imported, as from a script.

    Raises ConfigError for a path that is no Python file, for one without make_model, and where a name that drumline
    looks for is no function; what the file itself raises comes through, with a note of what was wanted.
    """
    path = Path(expand_path(str(path))).expanduser()
    if path.suffix != ".py" or not path.is_file():
        raise ConfigError(f"model.file: there is no Python file {path}", "give the path of your model.py")
    module = _run(path)
    found = {name: getattr(module, name) for name in _FORMS if hasattr(module, name)}
    for name, function in found.items():
        if not callable(function):
            raise ConfigError(f"{name} in {path} is a {type(function).__name__}", f"define {_FORMS[name]}")
    if "make_model" not in found:
        raise ConfigError(f"{path} defines no make_model", f"define {_FORMS['make_model']}")
    if "loss" in found and "make_task" in found:
        raise ConfigError(f"{path} defines both loss and make_task", "keep one of the two")
    return ModelFile(path, found)


def _run(path: Path) -> ModuleType:
    folder = str(path.resolve().parent)
    # Its own name, so that loader processes find the file's classes by it, unless something else has that name.
    name = path.stem
    known = sys.modules.get(name)
    is_taken = known is not None and getattr(known, "__file__", None) != str(path.resolve())
    if is_taken:
        name = f"model_file_{path.stem}_{hashlib.sha256(folder.encode()).hexdigest()[:8]}"
    if folder not in sys.path:
        sys.path.insert(len(sys.path) if is_taken else 0, folder)  # at the end it hides nothing that has the name
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    with _noted(f"drumline was running {path}, the recipe's model.file; it should define {_FORMS['make_model']}"):
        spec.loader.exec_module(module)
    return module


@contextmanager
def _noted(note: str) -> Iterator[None]:
    """Put a last line under the traceback of what is raised inside."""
    try:
        yield
    except Exception as error:
        error.add_note(note)
        raise


def _takes(function: Callable[..., Any], number: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * number)
    except (TypeError, ValueError):
        return False
    return True
