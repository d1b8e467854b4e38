"""`drumline doctor`: the facts that a bug report needs, and what is known to break or slow runs on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from drumline.hardware.checks import Check

_GIB = 1 << 30
_MOST_XIDS = 20
_MARKS = {"ok": "[green]ok  [/green]", "warn": "[yellow]warn[/yellow]", "fail": "[red]fail[/red]"}


def register(app: typer.Typer) -> None:
    """Add the command `doctor`."""

    @app.command("doctor")
    def doctor(as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead.")] = False) -> None:
        """Say what this machine and installation are, and what is wrong with them; secrets are left out.

        Ends with 1 if a check failed.
        """
        import json
        from dataclasses import asdict

        from drumline.hardware.checks import checks
        from drumline.hardware.doctor import environment_facts

        facts = environment_facts()
        verdicts = checks(facts)
        if as_json:
            typer.echo(json.dumps({"facts": facts, "checks": [asdict(check) for check in verdicts]}, indent=2))
        else:
            _show(facts, verdicts)
        if any(check.status == "fail" for check in verdicts):
            raise typer.Exit(1)


def _show(facts: dict[str, Any], verdicts: list[Check]) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=True)
    for title, lines in _sections(facts):
        console.print(f"[bold]{title}[/bold]")
        for line in lines:
            console.print(f"  {escape(line)}")
    console.print("[bold]Checks[/bold]")
    for check in verdicts:
        console.print(f"  {_MARKS[check.status]} {escape(check.name)}: {escape(check.message)}")
        if check.fix and check.status != "ok":
            console.print(f"       fix: {escape(check.fix)}")


def _sections(facts: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """The report without the checks: (title, lines); sections with nothing to say are left out."""
    system, host = facts["os"], facts["host"]
    container = system["container"] or "none seen"
    yield (
        "Software",
        [
            f"drumline {facts['drumline']}, Python {facts['python']['version']} ({facts['python']['implementation']})",
            f"{system['system']}, {system['kernel']}, {system['machine']}, container: {container}",
            ", ".join(f"{name} {version}" for name, version in facts["packages"].items() if version),
            *_torch_lines(facts.get("torch")),
        ],
    )
    memory, whole = (f"{host[key] / _GIB:.1f} GiB" for key in ("memory_bytes", "memory_bytes_of_machine"))
    cores = f"{host['cpu_cores']} of {host['cpu_cores_of_machine']} CPU cores"
    yield "Host", [f"{host['hostname']}: {cores}, {memory} of {whole} memory usable"]
    yield "GPUs", [f"source: {facts['gpu_source']}", *(_gpu_line(gpu) for gpu in facts["gpus"])]
    if (topology := facts.get("topology")) and topology["links"]:
        yield "Links between GPUs", _topology_lines(topology["table"])
    if xids := facts.get("xids"):
        yield "XIDs of the last day", [_xid_line(xid) for xid in xids[-_MOST_XIDS:]]
    yield "Network", [_interface_line(interface) for interface in facts["network"]["interfaces"]]
    for title, key in (("Variables", "variables"), ("SLURM", "slurm")):
        if facts[key]:
            yield title, [f"{name}={value}" for name, value in facts[key].items()]


def _torch_lines(torch: dict[str, Any] | None) -> list[str]:
    if not torch or "error" in torch:
        return []
    backends = ", ".join(torch["backends"]) or "none"
    if torch["cuda"] is None:
        return [f"torch is built without CUDA, backends: {backends}"]
    return [f"torch's CUDA {torch['cuda']}, cuDNN {torch['cudnn']}, NCCL {torch['nccl']}, backends: {backends}"]


def _gpu_line(gpu: dict[str, Any]) -> str:
    place = "hidden" if gpu["cuda_index"] is None else f"cuda:{gpu['cuda_index']}"
    memory = "memory unknown" if gpu["memory_bytes"] is None else f"{gpu['memory_bytes'] / _GIB:.1f} GiB"
    capability = ".".join(map(str, gpu["compute_capability"] or ())) or "unknown"
    return f"{gpu['index']}: {gpu['name']}, {memory}, compute capability {capability}, {gpu['uuid']} ({place})"


def _topology_lines(table: list[list[str]]) -> list[str]:
    """A row a GPU: its link to each of them, its NUMA node and its CPU cores."""
    lines = [["", *(row[0] for row in table), "NUMA node", "CPU cores"], *table]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _xid_line(xid: dict[str, Any]) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(xid["time"]))
    return f"{when} XID {xid['code']} on {xid['uuid'] or xid['pci_address']}: {xid['title']}"


def _interface_line(interface: dict[str, Any]) -> str:
    speed = f", {interface['speed_mbit']} Mbit/s" if interface["speed_mbit"] else ""
    return f"{interface['name']} ({'up' if interface['up'] else 'down'}{speed}): {', '.join(interface['addresses'])}"
