"""Which logs a job has."""

from __future__ import annotations

from pathlib import Path

import pytest

from drumline.errors import ConfigError
from drumline.jobs.keeper_files import log_of, run_of
from drumline.service.job_logs import log_path, log_sources


def test_all_ranks_that_ever_wrote_are_named_in_order(tmp_path: Path) -> None:
    assert log_sources(tmp_path) == []
    log_of(tmp_path).write_text("")
    assert log_sources(tmp_path) == ["command"]
    logs = run_of(tmp_path).logs
    logs.mkdir(parents=True)
    for name in ("rank_10", "rank_2", "rank_0", "agent", "worker_0"):
        (logs / f"{name}.log").write_text("")
    for other in ("rank_0.error.json", "rank_x.log", "my_rank_3.log", "run.lock", "gpus_node.jsonl"):
        (logs / other).write_text("")
    found = log_sources(tmp_path)
    assert found == ["command", "launcher", "rank_0", "rank_2", "rank_10", "worker_0"]
    assert all(log_path(tmp_path, source).is_file() for source in found)


@pytest.mark.parametrize("source", ["other", "rank_x", "../rows", "rank_0/../x", "command\n", "rank_\u0663", ""])
def test_no_other_file_is_a_log(tmp_path: Path, source: str) -> None:
    with pytest.raises(ConfigError, match="no log"):
        log_path(tmp_path, source)
