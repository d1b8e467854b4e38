from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from drumline.hardware import kernel_log
from drumline.hardware.kernel_log import parse, read_lines, read_xids
from drumline.hardware.xids import Xid

FELL_OFF = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def test_the_three_ways_in_which_the_log_comes_give_the_same() -> None:
    lines = [
        f"3,1840,5107644336,-;{FELL_OFF}",
        " SUBSYSTEM=pci",
        f"[ 5107.644336] {FELL_OFF}",
        f"1700005107.644336 node1 kernel: {FELL_OFF}",
        "-- Boot 1234 --",
    ]
    found = list(read_lines(lines, boot=1_700_000_000.0))
    assert [text for _, text in found] == [FELL_OFF] * 3
    assert [when for when, _ in found] == pytest.approx([1_700_005_107.644336] * 3)


@pytest.mark.parametrize(
    ("line", "address", "code", "text"),
    [
        (FELL_OFF, "0000:3b:00.0", 79, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", "0000:03:00.0", 14, "Channel 00000001"),
        ("NVRM: Xid (PCI:0000:3B:00 GPU-I:05): 31, pid=7", "0000:3b:00.0", 31, "pid=7"),
        ("NVRM: Xid (PCI:0008:01:00): 48", "0008:01:00.0", 48, ""),
    ],
)
def test_a_line_of_the_driver_is_taken_apart(line: str, address: str, code: int, text: str) -> None:
    assert parse([(12.5, line)]) == [Xid(None, address, code, 12.5, text, "kernel log")]


def test_other_lines_are_passed_over() -> None:
    assert (
        parse([(1.0, "usb 1-1: new device"), (2.0, "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal")])
        == []
    )


def test_the_driver_tells_the_uuid_before_the_first_xid() -> None:
    lines = [
        (1.0, "NVRM: GPU at PCI:0000:3B:00: GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7"),
        (1.0, FELL_OFF),
        (2.0, FELL_OFF.replace("3b:00", "5b:00")),
    ]
    assert [xid.uuid for xid in parse(lines)] == ["GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7", None]


def test_what_was_before_the_driver_was_loaded_again_is_over() -> None:
    loaded = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04"
    lines = [(1.0, loaded), (2.0, FELL_OFF), (3.0, loaded), (4.0, FELL_OFF.replace("79", "31"))]
    assert [xid.code for xid in parse(lines)] == [31]


def ring_buffer(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "kmsg"
    path.write_text(text)
    return path


def test_the_ring_buffer_is_read_first_and_only_from_the_wanted_time_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 10_000.0)
    monkeypatch.setattr("time.monotonic", lambda: 9_000.0)
    text = f"3,1,10000000,-;{FELL_OFF}\n3,2,20000000,-;{FELL_OFF}\n"
    found, why = read_xids(1_015.0, ring_buffer(tmp_path, text), [("no-such-program",)])
    assert why is None
    assert [xid.time for xid in found] == [1_020.0]


def test_a_buffer_that_nobody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    writer = os.open(path, os.O_RDWR)
    try:
        os.write(writer, f"3,1,10000000,-;{FELL_OFF}\n".encode())
        found, why = read_xids(0.0, path, [])
    finally:
        os.close(writer)
    assert (len(found), why) == (1, None)


def test_a_record_that_is_overwritten_meanwhile_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[bytes | OSError] = [BrokenPipeError(), f"3,9,10000000,-;{FELL_OFF}\n".encode(), BlockingIOError()]

    def read(device: int, size: int) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, bytes):
            return answer
        raise answer

    monkeypatch.setattr("os.read", read)
    found, why = read_xids(0.0, ring_buffer(tmp_path, ""), [])
    assert (len(found), why, answers) == (1, None, [])


def test_a_program_answers_where_the_buffer_may_not_be_read(tmp_path: Path) -> None:
    program = (sys.executable, "-c", f"print({f'1700005107.64 node1 kernel: {FELL_OFF}'!r})")
    found, why = read_xids(0.0, tmp_path / "absent", [program])
    assert (why, [xid.code for xid in found]) == (None, [79])


def test_a_log_that_nobody_may_read_is_a_reason(tmp_path: Path) -> None:
    refused = (
        sys.executable,
        "-c",
        "import sys; sys.exit('dmesg: read kernel buffer failed: Operation not permitted')",
    )
    silent = (sys.executable, "-c", "")
    found, why = read_xids(0.0, tmp_path / "absent", [("no-such-program",), refused, silent])
    assert found == []
    assert why is not None
    for words in ("absent: No such file", "no-such-program: No such file", "Operation not permitted", "shows nothing"):
        assert words in why


def test_a_program_that_hangs_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_log, "_LIMIT_S", 0.1)
    found, why = read_xids(0.0, tmp_path / "absent", [(sys.executable, "-c", "import time; time.sleep(60)")])
    assert found == [] and "gave no answer within 0.1 s" in str(why)
