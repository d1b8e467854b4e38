"""`drumline bench compare`: the same task through every contestant in turn, round by round, on the same devices.

Started as `python -m drumline.bench.compare REQUEST.json`, with the fields of Options. Writes runs.jsonl (a line a run;
a second call makes only those that are missing or failed), logs/, result.json and index.html into the folder `out`.
"""

from __future__ import annotations

import json
import logging
import statistics
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, ValidationError

import drumline
from drumline.bench.contestants import Contestant, Ran, Start, choose, read_contestants, run_contestant
from drumline.config.schema import HardwareConfig
from drumline.errors import ConfigError, DrumlineError, HardwareError, LaunchError
from drumline.hardware.claims import Claims
from drumline.hardware.inventory import detect
from drumline.launcher.gpus import take_gpus
from drumline.rundir import LineWriter, read_json, read_lines, write_json

INTERRUPTED = 3
"""Exit status after Ctrl-C, as every command has it."""

logger = logging.getLogger("drumline.bench.compare")


class Options(BaseModel):
    """What is compared, and where it is kept."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: str = Field("tiny", description="A file TASK.json of the contestants' folder tasks, or a path of one.")
    peers: tuple[str, ...] = Field((), description="Contestants, by the beginning of their name; none: all.")
    rounds: PositiveInt = Field(3, description="Runs of each contestant; they take turns.")
    peers_dir: Path = Field(Path("benchmarks/peers"), description="The contestants' folder.")
    out: Path = Field(Path("runs/bench/compare"), description="Folder for logs, runs.jsonl, result.json and the page.")
    num_devices: PositiveInt | None = Field(None, description="GPUs, or CPU processes; none: the task's, or all GPUs.")
    limit_s: PositiveFloat = Field(600.0, description="Longest run of a contestant.")


def compare(options: Options) -> dict[str, Any]:
    """Run what has not run yet, and return and write the result; see `summarise` for what it holds.

    Raises ConfigError for a task, a contestant or a folder that cannot be meant, HardwareError without the devices,
    and LaunchError where not one contestant came to a figure.
    """
    contestants = choose(read_contestants(options.peers_dir), options.peers)
    start = prepare(options)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "logs").mkdir(exist_ok=True)
    setting = setting_of(start)
    check_setting(options.out / "setting.json", setting)
    runs = options.out / "runs.jsonl"
    ran = read_runs(runs)
    writer = LineWriter(runs)
    try:
        for number in range(1, options.rounds + 1):
            for each in contestants:
                known = ran.get((each.name, number))
                if known is not None and not known.problem:
                    logger.info("round %d: %s: kept from an earlier call", number, each.name)
                elif not each.missing():
                    ran[each.name, number] = run_and_tell(start, each, number, options.out)
                    writer.write(ran[each.name, number].to_json())
    finally:
        writer.close()
    rows = summarise(contestants, start, list(ran.values()))
    result = {**setting, "rounds": options.rounds, "contestants": rows}
    write_json(options.out / "result.json", result)
    if not any(row["status"] == "ran" for row in result["contestants"]):
        raise LaunchError("no contestant came to a figure", f"see the logs in {options.out / 'logs'}")
    return result


def prepare(options: Options) -> Start:
    """Find task and devices. Raises ConfigError and HardwareError."""
    named = Path(options.task)
    path = named if named.suffix == ".json" else options.peers_dir / "tasks" / f"{options.task}.json"
    if not path.is_file():
        there = ", ".join(sorted(each.stem for each in (options.peers_dir / "tasks").glob("*.json"))) or "none"
        raise ConfigError(f"there is no task {path}", f"take one of {there}, or give the path of a .json file")
    task = read_json(path)
    wanted = options.num_devices or task.get("num_devices")
    if task.get("device") != "cuda":
        return Start(options.peers_dir.resolve(), path, wanted or 1, (), options.limit_s)
    hardware = detect()
    if len(hardware.gpus) >= (wanted or 1):
        claims = Claims("bench compare")  # held to the end of this process
        hardware = take_gpus(HardwareConfig(count=wanted), hardware, claims)
    uuids = [gpu.uuid for gpu in hardware.gpus]
    if len(uuids) < (wanted or 1):
        raise HardwareError(
            f"task {options.task} wants {wanted or 'a GPU'}, there are {len(uuids)} ({hardware.gpu_source})",
            "ask for fewer with --devices, or take --task tiny, which runs on the CPU",
        )
    num_devices = wanted or len(uuids)
    return Start(options.peers_dir.resolve(), path, num_devices, tuple(uuids[:num_devices]), options.limit_s)


def setting_of(start: Start) -> dict[str, Any]:
    """What runs of one folder must have in common."""
    versions = {"drumline": drumline.__version__, "torch": version("torch")}
    devices = {"num_devices": start.num_devices, "gpus": list(start.gpus)}
    return {"task": read_json(start.task), **devices, "versions": versions}


def check_setting(path: Path, setting: dict[str, Any]) -> None:
    """Write it, or raise ConfigError where the folder holds runs of another one."""
    if path.exists() and read_json(path) != setting:
        raise ConfigError(
            f"{path.parent} holds runs of another task, on other devices or of other versions",
            "give another folder with --out, or remove this one",
        )
    write_json(path, setting)


def read_runs(path: Path) -> dict[tuple[str, int], Ran]:
    """By contestant and round; of a run that was made again, the last."""
    ran = [Ran(line["name"], line["round"], line["problem"], line["line"], line["ending"]) for line in read_lines(path)]
    return {(run.name, run.round): run for run in ran}


def run_and_tell(start: Start, contestant: Contestant, number: int, out: Path) -> Ran:
    """Run it, and log what came of it."""
    log = out / "logs" / f"{contestant.name.replace(' ', '_')}.{number}.log"
    ran = run_contestant(start, contestant, number, log)
    if said := ran.problem or ran.ending:
        logger.warning("round %d: %s: %s (%s)", number, ran.name, said.splitlines()[0], log)
    if not ran.problem:
        logger.info("round %d: %s: %s units/s", number, ran.name, f"{ran.line['units_per_s']:,.0f}")
    return ran


def summarise(contestants: Sequence[Contestant], start: Start, ran: Sequence[Ran]) -> list[dict[str, Any]]:
    """A row a contestant, in order; `ratio` is of the first one's median rate.

    status: ran, failed or not installed; why: in words, where it is not ran, or ended badly afterwards. units_per_s,
    step_s and peak_memory_bytes are medians over the rounds, `runs` their rates, losses those of the last run.
    """
    rows = [row_of(each, start, [run for run in ran if run.name == each.name]) for each in contestants]
    base = rows[0].get("units_per_s") if rows else None
    for row in rows:
        if "units_per_s" in row:
            row["ratio"] = None if base is None else row["units_per_s"] / base
    return rows


def row_of(contestant: Contestant, start: Start, ran: Sequence[Ran]) -> dict[str, Any]:
    """One contestant's medians."""
    row: dict[str, Any] = {"name": contestant.name, "num_devices": contestant.devices_of(start.num_devices)}
    good = [run.line for run in ran if not run.problem]
    endings = [run.ending for run in ran if run.ending]
    if not good and (missing := contestant.missing()):
        return {**row, "status": "not installed", "why": f"not installed: {', '.join(missing)}"}
    if not good:
        return {**row, "status": "failed", "why": ran[-1].problem if ran else "it did not run"}
    return {
        **row,
        "status": "ran",
        "why": endings[-1] if endings else "",
        "units_per_s": statistics.median(line["units_per_s"] for line in good),
        "step_s": statistics.median(seconds for line in good for seconds in line["step_s"]),
        "peak_memory_bytes": statistics.median(line["peak_memory_bytes"] for line in good),
        "runs": [line["units_per_s"] for line in good],
        "failed_runs": len(ran) - len(good),
        "losses": good[-1]["losses"],
        "device": good[-1].get("device"),
        "versions": good[-1]["versions"],
    }


def main(request: Path) -> int:
    """Compare as a request file says, and write the page; returns the exit status, problems on standard error."""
    from drumline.bench.compare_page import write_compare_page

    handler = logging.StreamHandler(sys.stderr)
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        options = Options.model_validate(json.loads(request.read_text(encoding="utf-8")))
        write_compare_page(compare(options), options.out)
    except ValidationError as error:
        logger.error("error: %s", error)
        return 2
    except DrumlineError as error:
        logger.error("error: %s", error)
        return error.exit_status
    except KeyboardInterrupt:
        logger.error("interrupted; the same call goes on with what is missing")
        return INTERRUPTED
    finally:
        logger.removeHandler(handler)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
