"""Files from the Hugging Face hub in its cache on this machine: fetched once, and only those that are wanted."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumline.config.recipes import expand_path
from drumline.errors import ConfigError, DataError, DrumlineError, MissingExtra

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
    "additional_chat_templates/*.jinja",
)
"""Patterns of the files that turn text into ids, and chats into text."""

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
"""Name or org/name, as the hub has them (huggingface_hub's validate_repo_id)."""

_logger = logging.getLogger(__name__)

_commits: dict[tuple[str, str | None, Path], str] = {}
"""What a name and a revision were in this process, by cache: a run must not see a branch move on under it."""


@dataclass(frozen=True)
class Hub:
    """How to get at a repository on the hub."""

    revision: str | None = None
    """Branch, tag or commit; None: the repository's default."""
    cache_dir: Path | None = None
    token_variable: str = "HF_TOKEN"

    @property
    def token(self) -> str | bool | None:
        """The token in the environment variable; None: the one that `hf auth login` has left, if any."""
        return os.environ.get(self.token_variable) or None


def local_folder(name: str) -> Path | None:
    """The folder that a setting names, `recipes:` and `~` understood; None where it can only be a name on the hub."""
    folder = Path(expand_path(name)).expanduser()
    return folder if folder.is_dir() or not _NAME.fullmatch(name) else None


def fetch(name: str, setting: str, wanted: Sequence[str], hub: Hub) -> Path:
    """The folder in the hub's cache with those files of a repository that match a pattern in `wanted`.

    setting: what names it, for errors. The processes of a machine do it one after another, and the first has done it
    for all. What is in the cache already is used where the hub cannot be reached. Raises ConfigError for a repository
    or revision that is not there or not to be had with this token, DataError where the hub cannot be reached and the
    cache lacks files, MissingExtra without huggingface_hub.
    """
    try:
        import huggingface_hub.constants  # by name: the package itself loads it only for what is asked of it later
    except ImportError as error:
        raise MissingExtra("huggingface_hub", "hf") from error
    cache = Path(hub.cache_dir or huggingface_hub.constants.HF_HUB_CACHE).expanduser()
    key = (name, hub.revision, cache)
    try:
        with _locked(cache, name, setting):
            folder = huggingface_hub.snapshot_download(
                name,
                revision=_commits.get(key, hub.revision),
                cache_dir=cache,
                token=hub.token,
                endpoint=os.environ.get("HF_ENDPOINT"),
                allow_patterns=list(wanted),
            )
    except DrumlineError:
        raise
    except Exception as error:  # its errors come from four packages, some of which no version names alike
        raise _told(error, name, setting, hub, cache) from error
    _commits[key] = Path(folder).name
    _logger.info("%s is %s at %s on the hub, in %s", setting, name, Path(folder).name, folder)
    return Path(folder)


@contextmanager
def _locked(cache: Path, name: str, setting: str) -> Iterator[None]:
    """One process at a time; the lock goes with its process.

    Without a lock where the cache can only be read: what is there is used, and what must be written fails by itself.
    """
    locks = cache / ".locks"
    with ExitStack() as stack:
        try:
            locks.mkdir(parents=True, exist_ok=True)
            path = locks / f"drumline-{hashlib.sha256(name.encode()).hexdigest()[:16]}.lock"
            file = stack.enter_context(path.open("w"))
        except OSError as error:
            _logger.debug("%s: no lock in the hub's cache %s: %s", setting, cache, error.strerror)
        else:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _told(error: Exception, name: str, setting: str, hub: Hub, cache: Path) -> DrumlineError:
    """What the hub or the way to it said, as an error with a way out."""
    from huggingface_hub import errors

    where = f"{setting}: {name}"
    token = f"${hub.token_variable}" if hub.token else f"no token (${hub.token_variable} is not set)"
    at = f"revision {hub.revision}" if hub.revision else "its default revision"
    found: Any = getattr(error, "response", None)
    status = getattr(found, "status_code", None)
    if isinstance(error, errors.GatedRepoError):
        return ConfigError(
            f"{where} is gated on the hub, and {token} does not open it",
            f"accept its terms on its page, and put a token of your account into ${hub.token_variable}",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return ConfigError(f"{where} has no revision {hub.revision!r} on the hub", "name a branch, a tag or a commit")
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403):
        return ConfigError(
            f"{where} is neither a folder here nor a repository on the hub that can be read with {token}",
            f"check the name (org/name); a private one needs a token in ${hub.token_variable}",
        )
    if isinstance(error, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
        why = "HF_HUB_OFFLINE is set" if _is_offline() else "the hub cannot be reached"
        return DataError(
            f"{where} is no folder here, {why}, and the cache does not hold all of {at}",
            "fetch it once where there is network, copy it here and name the folder, or set model.cache_dir to a cache "
            "that has it",
        )
    if isinstance(error, errors.HFValidationError):
        return ConfigError(f"{where} is neither a folder here nor a name on the hub", "write org/name, or a folder")
    if isinstance(error, OSError) and error.errno is not None and status is None:
        return DataError(
            f"{where}: the hub's cache {cache} cannot be written: {error.strerror}",
            "free space, or set model.cache_dir to another",
        )
    return DataError(
        f"{where} could not be fetched from the hub: {type(error).__name__}: {str(error).partition(chr(10))[0]}",
        "try again; if the hub is down, name a folder on disk",
    )


def _is_offline() -> bool:
    import huggingface_hub

    return bool(huggingface_hub.constants.HF_HUB_OFFLINE)
