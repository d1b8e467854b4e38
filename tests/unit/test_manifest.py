from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from drumline.errors import DataError
from drumline.manifest import (
    MANIFEST,
    Entry,
    Format,
    Manifest,
    check,
    checkpoints_of,
    digest,
    newest_valid,
    out_of_reach,
    read_manifest,
)
from drumline.rundir import RunDir, read_json, write_json

FILES = {"state.pt": b"all of it", "__0_0.distcp": b"the first half", "__1_0.distcp": b"the second half"}


def make(path: Path, form: Format = "whole", nodes: tuple[int, ...] = (0, 0, 0), **facts: object) -> Manifest:
    """A checkpoint folder on node 0, with those of FILES that lie there; nodes: where each lies."""
    path.mkdir(parents=True)
    entries = []
    for (name, data), node in zip(FILES.items(), nodes, strict=True):
        (path / name).write_bytes(data)
        entries.append(Entry(name, node, len(data), digest(path / name)))
        if node != 0:
            (path / name).unlink()
    step = int(path.name.removeprefix("step_"))
    manifest = replace(Manifest(step, tuple(entries), 2, "ddp", form, {"loss": 0.5}, 12.25), **facts)  # type: ignore[arg-type]
    write_json(path / MANIFEST, manifest.to_json())
    return manifest


def cut_one_byte(path: Path) -> None:
    (path / "state.pt").write_bytes(FILES["state.pt"][:-1])


def flip_one_bit(path: Path) -> None:
    data = bytearray(FILES["state.pt"])
    data[3] ^= 1
    (path / "state.pt").write_bytes(data)


def delete_one_file(path: Path) -> None:
    (path / "__1_0.distcp").unlink()


def put_a_folder_there(path: Path) -> None:
    (path / "state.pt").unlink()
    (path / "state.pt").mkdir()


def no_manifest(path: Path) -> None:
    (path / MANIFEST).unlink()


def torn_manifest(path: Path) -> None:
    (path / MANIFEST).write_text('{"step": 3, "files": [{"fi')


def other_manifest(path: Path) -> None:
    write_json(path / MANIFEST, {"files": {}})


def a_list(path: Path) -> None:
    write_json(path / MANIFEST, [])


def way_out(path: Path) -> None:
    found = read_json(path / MANIFEST)
    found["files"][0]["file"] = "../state.pt"
    write_json(path / MANIFEST, found)


DAMAGES: dict[Callable[[Path], None], str] = {
    cut_one_byte: "state.pt has 8 bytes, its manifest says 9",
    flip_one_bit: "state.pt is damaged",
    delete_one_file: "__1_0.distcp is missing",
    put_a_folder_there: "state.pt is no file",
    no_manifest: "no complete checkpoint",
    torn_manifest: "no complete checkpoint",
    other_manifest: "no complete checkpoint",
    a_list: "no complete checkpoint",
    way_out: "none of ours",
}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    manifest = make(tmp_path / "step_3")
    assert read_manifest(tmp_path / "step_3") == manifest
    assert check(tmp_path / "step_3") == []
    with pytest.raises(DataError, match="no complete checkpoint"):
        read_manifest(tmp_path / "step_9")


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_damage_is_named(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    make(tmp_path / "step_3")
    damage(tmp_path / "step_3")
    (problem,) = check(tmp_path / "step_3")
    assert DAMAGES[damage] in problem


def test_checksums_can_be_left_out_or_shared(tmp_path: Path) -> None:
    path = tmp_path / "step_3"
    make(path)
    flip_one_bit(path)
    assert check(path, contents=False) == []
    assert [len(check(path, share=(index, 2))) for index in (0, 1)] == [1, 0]


def test_of_a_sharded_one_nothing_may_be_a_strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forms: tuple[Format, ...] = ("whole", "sharded")
    for form in forms:
        make(tmp_path / form / "step_3", form)
        assert check(tmp_path / form / "step_3") == []
    me = os.getuid()
    if me == 0:
        for form in ("whole", "sharded"):
            os.chown(tmp_path / form / "step_3" / "__1_0.distcp", 12345, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: me + 1)
    assert check(tmp_path / "whole" / "step_3") == []
    problems = check(tmp_path / "sharded" / "step_3")
    assert any("__1_0.distcp belongs to user" in problem for problem in problems)


def test_only_what_lies_on_this_file_system_is_looked_at(tmp_path: Path) -> None:
    make(tmp_path / "step_3", nodes=(0, 0, 1))
    assert check(tmp_path / "step_3") == []


def test_reach(tmp_path: Path) -> None:
    here, spread, replicated = tmp_path / "step_1", tmp_path / "step_2", tmp_path / "step_3"
    make(here, "sharded")
    assert [out_of_reach(here, rank, 3) for rank in range(3)] == [None] * 3
    make(spread, "sharded", (0, 0, 1))
    assert out_of_reach(spread, 0, 2) is None
    for rank, world in ((1, 2), (0, 1), (0, 3)):
        assert "cannot be reached" in str(out_of_reach(spread, rank, world))
    (spread / "__1_0.distcp").write_bytes(FILES["__1_0.distcp"])  # somebody has brought the parts together
    assert [out_of_reach(spread, rank, 3) for rank in range(3)] == [None] * 3
    make(replicated, "whole", (0, 0, 1))
    assert out_of_reach(replicated, 2, 3) is None


def test_the_newest_valid_one_is_found_and_the_others_said(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert checkpoints_of(run) == []
    assert newest_valid(run) == (None, [])
    for step in (2, 10, 9):
        make(run.checkpoint_of(step))
    (run.checkpoints / ".step_11.0011aabb.tmp").mkdir()
    (run.checkpoints / "step_best").mkdir()
    cut_one_byte(run.checkpoint_of(10))
    no_manifest(run.checkpoint_of(9))
    listed = checkpoints_of(run)
    assert [each.step for each in listed] == [10, 9, 2]
    assert listed[2].metrics == {"loss": 0.5}
    assert listed[2].time == 12.25
    sizes = sum(len(data) for data in FILES.values())
    assert listed[1].bytes == sizes
    assert listed[1].metrics == {}
    path, skipped = newest_valid(run)
    assert path == run.checkpoint_of(2)
    assert [where for where, _ in skipped] == [run.checkpoint_of(10), run.checkpoint_of(9)]
    assert "8 bytes" in skipped[0][1]
