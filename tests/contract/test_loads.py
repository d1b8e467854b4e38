"""Case 15: whatever reads tensors from a file names the CPU, and runs no code of the file's."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"

WANTED = {
    "torch.load": {"map_location": "'cpu'", "weights_only": "True"},
    "safe_open": {"device": "'cpu'"},
}
"""By the function's name, what its keywords must say."""


def careless_loads(source: Path) -> Iterator[str]:
    """Calls below a folder that leave open where tensors go, or let a pickle run."""
    for path in sorted(source.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            wanted = WANTED.get(ast.unparse(node.func), {})
            given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
            if any(given.get(name) != value for name, value in wanted.items()):
                yield f"{path}:{node.lineno}: {ast.unparse(node)}"


def test_every_load_names_the_cpu() -> None:
    assert list(careless_loads(SOURCE)) == []


@pytest.mark.parametrize(
    "call",
    [
        "torch.load(path, weights_only=True)",
        "torch.load(path, map_location='cuda', weights_only=True)",
        "torch.load(path, map_location='cpu')",
        "torch.load(path, map_location='cpu', weights_only=False)",
        "safe_open(path, framework='pt')",
    ],
)
def test_a_careless_load_is_noticed(tmp_path: Path, call: str) -> None:
    (tmp_path / "new.py").write_text(f"{call}\ntorch.load(path, map_location='cpu', weights_only=True)\n")
    assert len(list(careless_loads(tmp_path))) == 1
