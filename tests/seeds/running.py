"""Runs one block of a document in a folder of its own, as its reader would: a script, or commands of a shell."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.seeds.blocks import Block, blocks_of
from tests.seeds.cases import Case

ROOT = Path(__file__).parents[2]


def mended(text: str, case: Case) -> str:
    """A block's text with all changes made. Raises ValueError where a mend does not fit the block."""
    for mend in case.mends:
        text = mend.apply(text)
    return text


def program(block: Block, case: Case) -> str:
    """The text that runs; for YAML the Python around it, which reads block.yaml. Raises ValueError as `mended` does."""
    text = case.instead if block.language == "yaml" else mended(case.instead or block.text, case)
    parts = [part for part in (case.before, text, case.after) if part]
    if not case.awaits:
        return "\n".join(parts)
    inner = textwrap.indent("\n".join(parts), "    ")
    return f"import asyncio\n\n\nasync def as_coroutine():\n{inner}\n\n\nasyncio.run(as_coroutine())\n"


def run(block: Block, case: Case, folder: Path, models: Path) -> subprocess.CompletedProcess[str]:
    """Run it to its end; standard error goes where the output goes. models: where it finds SEED_MODELS."""
    for name, text in case.files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    language = {"text": "bash", "yaml": "python"}.get(block.language, block.language)
    if block.language == "yaml":
        (folder / "block.yaml").write_text(mended(block.text, case), encoding="utf-8")
    script = folder / ("block.py" if language == "python" else "block.sh")
    script.write_text(program(block, case), encoding="utf-8")
    command = [sys.executable, script.name] if language == "python" else ["bash", "-euo", "pipefail", script.name]
    places = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    environment = {
        **os.environ,
        "PATH": os.pathsep.join(places),
        "PYTHONPATH": f"{folder}:{ROOT}",
        "SEED_MODELS": str(models),
    }
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=case.timeout_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also what a shell has left running
    return subprocess.CompletedProcess(command, process.returncode, output)


def check(block: Block, case: Case, folder: Path, models: Path) -> None:
    """Fail with what the block said, unless it ended well."""
    ended = run(block, case, folder, models)
    assert ended.returncode == 0, f"exit status {ended.returncode}\n{ended.stdout[-4000:]}"


def every_block(name: str, cases: Mapping[int, Case]) -> list[Any]:
    """A document's blocks with their cases, for parametrize."""
    return [
        pytest.param(block, case, id=str(block.number), marks=[pytest.mark.long] if case.is_long else [])
        for block in blocks_of(name)
        for case in [cases[block.number]]
    ]
