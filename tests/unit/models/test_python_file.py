"""A user's own model file."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from drumline.config.schema import RunConfig
from drumline.errors import ConfigError
from drumline.models.python_file import DataFacts, load_file

MODEL = "from torch import nn\ndef make_model(config): return nn.Linear(config.seed + 1, 2)\n"
FACTS = DataFacts(classes=("a", "b", "c"))


@pytest.fixture(autouse=True)
def import_system() -> Iterator[None]:
    """What importing a file leaves behind is taken back, and what other tests of this process have left."""
    path = list(sys.path)
    forget_files()
    yield
    sys.path[:] = path
    forget_files()


def forget_files() -> None:
    for name in [name for name in sys.modules if name.startswith(("my_", "model_file_"))]:
        del sys.modules[name]


def write(folder: Path, text: str, name: str = "my_model.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_model_is_made_from_the_config(tmp_path: Path) -> None:
    file = load_file(write(tmp_path, MODEL))
    model = file.make_model(RunConfig(seed=4), FACTS)
    assert isinstance(model, nn.Linear) and model.in_features == 5
    assert "make_data" not in file and file.make_loss(RunConfig()) is None and file.make_optimizer() is None


def test_a_model_may_ask_for_what_the_data_is(tmp_path: Path) -> None:
    text = "from torch import nn\ndef make_model(config, data): return nn.Linear(2, data.num_outputs)\n"
    model = load_file(write(tmp_path, text)).make_model(RunConfig(), FACTS)
    assert isinstance(model, nn.Linear) and model.out_features == 3
    assert DataFacts(num_targets=2).num_outputs == 2
    assert DataFacts().num_outputs is None


def test_data_loss_and_optimizer_are_the_files_own(tmp_path: Path) -> None:
    text = (
        f"{MODEL}import torch\n"
        "def make_data(config): return [1, 2], None\n"
        "def loss(model, batch): return 3\n"
        "def make_optimizer(model): return torch.optim.SGD(model.parameters(), lr=0.5)\n"
    )
    file = load_file(write(tmp_path, text))
    assert file.make_data(RunConfig()) == ([1, 2], None)
    assert file.make_loss(RunConfig())(None, None) == 3
    make_optimizer = file.make_optimizer()
    assert make_optimizer is not None
    assert isinstance(make_optimizer(nn.Linear(1, 1)), torch.optim.SGD)


def test_its_neighbours_can_be_imported_and_its_classes_found_by_loader_processes(tmp_path: Path) -> None:
    write(tmp_path, "WIDTH = 7\n", "my_shapes.py")
    text = "from my_shapes import WIDTH\nfrom torch import nn\ndef make_model(config): return nn.Linear(WIDTH, 1)\n"
    file = load_file(write(tmp_path, text))
    assert isinstance(file.make_model(RunConfig(), FACTS), nn.Linear)
    assert sys.modules["my_model"].__file__ == str(tmp_path / "my_model.py")


def test_a_file_named_like_a_loaded_module_does_not_take_its_place(tmp_path: Path) -> None:
    load_file(write(tmp_path, MODEL, "torch.py"))
    assert sys.modules["torch"] is torch
    assert sys.path[-1] == str(tmp_path)


def test_files_of_one_name_have_their_own_neighbours(tmp_path: Path) -> None:
    made = []
    for number, folder in enumerate((tmp_path / "a", tmp_path / "b", tmp_path / "c"), 1):
        folder.mkdir()
        write(folder, f"WIDTH = {number}\n", f"my_width_{number}.py")
        text = f"from my_width_{number} import WIDTH\nfrom torch import nn\nclass Own(nn.Linear): ...\n"
        made.append(load_file(write(folder, f"{text}def make_model(config): return Own(WIDTH, 1)\n")))
    models = [file.make_model(RunConfig(), FACTS) for file in made]
    assert [model.in_features for model in models] == [1, 2, 3]
    for model in models:
        assert sys.modules[type(model).__module__].Own is type(model)  # as a loader process looks it up


@pytest.mark.parametrize(
    ("text", "problem", "fix"),
    [
        ("x = 1\n", "defines no make_model", r"define make_model\(config\)"),
        ("make_model = 3\n", "make_model in .*my_model.py is a int", r"define make_model\(config\)"),
        (f"{MODEL}def loss(a, b): ...\ndef make_task(c): ...\n", "defines both loss and make_task", "keep one"),
    ],
)
def test_what_a_file_lacks(tmp_path: Path, text: str, problem: str, fix: str) -> None:
    with pytest.raises(ConfigError, match=rf"{problem}.*\n  fix: {fix}"):
        load_file(write(tmp_path, text))


def test_results_of_the_wrong_kind(tmp_path: Path) -> None:
    file = load_file(write(tmp_path, "def make_model(config): return 3\ndef make_data(config): return [1]\n"))
    with pytest.raises(ConfigError, match=r"make_model in .* returned a int\n  fix: .*returning an nn\.Module"):
        file.make_model(RunConfig(), FACTS)
    with pytest.raises(ConfigError, match=r"make_data in .* returned a list\n  fix: .*\(train, eval\)"):
        file.make_data(RunConfig())


def test_the_path_must_be_a_python_file(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.py", tmp_path, write(tmp_path, "", "model.txt")):
        with pytest.raises(ConfigError, match=r"model\.file: there is no Python file"):
            load_file(path)


def test_an_error_in_the_file_keeps_its_traceback_and_ends_with_what_was_wanted(tmp_path: Path) -> None:
    path = write(tmp_path, "def make_model(config):\n    return 1 / 0\n")
    with pytest.raises(ZeroDivisionError) as raised:
        load_file(path).make_model(RunConfig(), FACTS)
    lines = "".join(traceback.format_exception(raised.value)).splitlines()
    assert any(f'"{path}", line 2, in make_model' in line for line in lines)
    assert lines[-1].startswith(f"drumline called make_model in {path}; it should be make_model(config)")
    with pytest.raises(SyntaxError) as wrong:
        load_file(write(tmp_path, "def make_model(config) return 1\n", "my_other.py"))
    assert wrong.value.__notes__[0].startswith(f"drumline was running {tmp_path}/my_other.py")
