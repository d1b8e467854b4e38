"""Health of a real GPU: sound ones raise nothing, idle or at work, and the counters are those of nvidia-smi."""

from __future__ import annotations

import subprocess
import time

import pytest
import torch

from drumline.hardware.gpu_facts import gpu_facts
from drumline.hardware.health import look, read_verdicts, verdicts
from drumline.hardware.health_facts import HealthFacts
from drumline.hardware.kernel_log import read_xids
from drumline.hardware.session import open_session
from drumline.hardware.xid_events import XidListener

pytestmark = pytest.mark.gpu


def test_a_gpu_idle_and_at_work_raises_nothing() -> None:
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    before: tuple[HealthFacts, ...] = ()
    with open_session() as session:
        for round_ in range(10):
            for _ in range(100 if 3 <= round_ < 7 else 0):
                torch.mm(matrix, matrix)
            facts, samples = look(session)
            torch.cuda.synchronize()
            found = verdicts(facts, samples, before=before)
            assert found
            assert [finding for verdict in found.values() for finding in verdict.findings] == []
            before = facts
            time.sleep(0.1)


def test_the_whole_verdict_is_ok_and_comes_in_time() -> None:
    began = time.monotonic()
    found = read_verdicts()
    assert time.monotonic() - began < 5.0
    assert found and {verdict.status for verdict in found.values()} <= {"ok", "warn"}


def smi(*query: str) -> list[list[str]]:
    """The answers of nvidia-smi, a row a GPU."""
    command = ["nvidia-smi", *query, "--format=csv,noheader,nounits"]
    answer = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines()]


def shown(value: int | bool | None) -> str:
    return "[N/A]" if value is None else str(int(value))


def test_the_counters_are_nvidia_smis() -> None:
    with open_session() as session:
        facts = {one.uuid: one for one in look(session)[0]}
    ecc = "ecc.errors.uncorrected.volatile.total,ecc.errors.uncorrected.aggregate.total"
    for uuid, now, ever in smi(f"--query-gpu=uuid,{ecc}"):
        one = facts[uuid]
        assert [shown(one.ecc_uncorrected), shown(one.ecc_uncorrected_ever)] == [now, ever]
    rows = "remapped_rows.uncorrectable"
    for uuid, remapped in smi(f"--query-remapped-rows=gpu_uuid,{rows}"):
        assert shown(facts[uuid].rows_remapped) == remapped


def test_xids_are_listened_for_and_looked_up() -> None:
    with XidListener() as heard:
        assert heard.listening.wait(20.0) or heard.fault is not None
        assert heard.drain() == []
    xids, why_not = read_xids(time.time() - 3600)
    assert xids == [] or why_not is None


def test_the_doctors_facts_are_there() -> None:
    found = gpu_facts()
    assert found["gpu_silence"] is None
    assert len(found["health"]) >= torch.cuda.device_count()
    assert len(found["topology"]["places"]) >= torch.cuda.device_count()
