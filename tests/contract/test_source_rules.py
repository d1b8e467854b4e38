"""Layers, sizes and names hold in this repository, and each rule catches a planted breach."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.contract import source_rules

ROOT = Path(__file__).parents[2]
TREES = (ROOT / "src", ROOT / "tests")
PACKAGE = ROOT / "src" / "drumline"

LONG_FUNCTIONS: dict[str, str] = {}
"""`folder/file.py:name` -> why; only the loop and the step may stand here."""


def test_imports_go_downward() -> None:
    breaches = source_rules.layer_breaches(PACKAGE)
    assert not breaches, "\n".join(breaches)


def test_adapters_compute_nothing() -> None:
    assert len(source_rules.sources(PACKAGE / "adapters")) > 4
    breaches = source_rules.adapter_breaches(PACKAGE / "adapters")
    assert not breaches, "\n".join(breaches)


def test_an_adapter_that_computes_is_noticed(tmp_path: Path) -> None:
    plant(tmp_path, "old/trainer.py", "loss.backward()\noptimizer.step()\n")
    plant(tmp_path, "long.py", "x = 1\n" * (source_rules.MAX_ADAPTER_LINES + 1))
    assert len(source_rules.adapter_breaches(tmp_path)) == 3


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.name)
def test_sizes(tree: Path) -> None:
    assert len(source_rules.sources(tree)) > 20
    breaches = source_rules.file_breaches(tree)
    breaches += source_rules.function_breaches(tree, LONG_FUNCTIONS)
    breaches += source_rules.class_breaches(tree)
    assert not breaches, "\n".join(breaches)


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.name)
def test_names(tree: Path) -> None:
    breaches = source_rules.name_breaches(tree)
    assert not breaches, "\n".join(breaches)


def test_the_list_of_long_functions_is_short_and_needed() -> None:
    assert len(LONG_FUNCTIONS) <= 3
    breaches = source_rules.function_breaches(ROOT / "src", {})
    assert all(any(breach.startswith(f"{name} has") for breach in breaches) for name in LONG_FUNCTIONS)


def plant(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("config/a.py", "from drumline.plan.record import Plan", "config must not import drumline.plan.record"),
        ("config/a.py", "import drumline.hardware.nvml", "config must not import drumline.hardware.nvml"),
        ("config/a.py", "from drumline import plan", "config must not import drumline.plan"),
        ("config/a.py", "from ..engine import loop", "config must not import drumline.engine"),
        ("config/a.py", "from .. import engine", "config must not import drumline.engine"),
        ("config/b/a.py", "from ...plan import x", "config must not import drumline.plan"),
        ("data/a.py", "def f():\n    from drumline.engine.loop import x", "data must not import drumline.engine.loop"),
        ("cli/a.py", "from drumline.engine.trainer import T", "cli must not import drumline.engine.trainer"),
        ("engine/a.py", "from drumline.monitor import x", "engine must not import drumline.monitor"),
        ("build.py", "import drumline.worker", "build must not import drumline.worker"),
        ("config/a.py", "from drumline import Trainer", "config must not import drumline.Trainer"),
        ("shed/a.py", "", "knows no room 'shed'"),
    ],
)
def test_an_upward_import_is_caught(tmp_path: Path, name: str, text: str, expected: str) -> None:
    breaches = source_rules.layer_breaches(plant(tmp_path / "drumline", name, text))
    assert len(breaches) == 1 and expected in breaches[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("plan/a.py", "from drumline.config.schema import RunConfig\nimport drumline.errors\nimport drumlines.engine"),
        (
            "engine/a.py",
            "from drumline.data.order import x\nfrom . import loop\nfrom .loop import y\nfrom drumline import plan",
        ),
        (
            "cli/a.py",
            "from drumline.track.report import render\nfrom drumline import __version__, plan",
        ),
        ("worker.py", "from drumline import build"),
        ("__init__.py", "def f():\n    from drumline.engine.trainer import Trainer"),
    ],
)
def test_a_downward_import_is_not(tmp_path: Path, name: str, text: str) -> None:
    assert source_rules.layer_breaches(plant(tmp_path / "drumline", name, text)) == []


def function_breaches(tree: Path) -> list[str]:
    return source_rules.function_breaches(tree, {"a.py:loop": "planted"})


def body(name: str, lines: int) -> str:
    return f"def {name}():\n" + "    x = 1\n" * (lines - 1)


def with_methods(count: int) -> str:
    return "class A:\n" + "".join(f"    def m{i}(self): ...\n" for i in range(count)) + "    def _hidden(self): ...\n"


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (source_rules.file_breaches, "x = 1\n" * 400, "x = 1\n" * 401),
        (function_breaches, body("f", 60), body("f", 61)),
        (function_breaches, body("loop", 100), body("loop", 101)),
        (
            function_breaches,
            "class A:\n    async def f(self, a, b, /, c, *d, e, f, **g): ...",
            "def f(a,b,c,d,e,f,g,h): ...",
        ),
        (source_rules.class_breaches, with_methods(15), with_methods(16)),
        (source_rules.name_breaches, "class CommonSense: ...", "class RunManager: ..."),
    ],
)
def test_sizes_are_counted(tmp_path: Path, rule: Callable[[Path], list[str]], good: str, bad: str) -> None:
    assert rule(plant(tmp_path / "good", "a.py", good)) == []
    assert len(rule(plant(tmp_path / "bad", "a.py", bad))) == 1


@pytest.mark.parametrize(
    "name", ["utils.py", "data/helpers.py", "data_utils.py", "common/a.py", "Manager.py", "json.py"]
)
def test_a_vague_or_taken_module_name_is_caught(tmp_path: Path, name: str) -> None:
    assert len(source_rules.name_breaches(plant(tmp_path / "elsewhere", name, ""))) == 1
    assert source_rules.name_breaches(plant(tmp_path / "excepted", f"adapters/{name}", "")) == []
