"""The report of each kind of benchmark: a page with its numbers, and a PNG a plot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from drumline.track.bench import efficiencies
from drumline.track.bench_page import table_of, write_bench_report
from drumline.track.samples import compare, measured

STEP = measured([0.010, 0.011, 0.010, 0.012, 0.010, 0.030])
PARTS = {"step_s": 0.01, "compute_s": 0.006, "exposed_s": 0.001, "loader_s": 0.002, "host_s": 0.001}
BREAKDOWN = {**PARTS, "communication_s": 0.002, "shares": {}}
COMPARED = {"name": "step time", **compare(STEP["samples"], [2 * sample for sample in STEP["samples"]]).to_json()}
TRAIN: dict[str, Any] = {
    "kind": "train",
    "title": "bench train <tiny>",
    "step_s": {**STEP, "warm_up_dropped": 2},
    "unit": "tokens",
    "units_per_s": 12345.0,
    "samples_per_s": 12.5,
    "mfu": 0.4321,
    "phases": {"forward_s": 0.003, "backward_s": 0.005, "optimizer_s": 0.001, "rest_s": 0.001},
    "memory": [{"peak_allocated_bytes": 3 << 30, "peak_reserved_bytes": 4 << 30}],
    "verdict": "loader",
    "message": "bound by loader: because",
    "breakdown": [BREAKDOWN, BREAKDOWN],
    "kernels": [{"name": "gemm<float>", "calls": 3.0, "seconds": 0.004, "share": 0.66}],
    "comparison": [COMPARED],
    "warnings": ["GPU 0 is not free"],
    "device": "NVIDIA H100",
    "machine": {"before": {"load": 0.5}},
}
COMM: dict[str, Any] = {
    "kind": "comm",
    "advice": "parallel.bucket_mb=4 or more",
    "rows": [
        {"collective": name, "bytes": size, "seconds": STEP, "algorithm_bytes_per_s": 1e9, "bus_bytes_per_s": 1.5e9}
        for size in (4096, 2**20)
        for name in ("all_reduce", "broadcast")
    ],
}
LOADED = [
    {
        "num_workers": n,
        "rows_per_s": 10.0 + n,
        "batches_per_s": 1.0,
        "first_window_s": 0.1,
        "interval": measured([10.0 + n]),
    }
    for n in (0, 2)
]
DATA: dict[str, Any] = {"kind": "data", "advice": "loader.num_workers=2", "rows": LOADED}
SCALED = [
    {"mode": mode, "processes": n, "global_batch": 8, "units_per_s": 9.0 * n, "step_s": STEP, "breakdown": BREAKDOWN}
    for mode in ("strong", "weak")
    for n in (1, 2)
]
SCALING: dict[str, Any] = {"kind": "scaling", "unit": "tokens", "message": "efficiency", "rows": efficiencies(SCALED)}


@pytest.mark.parametrize(
    ("result", "plots"),
    [
        (TRAIN, {"steps", "breakdown", "phases"}),
        (COMM, {"bandwidth", "latency"}),
        (DATA, {"loader"}),
        (SCALING, {"scaling", "breakdown"}),
    ],
    ids=["train", "comm", "data", "scaling"],
)
def test_each_kind_has_its_plots_and_its_numbers(tmp_path: Path, result: dict[str, Any], plots: set[str]) -> None:
    page = write_bench_report(tmp_path, result, "seed: 0")
    text = page.read_text()
    assert {path.stem for path in tmp_path.glob("*.png")} == plots
    assert text.count("<svg") == len(plots)
    header, rows = table_of(result)
    assert rows and all(len(row) == len(header) for row in rows)
    assert str(result.get("message") or result["advice"]) in text


def test_the_page_of_a_training_says_all_and_escapes_it(tmp_path: Path) -> None:
    text = write_bench_report(tmp_path, TRAIN).read_text()
    for words in (
        "bench train &lt;tiny&gt;",
        "gemm&lt;float&gt;",
        "10.50 ms",
        "43.2%",
        "3.0 GiB",
        "GPU 0 is not free",
        "+100.0%",
        "2 more dropped as warm-up",
        "machine.before.load",
    ):
        assert words in text, words


def test_without_matplotlib_the_page_has_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = write_bench_report(tmp_path, DATA).read_text()
    assert "<svg" not in text and "drumline[report]" in text and "loader.num_workers=2" in text
