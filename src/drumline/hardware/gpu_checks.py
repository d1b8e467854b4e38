"""Verdicts of `doctor` on the GPUs themselves, from `gpu_facts`: pure, each with what to do about it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

from drumline.hardware.check import Check

Facts = Mapping[str, Any]


def gpu_checks(facts: Facts) -> Iterator[Check]:
    """Health, processes, XIDs and peak rates of the GPUs that this process may use; none where they were not asked."""
    if facts.get("health") is None:
        return
    if facts["gpu_silence"] is not None and facts["gpus"]:
        fix = "see whether nvidia-smi answers; restart the machine if it hangs, too"
        yield Check("gpu health", "warn", f"not known: {facts['gpu_silence']}", fix)
    shown = {gpu["uuid"]: _name(gpu) for gpu in facts["gpus"] if gpu["cuda_index"] is not None}
    usable = [(shown[one["uuid"]], one) for one in facts["health"] if one["uuid"] in shown]
    if not usable:
        return
    yield from _health(usable)
    yield from _processes(usable)
    yield from _xids(facts)
    yield _peaks(facts)


def _name(gpu: Mapping[str, Any]) -> str:
    return f"GPU {gpu['index']}" if gpu.get("parent") is None else f"MIG instance {gpu['uuid']}"


def _health(usable: list[tuple[str, Mapping[str, Any]]]) -> Iterator[Check]:
    findings = [(name, finding) for name, one in usable for finding in one["findings"]]
    for name, finding in findings:
        fix = f"{finding['action']} ({finding['source']})"
        yield Check("gpu health", finding["status"], f"{name}: {finding['message']}", fix)
    if not findings:
        yield Check("gpu health", "ok", f"nothing is wrong with {', '.join(name for name, _ in usable)}")


def _processes(usable: list[tuple[str, Mapping[str, Any]]]) -> Iterator[Check]:
    for name, one in usable:
        if one["taken"] is not None:
            fix = "wait for them; drumline's launches leave such a GPU out by themselves"
            yield Check("gpu processes", "warn", f"{name} is {one['taken']}", fix)


def _xids(facts: Facts) -> Iterator[Check]:
    """XIDs that say nothing against a GPU: those that do are findings of its health."""
    if facts["kernel_log"] is not None:
        yield Check("xids", "ok", f"XIDs of the last day are not known: {facts['kernel_log']}")
        return
    names = {gpu["uuid"]: _name(gpu) for gpu in facts["gpus"]}
    of_programs = [xid for xid in facts["xids"] if xid["status"] == "ok"]
    if not facts["xids"]:
        yield Check("xids", "ok", "none within the last day")
    for xid in of_programs[-1:]:
        where = names.get(xid["uuid"]) or xid["pci_address"]
        when = time.strftime("%H:%M:%S", time.localtime(xid["time"]))
        more = f"{len(of_programs)} of programs within the last day, the last " if len(of_programs) > 1 else ""
        yield Check("xids", "ok", f"{more}XID {xid['code']} on {where} at {when}: {xid['title']}")


def _peaks(facts: Facts) -> Check:
    shown = [gpu for gpu in facts["gpus"] if gpu["cuda_index"] is not None]
    unknown = sorted({gpu["name"] for gpu in shown if gpu.get("peak_source") is None})
    if unknown:
        return Check("peak rates", "ok", f"not known of {', '.join(unknown)}: runs on it show no MFU")
    return Check("peak rates", "ok", "; ".join(sorted({f"{gpu['name']}: {gpu['peak_source']}" for gpu in shown})))
