from __future__ import annotations

from dataclasses import replace

from drumline.hardware.records import GpuProcess
from drumline.monitor.run_table import process_table, run_table, run_words
from drumline.monitor.scene import Look
from tests.unit.monitor.scenes import GIB, RUN, drawn, sample, scene


def test_processes_are_listed_with_the_largest_of_each_gpu_first() -> None:
    small, large = GpuProcess(1, "compute", GIB, "small", "bob"), GpuProcess(2, "compute", 9 * GIB, None, None, True)
    shown = scene(sample(0, processes=(small, large)), sample(1, processes=(replace(small, pid=3),)))
    rows = [line.split() for line in drawn(process_table(shown, shown.snapshot.gpus, Look(80)), 80).splitlines()[1:]]
    assert rows == [
        ["0", "2", "-", "9.0", "ours", "not", "seen", "from", "here"],
        ["0", "1", "bob", "1.0", "small"],
        ["1", "3", "bob", "1.0", "small"],
    ]


def test_where_there_is_none_a_sentence_says_so() -> None:
    empty = scene(sample(0, processes=()), sample(1, processes=None))
    assert "no process is on a GPU" in drawn(process_table(empty, empty.snapshot.gpus, Look(80)), 80)
    assert "no run goes on here" in drawn(run_table(empty, Look(80)), 80)


def test_a_run_that_failed_says_why_in_its_line() -> None:
    failed = replace(RUN, state="failed", message="rank 1: out of memory\n  fix: ...", eta_s=None, step_age_s=None)
    assert run_words(failed) == (
        "small: failed, update 120 of 400, loss 2.312, 51,234 tokens/s, cost 1.25, rank 1: out of memory"
    )
    assert run_words(replace(failed, state="done", message="done")).endswith("cost 1.25")


def test_a_run_names_its_gpus_and_what_fires() -> None:
    shown = scene(runs=[replace(RUN, gpus=("GPU-0001", "GPU-elsewhere"), alerts=("idle", "no_step"))])
    line = drawn(run_table(shown, Look(180)), 180).splitlines()[1]
    assert "1, another" in line and line.rstrip().endswith("idle, no_step")
    assert "alerts idle, no_step" in run_words(shown.runs[0])
