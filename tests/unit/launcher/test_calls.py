from __future__ import annotations

import multiprocessing
import operator
import pickle
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from drumline.errors import ConfigError
from drumline.launcher.calls import pack_call, run_call


def carried(call: bytes, tmp_path: Path) -> object:
    file, result = tmp_path / "call.pkl", tmp_path / "result.pkl"
    file.write_bytes(call)
    run_call(file, result)
    return pickle.loads(result.read_bytes())


def test_a_call_and_its_result_go_there_and_back(tmp_path: Path) -> None:
    assert carried(pack_call(operator.add, ([1], [2])), tmp_path) == [1, 2]


def test_the_call_runs_with_the_callers_sys_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # prepare() sets both from the call, so they are put back by hand.
    monkeypatch.setattr(sys, "path", [*sys.path, "/somewhere/else"])
    monkeypatch.setattr(sys, "argv", ["train.py", "--fast"])
    call = pack_call(operator.add, (1, 1))
    monkeypatch.setattr(sys, "path", list(sys.path[:-1]))
    monkeypatch.setattr(sys, "argv", ["other"])
    assert carried(call, tmp_path) == 2
    assert sys.path[-1] == "/somewhere/else"
    assert sys.argv == ["train.py", "--fast"]


def inner() -> object:
    def closure() -> int:
        return 1

    return closure


@pytest.mark.parametrize("function", [lambda: 1, inner()])
def test_functions_without_an_importable_name_are_refused(function: object) -> None:
    with pytest.raises(ConfigError, match="no name that they could import"):
        pack_call(function, ())  # type: ignore[arg-type]


def test_a_notebooks_function_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = ModuleType("__main__")
    exec("def cell(): return 1", notebook.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", notebook)
    with pytest.raises(ConfigError, match="cell is defined in a notebook"):
        pack_call(notebook.cell, ())


def test_arguments_that_cannot_be_sent_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"add or its arguments cannot be sent.*lock"):
        pack_call(operator.add, (threading.Lock(), 1))


def test_a_result_that_cannot_be_sent_back_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the result of getattr, a Lock|the result of .*lock"):
        carried(pack_call(threading.Lock, ()), tmp_path)
    assert not (tmp_path / "result.pkl").exists()


def test_a_worker_that_cannot_import_the_function_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("only_in_the_launcher")
    exec("def train(): return 1", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_in_the_launcher", module)
    call = pack_call(module.train, ())
    monkeypatch.delitem(sys.modules, "only_in_the_launcher")
    with pytest.raises(ConfigError, match="cannot import what it should run: No module named 'only_in_the_launcher'"):
        carried(call, tmp_path)


def test_an_unguarded_script_is_told_to_guard_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(ConfigError, match="__main__"):
        pack_call(operator.add, (1, 1))


def test_a_script_is_imported_by_the_workers_only_for_what_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    script = ModuleType("__main__")
    script.__file__ = __file__
    exec("def train(): return 1", script.__dict__)
    monkeypatch.setitem(sys.modules, "__main__", script)
    of_the_script, of_a_module = (pickle.loads(pack_call(each, ()))[0] for each in (script.train, operator.add))
    assert of_the_script["init_main_from_path"] == __file__ and "init_main_from_path" not in of_a_module
