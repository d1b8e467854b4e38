"""Text files: paths and globs to a sorted list, and their text in pieces, with errors that name what is near."""

from __future__ import annotations

import codecs
import difflib
import glob
import gzip
import hashlib
import logging
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from drumline.config.recipes import expand_path
from drumline.data.text_encoding import UTF_8, encoding_of, name_of, open_bytes
from drumline.errors import DataError

PIECE_CHARS = 2**18
# Best first. GPT-2's and Llama 3's patterns end a word between a letter or digit and white space, but Llama 3's takes
# a full stop and the newlines after it as one word.
_CUTS: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("\n", str.isalnum),
    (" ", str.isalnum),
    ("\n", lambda before: not before.isspace()),
)
_log = logging.getLogger("drumline")


def expand_files(patterns: Sequence[str], setting: str = "data.train", example: str = "*.txt") -> list[Path]:
    """Give the files that paths and globs name, each once, in natural order (chapter_2 before chapter_10).

    `recipes:` names the packed recipes folder, `~` the home folder; a glob passes over folders. `setting` is the key
    that errors name, `example` what files in a folder may be called. Raises DataError for a pattern without a match, a
    path that is no file, and for files that are all empty.
    """
    found: dict[Path, Path] = {}
    for pattern in patterns:
        for path in _match(pattern, setting, example):
            found.setdefault(path.resolve(), path)
    files = sorted(found.values(), key=natural_key)
    if not any(path.stat().st_size for path in files):
        what = "its file is empty" if len(files) == 1 else f"all {len(files)} files are empty"
        raise DataError(f"{setting}: {what}", f"name files with text in {setting}")
    return files


def check_disjoint(train: Sequence[Path], held_out: Sequence[Path]) -> None:
    """Raise DataError where a file or folder is in both splits, also under another name."""
    # By device and inode: a link under another name leaks as much as the same path.
    trained = {(path.stat().st_dev, path.stat().st_ino) for path in train}
    shared = [path for path in held_out if (path.stat().st_dev, path.stat().st_ino) in trained]
    if shared:
        more = f" and {len(shared) - 1} more" if len(shared) > 1 else ""
        raise DataError(
            f"{shared[0]}{more} is in data.train and in data.eval: the evaluation would be of what was trained on",
            "take it out of one of the two, or make the patterns narrower",
        )


def natural_key(path: Path) -> tuple[list[str | int], str]:
    """Sort key that compares runs of digits as numbers; the text itself breaks ties (1 and 01)."""
    text = path.as_posix()
    # Splitting by a group alternates text and digits, so that text is only ever compared with text.
    return [int(part) if i % 2 else part for i, part in enumerate(re.split(r"([0-9]+)", text))], text


def file_digest(path: Path) -> bytes:
    """SHA-256 of a file's content. Raises DataError where it cannot be read."""
    with reading(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def read_pieces(path: Path, size: int = PIECE_CHARS) -> Iterator[str]:
    """Yield a file's text in pieces of about `size` characters, never the whole file at once.

    The encoding is told from the bytes, see text_encoding.py; a byte order mark is no text. The pieces together are the
    text, otherwise unchanged. They are cut where a tokenizer ends a word anyway: before a newline
    or else a space that follows a letter or digit; for text without such a place, before another newline, or anywhere.
    Raises DataError with the byte offset where the file is in no such encoding, or in two.
    """
    position, text, chunk = 0, "", b"x"
    with reading(path), open_bytes(path) as file:
        codec = encoding_of(path)
        if codec != UTF_8:
            _log.info("%s is read as %s, by its bytes", path, name_of(codec))
        elif file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8:
            position = len(codecs.BOM_UTF8)
        file.seek(position)
        decoder = codecs.getincrementaldecoder("utf-8" if codec == UTF_8 else codec)()
        while chunk:
            chunk = file.read(size)
            pending = len(decoder.getstate()[0])
            try:
                text += decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                at = position - pending + error.start
                raise not_text(path, codec, at, error.object[error.start]) from None
            position += len(chunk)
            if len(text) >= size:
                cut = _cut(text)
                yield text[:cut]
                text = text[cut:]
    if text:
        yield text


def nearest(path: Path) -> str:
    """Say what exists near a path that does not: the names most like its first missing part, or the folder's first."""
    missing = path
    while not missing.parent.exists() and missing.parent != missing:
        missing = missing.parent
    folder = missing.parent
    if not folder.is_dir():
        return f"{folder} is not a folder"
    names = sorted((entry.name for entry in folder.iterdir()), key=lambda name: natural_key(Path(name)))
    close = difflib.get_close_matches(missing.name, names, n=3)
    if close:
        return f"{folder} has {', '.join(close)}"
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{folder} has {', '.join(names[:3])}{more}" if names else f"{folder} is empty"


def _match(pattern: str, setting: str, example: str) -> list[Path]:
    path = Path(expand_path(pattern)).expanduser()
    with reading(path):
        # A name with a bracket in it may be a file all the same.
        if path.is_file():
            return [path]
        if path.is_dir():
            files = f"{pattern.rstrip('/')}/{example}"
            raise DataError(f"{setting}: {pattern!r} is a folder, not a file", f"name its files: {files!r}")
        if path.exists():
            raise DataError(f"{setting}: {pattern!r} is not a regular file", "copy its text into a file and name that")
        # Not Path.glob: it would take hidden files, which editors leave behind.
        found = [Path(name) for name in glob.glob(str(path), recursive=True)]  # noqa: PTH207
        matches = [match for match in found if match.is_file()]
        if not matches:
            missing = "no file matches" if glob.has_magic(pattern) else "there is no file"
            raise DataError(f"{setting}: {missing} {pattern!r}", f"correct the name: {nearest(path)}")
    return matches


def _cut(text: str) -> int:
    """Where to end the piece: at least 1, at most all of it."""
    for mark, may_precede in _CUTS:
        end = len(text)
        while (end := text.rfind(mark, 1, end)) > 0:
            if may_precede(text[end - 1]):
                return end
    return len(text)


def not_text(path: Path, codec: str, offset: int, byte: int) -> DataError:
    """The error for a byte that is no character in the encoding that the rest of the file has."""
    if codec != UTF_8:
        return DataError(
            f"{path} begins as {name_of(codec)} text, and byte 0x{byte:02x} at offset {offset} is none",
            "fetch it again, save it as UTF-8, or leave it out",
        )
    return DataError(
        f"{path} is not UTF-8 text: byte 0x{byte:02x} at offset {offset}",
        f"convert it (if it is WINDOWS-1252: iconv -f WINDOWS-1252 -t UTF-8 {path} > converted.txt), or leave it out",
    )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what the system, or gzip, says about reading this file into a DataError that names it."""
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path} is damaged: {error}", "fetch the file again, or compress it again") from error
    except OSError as error:
        reason = error.strerror or (os.strerror(error.errno) if error.errno else str(error))
        raise DataError(f"cannot read {path}: {reason}", "check that the file is there and may be read") from error
