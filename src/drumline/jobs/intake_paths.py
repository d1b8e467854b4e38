"""Files and models that a request may name: those below configured roots, in a table, or on a list."""

from __future__ import annotations

import glob
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path

from drumline.config.recipes import PREFIX, recipes_folder
from drumline.config.service import ServiceConfig
from drumline.errors import ConfigError

MOST_ENTRIES = 2_000_000
"""Files and folders that one request may have looked at: all that it names, for links that lead out of the roots."""
MOST_S = 10.0
"""How long all looking of one request may take: a thread of the service does nothing else meanwhile."""

_ON_HUB = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
_BARE = re.compile(r"[a-z0-9_]{1,64}", re.ASCII)


class Places:
    """What paths and names in one request may mean. All that is given back is absolute and without links.

    Its looks together have one budget: thousands of paths, each a whole root, would keep the service busy for hours.
    """

    def __init__(self, config: ServiceConfig, owns: Callable[[str], bool] = lambda job_id: False) -> None:
        """owns: whether who asks may use what the job with this id has made."""
        files = config.files
        self._owns = owns
        self._own = _real(config.data_dir.expanduser())
        self._names = files.model_names
        self._hub = files.hub_models
        self._data = [_real(root.expanduser()) for root in [*files.data_roots, self._own / "data"]]
        self._models = [_real(root.expanduser()) for root in [*files.model_roots, self._own / "models"]]
        self._looked_at: dict[str, str] = {}
        self._left, self._until = MOST_ENTRIES, time.monotonic() + MOST_S

    def data(self, text: str, setting: str) -> str:
        """A file, a folder or a glob of data. Raises ConfigError for one that is elsewhere, or not there."""
        if text not in self._looked_at:
            with _reading(text, setting):
                self._looked_at[text] = self._look(text, setting)
        return self._looked_at[text]

    def _look(self, text: str, setting: str) -> str:
        self._spend()
        path = self._below(text, setting, self._data, recipes=True)
        if path.exists():
            self._follow([path], setting, text)
            return str(path)
        found = self._matches(path)
        if not found:
            raise ConfigError(f"{setting}: there is no {_shown(text)}", "correct the name, or bring the file there")
        self._follow(found, setting, text)
        return str(path)

    def model(self, text: str, setting: str = "model_name") -> str:
        """The folder of a model, or its name on the hub. Raises ConfigError for one that is not to be had here."""
        if text in self._names:
            folder = _real(self._names[text].expanduser())
            if not folder.is_dir():
                raise ConfigError(
                    f"{setting}: the service's table of models names a folder for {text} that is not there",
                    "ask who runs the service to correct files.model_names",
                )
            return str(folder)
        with _reading(text, setting):
            path = self._found(text, self._models)
            if path is not None and path.is_dir():
                return str(path)
        if _ON_HUB.fullmatch(text) and any(fnmatchcase(text, allowed) for allowed in self._hub):
            return text
        known = ", ".join(sorted(self._names)[:20]) or "none"
        raise ConfigError(
            f"{setting}: there is no model {_shown(text)} that a request may name",
            f"names of models here: {known}; others are added to files.model_names, files.model_roots or "
            "files.hub_models by who runs the service",
        )

    def weights(self, text: str, setting: str) -> str:
        """A file or folder with weights. Raises ConfigError as `data` does."""
        with _reading(text, setting):
            path = self._below(text, setting, self._models)
            if not path.exists():
                raise ConfigError(f"{setting}: there is no {_shown(text)}", "correct the name")
            return str(path)

    def tokenizer(self, text: str, setting: str) -> str:
        """byte, or what `model` gives."""
        return text if text == "byte" else self.model(text, setting)

    def template(self, text: str, setting: str) -> str:
        """The name of a packed chat template, or a file as `data` gives it."""
        return text if _BARE.fullmatch(text) else self.data(text, setting)

    def _below(self, text: str, setting: str, roots: list[Path], *, recipes: bool = False) -> Path:
        path = self._found(text, roots, recipes=recipes)
        if path is None:  # whether anything is there is nobody's business
            raise ConfigError(
                f"{setting}: {_shown(text)} is not below a folder that requests may name",
                "name a file below one of files.data_roots or files.model_roots; ask who runs the service which they "
                "are",
            )
        return path

    def _found(self, text: str, roots: list[Path], *, recipes: bool = False) -> Path | None:
        """The path that a text means, below one of the roots; one that is there is preferred. None: it is elsewhere."""
        if not text or "\0" in text or ".." in Path(text).parts:
            return None
        if text.startswith(PREFIX):
            path = _real(recipes_folder() / text.removeprefix(PREFIX).lstrip("/"))
            return path if recipes and path.is_relative_to(_real(recipes_folder())) else None
        meant = [_real(root / text) for root in roots]  # an absolute text takes the place of the root
        allowed = [path for path in meant if self._is_allowed(path, roots)]
        return next((path for path in allowed if path.exists()), allowed[0] if allowed else None)

    def _is_allowed(self, path: Path, roots: Iterable[Path]) -> bool:
        if path.is_relative_to(self._own):
            # Other owners' jobs, the store: a root that holds the data directory does not open it.
            within = path.relative_to(self._own).parts
            if within[:1] in (("data",), ("models",)):
                return any(root.is_relative_to(self._own) and path.is_relative_to(root) for root in roots)
            made = within[2:3] == ("model",) or within[2:4] == ("run", "checkpoints")
            return within[:1] == ("jobs",) and made and roots is self._models and self._owns(within[1])
        return any(path.is_relative_to(root) for root in roots)

    def _follow(self, paths: list[Path], setting: str, text: str) -> None:
        """Raise ConfigError where a link among these files, or in these folders, leads out of the roots."""
        roots = [*self._data, _real(recipes_folder())]
        for path in paths:
            self._spend()
            if not self._is_allowed(_real(path), roots):
                raise _leads_out(text, setting)
        folders = [path for path in paths if path.is_dir()]
        while folders:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    self._spend()
                    if entry.is_symlink() and not self._is_allowed(_real(Path(entry.path)), roots):
                        raise _leads_out(text, setting)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))

    def _matches(self, pattern: Path) -> list[Path]:
        """What a glob matches, as glob.glob gives it to the run; that one would not stop on the way."""
        if pattern.parts.count("**") > 1:  # would be looked through again and again
            return []
        found: list[Path] = []
        pending = [(Path(pattern.parts[0]), pattern.parts[1:])]
        while pending:
            folder, parts = pending.pop()
            if not parts:
                found.append(folder)
            elif not glob.has_magic(parts[0]):
                self._spend()
                if os.path.lexists(folder / parts[0]):
                    pending.append((folder / parts[0], parts[1:]))
            else:
                pending += self._below_pattern(folder, parts)
        return found

    def _below_pattern(self, folder: Path, parts: tuple[str, ...]) -> Iterator[tuple[Path, tuple[str, ...]]]:
        """What of a folder fits the first part of a pattern, and what of the pattern is left for it."""
        first, rest = parts[0], parts[1:]
        if first == "**" and rest:
            yield folder, rest
        with suppress(OSError), os.scandir(folder) as entries:  # no folder, or a closed one: passed over later too
            for entry in entries:
                self._spend()
                path = folder / entry.name
                if entry.name.startswith(".") and not first.startswith("."):
                    continue
                if first == "**":
                    if _is_folder(entry):
                        yield path, parts
                    if not rest:
                        yield path, ()
                elif fnmatchcase(entry.name, first) and (not rest or _is_folder(entry)):
                    yield path, rest

    def _spend(self) -> None:
        self._left -= 1
        if self._left < 0 or time.monotonic() > self._until:
            raise ConfigError(
                f"what the request names is too much to look at: more than {MOST_ENTRIES:,} files and folders, or more "
                f"than {MOST_S:g} s",
                "name fewer files, or the folders in which just these lie",
            )


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads in a circle must not hide what else is there
        return False


def _leads_out(text: str, setting: str) -> ConfigError:
    return ConfigError(
        f"{setting}: {_shown(text)} has a link that leads out of the folders that requests may name",
        "put the file itself there",
    )


@contextmanager
def _reading(text: str, setting: str) -> Iterator[None]:
    """A name that is too long, or a folder that is closed to the service, is the request's matter."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{setting}: {_shown(text)} cannot be looked at: {error.strerror}", "correct the name, or its permissions"
        ) from None


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _shown(text: str) -> str:
    return repr(text if len(text) <= 200 else text[:200] + "…")
