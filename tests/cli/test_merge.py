"""`drumline merge` as a real command: shards with holes, doubles and strangers, and those that make one whole."""

from __future__ import annotations

from pathlib import Path

from tests.cli.real_command import Command


def test_what_division_loses_is_named_and_with_it_the_shards_make_one_whole(tmp_path: Path) -> None:
    (tmp_path / "original.csv").write_text("id,text\n" + "".join(f"{row},t{row}\n" for row in range(103)))
    size = 103 // 4
    for gpu in range(4):
        for run, answer in (("run_20250101_090000", "old"), ("run_20250101_100000", "new")):
            folder = tmp_path / "multi_gpu" / f"gpu{gpu}" / run
            folder.mkdir(parents=True)
            rows = range(gpu * size, (gpu + 1) * size)
            text = "".join(f"{row},{answer}{row}\n" for row in rows)
            (folder / "strategy_combined_optimized.csv").write_text(f"id,prediction\n{text}")
    refused = Command(tmp_path, "merge", "multi_gpu", "--out", "merged.csv", "--data", "original.csv").wait()
    assert refused.status == 2
    assert "3 values of id (100, 101, 102) name a row of" in refused.err, refused.err
    assert not (tmp_path / "merged.csv").exists()

    (tmp_path / "rest.csv").write_text("id,prediction\n102,new102\n100,new100\n101,new101\n")
    merged = Command(tmp_path, "merge", "rest.csv", "multi_gpu", "--out", "merged.csv", "--data", "original.csv").wait()
    assert (merged.status, merged.out) == (0, "merged.csv: 103 rows from 5 shards\n"), merged.err
    wanted = "id,prediction\n" + "".join(f"{row},new{row}\n" for row in range(103))
    assert (tmp_path / "merged.csv").read_text() == wanted
    assert sorted(each.name for each in tmp_path.iterdir()) == ["merged.csv", "multi_gpu", "original.csv", "rest.csv"]
