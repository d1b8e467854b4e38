from __future__ import annotations

from pathlib import Path

import pytest

from drumline.engine.checkpoint_folder import Draft, new_token, remove, sweep
from drumline.manifest import Entry, Manifest, check, digest


def write(draft: Draft, text: str) -> None:
    draft.open()
    file = draft.folder / "state.pt"
    file.write_text(text)
    draft.seal(Manifest(3, (Entry(file.name, 0, file.stat().st_size, digest(file)),), 1, "single", "whole"))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def text_of(path: Path) -> str:
    assert check(path) == []
    return (path / "state.pt").read_text()


def test_nothing_is_in_its_place_before_all_is_written(tmp_path: Path) -> None:
    draft = Draft(tmp_path / "checkpoints" / "step_3", "00aa")
    write(draft, "new")
    assert names(tmp_path / "checkpoints") == [".step_3.00aa.tmp"]
    draft.commit()
    assert names(tmp_path / "checkpoints") == ["step_3"]
    assert text_of(tmp_path / "checkpoints" / "step_3") == "new"
    assert (tmp_path / "checkpoints" / "step_3").stat().st_mode & 0o777 == 0o700


def test_an_earlier_one_makes_room_and_goes(tmp_path: Path) -> None:
    for text in ("old", "new"):
        draft = Draft(tmp_path / "step_3", new_token())
        write(draft, text)
        draft.commit()
    assert names(tmp_path) == ["step_3"]
    assert text_of(tmp_path / "step_3") == "new"


def test_what_is_given_up_leaves_the_earlier_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Draft(tmp_path / "step_3", "00aa")
    write(first, "old")
    first.commit()
    second = Draft(tmp_path / "step_3", "00bb")
    write(second, "new")

    def fails(self: Path, target: Path) -> Path:
        if self.name.endswith(".tmp"):
            raise OSError("the disk is gone")
        return original(self, target)

    original = Path.replace
    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OSError, match="the disk is gone"):
        second.commit()
    assert names(tmp_path) == [".step_3.00bb.old", ".step_3.00bb.tmp"]
    second.discard()
    assert names(tmp_path) == ["step_3"]
    assert text_of(tmp_path / "step_3") == "old"


def test_a_sweep_removes_what_kills_have_left(tmp_path: Path) -> None:
    assert sweep(tmp_path / "nothing there") == []
    placed = Draft(tmp_path / "step_3", "00aa")
    write(placed, "placed")
    placed.commit()
    for name in (".step_3.00bb.tmp", ".step_3.00bb.old", ".step_4.00cc.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state.pt").write_text("half of")
    (tmp_path / ".step_9.mine").mkdir()
    assert sweep(tmp_path) == [".step_3.00bb.old", ".step_3.00bb.tmp", ".step_4.00cc.old"]
    assert names(tmp_path) == [".step_9.mine", "step_3"]


def test_a_sweep_puts_back_what_had_made_room_for_nothing(tmp_path: Path) -> None:
    draft = Draft(tmp_path / "step_3", "00aa")
    write(draft, "old")
    draft.commit()
    (tmp_path / "step_3").rename(tmp_path / ".step_3.00bb.old")
    assert sweep(tmp_path) == []
    assert text_of(tmp_path / "step_3") == "old"


def test_a_removal_that_is_cut_short_leaves_none_that_looks_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = Draft(tmp_path / "step_3", "00aa")
    write(draft, "old")
    draft.commit()

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("shutil.rmtree", killed)
        remove(tmp_path / "step_3")
    assert not (tmp_path / "step_3").exists()
    assert len(sweep(tmp_path)) == 1
    assert names(tmp_path) == []
