"""What `drumline config validate --deep` starts: builds a recipe's parts, and reads a first batch of its data."""

from __future__ import annotations

import sys
from pathlib import Path

from drumline.build.parts import build_parts, first_batch
from drumline.config.load import load_config
from drumline.errors import DrumlineError
from drumline.track.logs import console_handler


def check(config_file: Path) -> int:
    """Build everything but the trainer; returns the exit status, with the problem on standard error."""
    console_handler()
    try:
        first_batch(build_parts(load_config(config_file)))
    except DrumlineError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(check(Path(sys.argv[1])))
