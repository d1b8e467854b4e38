"""Tests that make GPUs work and compare what comes back: `python -m drumline.bench.gpu_tests '<json>'`.

A process of its own, which may crash or hang for hardware.active_tests. It writes a line of JSON as each test begins
and one with its facts as it ends; verdicts are made of them there. With device cpu the same tests run on the CPU.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from drumline.bench.gpu_work import Sizes, all_reduce, device_copy, host_copy, memory, peer_copy, product
from drumline.launcher.processes import die_with_parent

ONE_GPU: dict[str, Callable[[torch.device, Sizes], dict[str, Any]]] = {
    "memory": memory,
    "device_copy": device_copy,
    "product": product,
    "host_copy": host_copy,
}


def steps(tests: Sequence[str], devices: Sequence[torch.device], sizes: Sizes) -> Iterator[tuple[str, list[int], Any]]:
    """Each test that is to run, with the places of its GPUs among `devices` and the call that gives its facts."""
    for name in tests:
        if name == "peer_copy":
            for pair in itertools.permutations(range(len(devices)), 2):
                chosen = [devices[place] for place in pair]
                yield name, list(pair), lambda chosen=chosen: peer_copy(chosen, sizes)
        elif name == "all_reduce":
            if len(devices) > 1:
                yield name, list(range(len(devices))), lambda: all_reduce(devices, sizes)
        else:
            for place, device in enumerate(devices):
                yield name, [place], lambda test=ONE_GPU[name], device=device: test(device, sizes)


def run(spec: Mapping[str, Any], write: Callable[[Mapping[str, Any]], None]) -> None:
    """Run the tests of a spec ({"device", "num_gpus", "tests", "sizes"}) and write each beginning and each outcome."""
    sizes = Sizes(**spec.get("sizes", {}))
    devices = _devices(spec["device"], spec["num_gpus"])
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    for name, places, test in steps(spec["tests"], devices, sizes):
        write({"begin": name, "gpus": places})
        try:
            outcome = {"facts": test()}
        except Exception as error:  # a GPU that fails a test is an answer, whatever it fails with
            outcome = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
        write({"test": name, "gpus": places, **outcome})
        if devices[0].type == "cuda":
            torch.cuda.empty_cache()


def _devices(kind: str, count: int) -> list[torch.device]:
    if kind == "cpu":
        return [torch.device("cpu")] * count
    there = torch.cuda.device_count()
    if there != count:
        raise SystemExit(f"CUDA shows {there} GPU(s) where {count} were asked for")
    return [torch.device("cuda", place) for place in range(count)]


def main() -> None:
    """Run the tests that the argument names; every line of standard output is a record."""
    # Whoever asked may be killed, and a test of memory holds most of a GPU.
    spec = json.loads(sys.argv[1])
    if "parent" in spec:
        die_with_parent(signal.SIGKILL, int(spec["parent"]))
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries that print do not spoil the records

    def write(record: Mapping[str, Any]) -> None:
        output.write(json.dumps(record) + "\n")

    run(spec, write)


if __name__ == "__main__":
    main()
