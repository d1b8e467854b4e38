"""Standard logging under the name "drumline"; the root logger and its handlers are never touched.

Records travel up to the root as any library's do. Once the root has a handler, the root decides what reaches the
screen: drumline's own console handler stays silent, so that nothing is shown twice, and drumline leaves its level as
it is, so that no INFO record appears that nobody asked for. Under a bare root, drumline logs from INFO on.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path

LOGGER = "drumline"


def log_to_file(path: Path, rank: int) -> Callable[[], None]:
    """Append records of drumline's loggers to a file, with time, rank and level; returns what undoes it."""
    handler = logging.FileHandler(path, encoding="utf-8")
    layout = f"%(asctime)s.%(msecs)03d rank {rank} %(levelname)s %(name)s: %(message)s"
    handler.setFormatter(logging.Formatter(layout, datefmt="%Y-%m-%d %H:%M:%S"))
    return _add(handler)


def console_handler() -> Callable[[], None]:
    """Show warnings and errors on standard error, for rank 0; returns what undoes it. A second call adds nothing."""
    logger = logging.getLogger(LOGGER)
    if any(isinstance(handler, _ConsoleHandler) for handler in logger.handlers):
        return lambda: None
    handler = _ConsoleHandler(logging.WARNING)
    handler.addFilter(lambda record: not logging.getLogger().handlers)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    return _add(handler)


class _ConsoleHandler(logging.Handler):
    """Writes to whatever sys.stderr is at that moment, as a progress bar puts itself in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)  # logging's own policy: a log line never ends the program


def _add(handler: logging.Handler) -> Callable[[], None]:
    logger = logging.getLogger(LOGGER)
    lower_level = logger.level == logging.NOTSET and not logging.getLogger().handlers
    if lower_level:
        logger.setLevel(logging.INFO)
    logger.addHandler(handler)

    def undo() -> None:
        logger.removeHandler(handler)
        handler.close()
        if lower_level:
            logger.setLevel(logging.NOTSET)

    return undo
