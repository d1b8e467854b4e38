"""Makes an InferenceConfig: defaults, then a YAML file, then arguments, then `a.b=c` overrides; and writes one back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from drumline.config.inference import InferenceConfig
from drumline.config.load import apply_override, validated
from drumline.config.problem import Key, Place, Problem, refuse
from drumline.config.source import Dumper, Layer, from_mapping, read_file

ARGUMENTS: dict[Key, str] = {
    ("model", "path"): "--model",
    ("rows", "files"): "--data",
    ("rows", "limit"): "--limit",
    ("output", "file"): "--out",
    ("task",): "--task",
    ("task", "prompt", "strategy"): "--strategy",
    ("task", "prompt", "prompt"): "--prompt",
    ("task", "labels"): "--labels",
}
"""What the command calls these settings."""
NEEDED: tuple[Key, ...] = (("model", "path"), ("rows", "files"), ("output", "file"))


def load_inference_config(
    path: str | Path | None, values: Mapping[str, Any], overrides: Sequence[str] = ()
) -> InferenceConfig:
    """Read a file (None: defaults only), put nested values over it, then overrides in their order.

    `task` may be a bare kind. Paths of what is there are absolute then. Raises ConfigError that lists every mistake
    with its file and line, its argument or its override.
    """
    if path is None:
        layer = Layer({}, {(): Place("the arguments")})
    else:
        layer = read_file(Path(path), called="a prediction's file", if_empty="write settings into it, or leave it out")
    _name_kind(layer)
    for key, value in _leaves(values):
        _choose_kind(layer, value) if key == ("task",) else layer.put(key, from_mapping(value, ARGUMENTS.get(key, "")))
    for override in overrides:
        apply_override(layer, override, example="task.max_new_tokens=64")
        _name_kind(layer)
    _require(layer)
    return _absolute(validated(layer, InferenceConfig))


def dump_inference_config(config: InferenceConfig) -> str:
    """Write every setting as YAML; load_inference_config reads an equal InferenceConfig from it."""
    values = config.model_dump(mode="json")
    return yaml.dump(values, Dumper=Dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=120)


def _leaves(values: Mapping[str, Any], above: Key = ()) -> Iterator[tuple[Key, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, (*above, name))
        else:
            yield (*above, name), value


def _choose_kind(layer: Layer, kind: Any) -> None:
    """Take a kind of task; settings of the file's task stay where it is of this kind."""
    known = layer.value.get("task")
    if not isinstance(known, dict) or known.get("kind", kind) != kind:
        layer.put(("task",), from_mapping({}, ARGUMENTS["task",]))
    layer.put(("task", "kind"), from_mapping(kind, ARGUMENTS["task",]))


def _name_kind(layer: Layer) -> None:
    """Write a bare kind out: `task: choose` is `task: {kind: choose}`."""
    kind = layer.value.get("task")
    if isinstance(kind, str):
        place = layer.places["task",]
        layer.value["task"] = {"kind": kind}
        layer.places["task", "kind"] = place


def _require(layer: Layer) -> None:
    """Name what nobody has given as the command calls it, before pydantic calls it a missing section."""
    problems = []
    for key in NEEDED:
        section, known = layer.value.get(key[0]), {name for name in layer.places if name[: len(key)] == key}
        if not known and (section is None or isinstance(section, dict)):
            problems.append(Problem(None, key, "is not given", f"add {ARGUMENTS[key]}, or {'.'.join(map(str, key))}"))
    if problems:
        raise refuse([*layer.problems, *problems])


def _absolute(config: InferenceConfig) -> InferenceConfig:
    """The same, that means the same in any folder: workers and later attempts may begin elsewhere."""
    output = config.output.model_copy(update={"file": _whole(config.output.file)})
    rows = config.rows.model_copy(update={"files": [str(_whole(Path(file))) for file in config.rows.files]})
    model = config.model.model_copy(update={"path": _if_there(config.model.path)})
    task: Any = config.task
    if hasattr(task, "prompt"):
        prompt = task.prompt
        files = {name: _if_there(getattr(prompt, name)) for name in ("strategy", "template")}
        task = task.model_copy(update={"prompt": prompt.model_copy(update=files)})
    run_dir = None if config.run_dir is None else _whole(config.run_dir)
    changed = {"output": output, "rows": rows, "model": model, "task": task, "run_dir": run_dir}
    return config.model_copy(update=changed)


def _whole(path: Path) -> Path:
    return path.expanduser().absolute()


def _if_there(name: str | None) -> str | None:
    """A name as it stands, unless something lies there: then it is a path and no name."""
    if name is None or not (path := _whole(Path(name))).exists():
        return name
    return str(path)
