"""The house rules on source text, as functions that take a tree of files and return one line a breach."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_LOOP_LINES = 100
MAX_PARAMETERS = 7
MAX_PUBLIC_METHODS = 15
MAX_ADAPTER_LINES = 900
COMPUTES = frozenset(
    {"backward", "zero_grad", "step", "no_grad", "autocast", "all_reduce", "broadcast", "reduce", "synchronize"}
)
"""Methods and functions by which a model is trained or its numbers are put together."""
VAGUE_NAMES = frozenset({"util", "utils", "helper", "helpers", "common", "misc", "manager"})

# Rooms in the order of the design, from the bottom up: each may import those before it on its side, and the base.
BASE = ("errors", "rundir", "manifest", "predictions", "config", "hardware", "plan", "launcher")
TORCH_SIDE = ("parallel", "data", "models", "tasks", "track", "engine", "infer", "bench", "build", "worker")
CONTROL_SIDE = ("monitor", "jobs", "tune", "service", "cli", "__main__")
ABOVE_BOTH_SIDES = frozenset({"adapters", "__init__"})
"""They import lazily; that they load no torch is another test's matter."""
MEETING_POINTS = {"cli": {"track"}}
"""What the control side may import from the torch side: torch-free code that only reads run directories."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def allowed_imports() -> dict[str, frozenset[str]]:
    """Room -> rooms that it may import besides itself."""
    allowed: dict[str, frozenset[str]] = {}
    for below, side in (((), BASE), (BASE, TORCH_SIDE), (BASE, CONTROL_SIDE)):
        for index, room in enumerate(side):
            allowed[room] = frozenset({*below, *side[:index], *MEETING_POINTS.get(room, ())})
    return allowed


def layer_breaches(package: Path) -> list[str]:
    """Imports, function-level ones too, that do not go downward."""
    allowed = allowed_imports()
    breaches = []
    for path, tree in _parsed(package):
        parts = path.relative_to(package).with_suffix("").parts
        room = parts[0]
        if room in ABOVE_BOTH_SIDES:
            continue
        if room not in allowed:
            breaches.append(f"{path}: the design knows no room {room!r}")
            continue
        for line, target in _package_imports(tree, package.name, parts):
            other = target.split(".")[0]
            if other not in ("", "__version__", room) and other not in allowed[room]:
                breaches.append(f"{path}:{line}: {room} must not import {package.name}.{target}")
    return breaches


def file_breaches(tree: Path) -> list[str]:
    """Files of more than MAX_FILE_LINES lines."""
    counts = ((path, len(path.read_text(encoding="utf-8").splitlines())) for path in sources(tree))
    return [f"{path}: {lines} lines, {MAX_FILE_LINES} at most" for path, lines in counts if lines > MAX_FILE_LINES]


def function_breaches(tree: Path, long_functions: Mapping[str, str]) -> list[str]:
    """Functions with too many lines or parameters. `long_functions`: `folder/file.py:name` -> why it may be longer."""
    breaches = []
    for path, module in _parsed(tree):
        for node in ast.walk(module):
            if not isinstance(node, Function):
                continue
            name = f"{path.relative_to(tree).as_posix()}:{node.name}"
            limit = MAX_LOOP_LINES if name in long_functions else MAX_FUNCTION_LINES
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > limit:
                breaches.append(f"{name} has {lines} lines, {limit} at most")
            if (count := _num_parameters(node)) > MAX_PARAMETERS:
                breaches.append(f"{name} has {count} parameters, {MAX_PARAMETERS} at most")
    return breaches


def class_breaches(tree: Path) -> list[str]:
    """Classes with more than MAX_PUBLIC_METHODS public methods and properties."""
    breaches = []
    for path, module in _parsed(tree):
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                public = {item.name for item in node.body if isinstance(item, Function) and item.name[0] != "_"}
                if len(public) > MAX_PUBLIC_METHODS:
                    breaches.append(f"{path}:{node.name} has {len(public)} public methods")
    return breaches


def adapter_breaches(adapters: Path) -> list[str]:
    """Calls of what computes, and adapters (a module or a package) of more than MAX_ADAPTER_LINES lines."""
    breaches, sizes = [], dict[str, int]()
    for path, module in _parsed(adapters):
        name = path.relative_to(adapters).with_suffix("").parts[0]
        sizes[name] = sizes.get(name, 0) + len(path.read_text(encoding="utf-8").splitlines())
        for node in ast.walk(module):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in COMPUTES:
                breaches.append(f"{path}:{node.lineno}: {node.func.attr} computes; drumline has it elsewhere")
    breaches += [f"{name}: {size} lines" for name, size in sizes.items() if size > MAX_ADAPTER_LINES]
    return breaches


def name_breaches(tree: Path) -> list[str]:
    """Modules and classes with a name that says nothing, and modules that shadow the standard library."""
    breaches = []
    for path, module in _parsed(tree):
        parts = path.relative_to(tree).with_suffix("").parts
        if "adapters" in parts:
            continue
        for part in parts:
            if VAGUE_NAMES & set(part.lower().split("_")):
                breaches.append(f"{path}: {part!r} says nothing")
        if parts[-1] in sys.stdlib_module_names:
            breaches.append(f"{path} shadows the standard library")
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef) and node.name.lower().endswith(tuple(VAGUE_NAMES)):
                breaches.append(f"{path}:{node.name} says nothing")
    return breaches


def sources(tree: Path) -> list[Path]:
    """Python files below a folder, in order."""
    return sorted(tree.rglob("*.py"))


def _parsed(tree: Path) -> Iterator[tuple[Path, ast.Module]]:
    for path in sources(tree):
        yield path, ast.parse(path.read_text(encoding="utf-8"), str(path))


def _package_imports(tree: ast.Module, package: str, parts: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Line and dotted name below the package of everything that a module imports from it."""
    folder = parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == package or alias.name.startswith(package + "."):
                    yield node.lineno, alias.name[len(package) + 1 :]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                above = folder[: len(folder) - node.level + 1]
                base = ".".join([*above, *(node.module or "").split(".")]).strip(".")
            elif node.module == package:
                base = ""
            elif node.module and node.module.startswith(package + "."):
                base = node.module[len(package) + 1 :]
            else:
                continue
            for alias in node.names:
                yield node.lineno, base or alias.name


def _num_parameters(node: Function) -> int:
    """All that a caller may give, `self` and `cls` aside."""
    arguments = node.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    names += [argument.arg for argument in (arguments.vararg, arguments.kwarg) if argument is not None]
    return len(names) - (names[:1] in (["self"], ["cls"]))
