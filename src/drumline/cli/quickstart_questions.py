"""The questions of `drumline quickstart --interactive`, and the recipe that their answers make."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from drumline.errors import ConfigError
from drumline.rundir import write_atomic

if TYPE_CHECKING:
    from drumline.config.schema import RunConfig
    from drumline.hardware.records import Hardware

TASKS = {"text": "quickstart", "classify_text": "classify_text", "classify_images": "classify_images"}
"""What can be learned, by the packed recipe that the new one begins as."""
TRIES = 3
"""How often a question is asked before the command gives up: input that is no person's would never end it."""
OWN = "my_recipe"
PACKED = "what comes with the recipe"

Reader = Callable[[str], str]
"""Shows a question and returns the line; raises EOFError where there is none."""


def ask_for_recipe(read: Reader | None = None) -> None:
    """Ask, write a recipe into a new file of this folder, and say how to run it."""
    from drumline.hardware.inventory import detect

    hardware = detect()
    where = f"{len(hardware.gpus)} GPU(s)" if hardware.gpus else f"no GPU ({hardware.gpu_source})"
    typer.echo(f"found: {where}, {hardware.host.cpu_cores} CPU cores. Enter takes what stands in brackets.")
    recipe, overrides = answers(hardware, read or read_line)
    path = write_recipe(recipe, overrides, Path())
    typer.echo(f"wrote {path}; train it with:\n  drumline train {path}")


def answers(hardware: Hardware, read: Reader) -> tuple[str, list[str]]:
    """The packed recipe that was chosen, and what is set in it. Raises ConfigError after too many bad answers."""
    from drumline.config.load import load_config

    recipe = _ask(read, f"What to learn: {', '.join(TASKS)}", "text", _task)
    base = load_config(recipe)
    most, overrides = len(hardware.gpus), []
    count = _ask(
        read,
        "How many GPUs" if most else "How many CPU processes",
        str(most or base.hardware.num_processes or 1),
        lambda text: _number(text, most or None),
    )
    if not most:
        overrides.append(f"hardware.num_processes={count}")
    elif count < most:
        overrides.append(f"hardware.count={count}")
    own = _ask(read, "Training data: a path", PACKED, _path)
    if own is not None:
        overrides += [f"data.train={json.dumps([own])}", "data.eval=[]"]  # the recipe's rows say nothing of other data
        if getattr(base.data, "columns", None):
            overrides.append("data.columns={}")
    batch = _ask(read, "Samples an update, over all devices", str(base.train.global_batch), _number)
    if batch != base.train.global_batch:
        overrides.append(f"train.global_batch={batch}")
    overrides += _length(read, base)
    return recipe, overrides


def _length(read: Reader, base: RunConfig) -> list[str]:
    """The last question; a recipe that counts updates goes on doing so unless epochs are wanted."""
    steps, epochs = base.train.max_steps, base.train.epochs
    default = str(epochs) if epochs is not None else f"{steps} updates"
    wanted = _ask(read, "Epochs", default, lambda text: None if text == default else _number(text))
    return [] if wanted is None else ["train.max_steps=null", f"train.epochs={wanted}"]


def write_recipe(recipe: str, overrides: list[str], folder: Path) -> Path:
    """Write the recipe with its changes to my_recipe.yaml, or with a number behind it where that is taken."""
    from drumline.config.load import dump_changed

    text = f"# Made by drumline quickstart --interactive, of recipe {recipe}.\n{dump_changed(recipe, overrides)}"
    for number in itertools.count(1):
        path = folder / (f"{OWN}.yaml" if number == 1 else f"{OWN}_{number}.yaml")
        try:
            path.open("x").close()  # the name is ours from here on
        except FileExistsError:
            continue
        except OSError as error:
            raise _unwritten(path, error) from None
        break
    try:
        write_atomic(path, text)
    except OSError as error:
        path.unlink()
        raise _unwritten(path, error) from None
    return path


def _unwritten(path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{path} cannot be written: {error.strerror}", "go to a folder of your own")


def read_line(question: str) -> str:
    """A line of standard input; where nobody types it, it is shown behind the question."""
    if sys.stdin.isatty():
        return input(question)
    typer.echo(question, nl=False)
    line = sys.stdin.readline()
    typer.echo(line.rstrip("\n"))
    if not line:
        raise EOFError
    return line


def _ask(read: Reader, question: str, default: str, meaning: Callable[[str], Any]) -> Any:
    """What an answer means; ValueError of `meaning` has it asked again. The end of input takes the default."""
    for _ in range(TRIES):
        try:
            text = read(f"{question} [{default}]: ").strip() or default
        except EOFError:
            text = default
        try:
            return meaning(text)
        except ValueError as error:
            typer.echo(f"  {error}", err=True)
    raise ConfigError(f"{question}: no answer that can be used", "press Enter for what stands in brackets")


def _task(text: str) -> str:
    if text not in TASKS:
        raise ValueError(f"{text} is none of {', '.join(TASKS)}")
    return TASKS[text]


def _number(text: str, most: int | None = None) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1 or (most is not None and number > most):
        raise ValueError(f"{text} is no number from 1 " + ("on" if most is None else f"to {most}"))
    return number


def _path(text: str) -> str | None:
    """None for the data that comes with the recipe. A path may be a pattern."""
    if text == PACKED:
        return None
    given = Path(text).expanduser()
    if not any(Path(given.anchor).glob(str(given.relative_to(given.anchor)))):
        raise ValueError(f"there is no {text}")
    return str(given)
