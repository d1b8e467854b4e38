"""Finds the code blocks of a Markdown file and runs them as a reader would, top to bottom in one folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

RUN = frozenset({"python", "bash", "console"})
NOT_CODE = frozenset({"text", "yaml", "json", "toml", "html", "csv", "diff"})

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+|~~~+) *(?P<language>[^\s`]*)")
_MARKER = re.compile(r"^\s*<!-- not run: (?P<reason>.*\S) -->\s*$")
_FILE_NAME = re.compile(r"^# (?P<name>[\w-]+\.py)$")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it starts (line of the fence, from 1), its language and text, and why it is not run."""

    line: int
    language: str
    text: str
    not_run: str | None


def find_blocks(text: str) -> list[Block]:
    """All fenced blocks. Raises ValueError for a fence without end, and for a language that is not known."""
    lines = text.splitlines()
    blocks = []
    number = 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        if fence is None:
            number += 1
            continue
        end = number + 1
        while end < len(lines) and lines[end].strip() != fence["ticks"]:
            end += 1
        if end == len(lines):
            raise ValueError(f"line {number + 1}: the code block has no end")
        if fence["language"] not in RUN | NOT_CODE:
            known = ", ".join(sorted(RUN | NOT_CODE))
            raise ValueError(f"line {number + 1}: call the language of the block one of {known}")
        body = [line.removeprefix(fence["indent"]) for line in lines[number + 1 : end]]
        blocks.append(Block(number + 1, fence["language"], "\n".join(body) + "\n", _reason_before(lines[:number])))
        number = end + 1
    return blocks


def _reason_before(lines: list[str]) -> str | None:
    above = next((line for line in reversed(lines) if line.strip()), "")
    marker = _MARKER.match(above)
    return marker["reason"] if marker else None


def run_blocks(path: Path, folder: Path, timeout: float = 300.0) -> list[str]:
    """Run the blocks of one document in `folder`, in order; one entry a block that failed, empty if all is well.

    A python block that begins with a comment of only a file name is kept under that name, so that later blocks can
    start it. Commands are found first in this environment's bin folder.
    """
    failures = []
    for block in find_blocks(path.read_text(encoding="utf-8")):
        if block.language not in RUN or block.not_run:
            continue
        command = _command(block, folder)
        try:
            result = subprocess.run(
                command,
                cwd=folder,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            failures.append(f"{path.name}:{block.line}: not done after {timeout} s")
            continue
        if result.returncode:
            failures.append(f"{path.name}:{block.line}: exit status {result.returncode}\n{result.stdout[-4000:]}")
    return failures


def _command(block: Block, folder: Path) -> list[str]:
    if block.language == "python":
        named = _FILE_NAME.match(block.text.split("\n", 1)[0])
        script = folder / (named["name"] if named else f"block_{block.line}.py")
        script.write_text(block.text, encoding="utf-8")
        return [sys.executable, script.name]
    text = block.text if block.language == "bash" else _typed(block.text)
    return ["bash", "-euo", "pipefail", "-c", text]


def _typed(session: str) -> str:
    """What a person typed in a console block: lines after `$ `, and `> ` for their continuation."""
    lines = session.splitlines()
    return "\n".join(line[2:] for line in lines if line.startswith(("$ ", "> ")))


def _environment() -> dict[str, str]:
    binaries = str(Path(sys.executable).parent)
    return {**os.environ, "PATH": os.pathsep.join([binaries, os.environ.get("PATH", "")])}
