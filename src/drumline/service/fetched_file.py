"""A file that comes over the wire: under its name only once it is whole."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from drumline.errors import ConfigError
from drumline.rundir import sync_directory


@contextmanager
def fetched_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, which takes its name when the block ends well, and leaves nothing when it does not.

    Raises ConfigError where it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}", "name another file") from error
    finally:
        temporary.unlink(missing_ok=True)
