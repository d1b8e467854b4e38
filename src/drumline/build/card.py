"""What a model card says of a run: gathered from its settings and records, in which no text of the data stands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from drumline import __version__
from drumline.build.trained import Trained
from drumline.config.data import WeightedPaths
from drumline.config.model import HuggingFaceModel
from drumline.data.hub import local_folder
from drumline.models.card import FILE, Card, Table, license_of, render_card
from drumline.models.folder import CONFIG
from drumline.rundir import read_json, write_atomic
from drumline.track.report import RunRecords, read_run, summarise
from drumline.track.units import as_text, duration, leaves, plain, size

_DOES = {
    "language_modelling": "text-generation",
    "preference": "text-generation",
    "sequence_to_sequence": "text2text-generation",
    "token_classification": "token-classification",
    "contrastive": "feature-extraction",
}
_SECTIONS = ("task", "model", "data", "train", "parallel")
"""Of the settings, those that a model comes from."""
_PLACES = frozenset({"path", "cache_dir", "token_variable", "tokenizer", "file", "train", "eval"})
"""Settings of model and data that name places on the machine, or that another table has."""
_METRICS_LEFT_OUT = frozenset({"kind", "step", "epoch", "time", "elapsed_s", "count"})
_JOULES_A_KWH = 3.6e6
_COUNTS = {"rows": "rows", "duplicates": "duplicates"}


def write_card(trained: Trained, base: Path | None, out: Path, *, adapter: bool) -> None:
    """Write README.md into an exported folder; base: folder of the model that training began with, where it is known.

    What the run did not record is left out.
    """
    write_atomic(out / FILE, render_card(card_of(trained, base, out, adapter=adapter)))


def card_of(trained: Trained, base: Path | None, out: Path, *, adapter: bool) -> Card:
    """The card of an exported folder, whose other files are written already."""
    config, records = trained.config, read_run(trained.run.path)
    shape = read_json(trained.run.model / CONFIG)
    kind = str(next(iter(shape.get("architectures") or ["?"])))
    images = kind.endswith("ForImageClassification")
    does = _DOES.get(config.task.kind, "image-classification" if images else "text-classification")
    hub_name = hub_name_of(config.model)
    begun = hub_name or (Path(config.model.path).name if isinstance(config.model, HuggingFaceModel) else None)
    return Card(
        title=records.name,
        about=about(trained, kind, begun),
        does=does,
        base=hub_name,
        license=None if base is None else license_of(base),
        adapter=adapter,
        num_labels=len(shape.get("id2label") or ()) if does.endswith("-classification") else None,
        chats=(out / "chat_template.jinja").is_file(),
        tables=[data_table(trained, records), results(trained, records), costs(records), settings(trained)],
        version=__version__,
    )


def about(trained: Trained, kind: str, begun: str | None) -> str:
    """What was done, in two sentences."""
    config = trained.config
    how = "trained from random weights" if getattr(config.model, "random_weights", False) else f"trained from {begun}"
    if begun is None:
        how = "trained"
    if trained.adapter is not None:
        how += f" with an adapter ({trained.adapter.kind}, rank {trained.adapter.rank})"
    after = f"These are its {'averaged ' if trained.averaged else ''}weights after {trained.step:,} updates."
    return f"A {kind}, {how}, for {config.task.kind.replace('_', ' ')}. {after}"


def hub_name_of(model: Any) -> str | None:
    """The model's name on the hub; None of a folder, whose place on a machine is nobody's business."""
    if not isinstance(model, HuggingFaceModel) or local_folder(model.path) is not None:
        return None
    return model.path


def data_table(trained: Trained, records: RunRecords) -> Table:
    """Names and numbers of what was learned from, a line a split."""
    data: Any = trained.config.data
    event = last_event(records, "data")
    report = last_event(records, "data_report")
    rows = []
    for split in ("train", "eval"):
        told = {**as_mapping(event.get(split)), **as_mapping(report.get(split))}
        names = ", ".join(names_of(data, split))
        if not names and not told:
            continue
        numbers = [f"{number(told[key])} {word}" for key, word in _COUNTS.items() if number(told.get(key))]
        lengths = as_mapping(told.get("tokens"))
        if lengths.get("total"):
            numbers.append(f"{number(lengths['total'])} tokens")
        if lengths.get("num_cut"):
            numbers.append(f"{number(lengths['num_cut'])} texts cut to the context")
        if told.get("bad_rows"):
            numbers.append(f"{number(told['bad_rows'])} unreadable rows left out")
        rows.append(["training" if split == "train" else "evaluation", names, ", ".join(numbers)])
    return Table("Data", ["", "from", "how much"], rows)


def names_of(data: Any, split: str) -> list[str]:
    """The names of a split's files without their folders, or of a data set with its split."""
    if getattr(data, "kind", None) == "datasets":
        part = data.train_split if split == "train" else data.eval_split
        name = data.path if local_folder(data.path) is None else Path(data.path).name
        return [] if part is None else [f"{name} ({', '.join(filter(None, [data.subset, part]))})"]
    found = getattr(data, split, None) or []
    paths = [path for each in found for path in (each.paths if isinstance(each, WeightedPaths) else [each])]
    if not paths and split == "eval" and getattr(data, "eval_fraction", None):
        return [f"{data.eval_fraction:.0%} of the training rows, held out"]
    return [Path(path).name for path in paths]


def results(trained: Trained, records: RunRecords) -> Table:
    """The newest evaluation up to the update that the weights are of, beside the first one."""
    found = [record for record in records.evals if record.get("step", 0) <= trained.step]
    if not found:
        return Table("Results", ["metric", "value"], [])
    last, first = found[-1], found[0]
    names = [name for name in last if name not in _METRICS_LEFT_OUT]
    note = f"On the {plain(last.get('count', 0))} rows of the evaluation data."
    shown = [last] if first is last else [first, last]
    header = ["metric", *(f"after {record['step']:,} updates" for record in shown)]
    rows = [[name, *(plain(record.get(name, "")) for record in shown)] for name in names]
    return Table("Results", header, rows, note, names=True)


def costs(records: RunRecords) -> Table:
    """Devices, time, energy and versions, as far as they were recorded."""
    summary, plan, env = summarise(records), records.plan, records.env
    rows = [["devices", devices(plan, env)]]
    if plan:
        rows.append(["spread", f"{plan.get('kind')} over {plan.get('world_size')} processes, {plan.get('precision')}"])
    if summary.duration_s is not None:
        rows.append(["time", duration(summary.duration_s)])
    if summary.gpu_s:
        rows.append(["GPU hours", f"{summary.gpu_s / 3600:,.2f}"])
    if summary.energy_j:
        rows.append(["energy of the GPUs", f"{summary.energy_j / _JOULES_A_KWH:,.3f} kWh"])
    if summary.units_per_s:
        rows.append(["rate", f"{summary.units_per_s:,.0f} {summary.unit}/s"])
    if summary.memory_bytes:
        rows.append(["memory of a process", size(summary.memory_bytes)])
    packages = as_mapping(env.get("packages")) or {"torch": env.get("torch")}
    versions = {"drumline": env.get("drumline"), **{name: packages.get(name) for name in ("torch", "transformers")}}
    rows.append(["versions", ", ".join(f"{name} {value}" for name, value in versions.items() if value)])
    return Table("Hardware and cost", ["", ""], [row for row in rows if row[1]])


def devices(plan: Mapping[str, Any], env: Mapping[str, Any]) -> str:
    """How many of which; their UUIDs are nobody's business."""
    used = plan.get("gpus") or []
    if not used:
        return str(plan.get("device", ""))
    listed = env.get("gpus") if isinstance(env.get("gpus"), list) else []
    names = [str(gpu.get("name")) for gpu in listed or [] if isinstance(gpu, dict) and gpu.get("uuid") in used]
    kinds = ", ".join(dict.fromkeys(names)) or str(env.get("device", "GPU"))
    return f"{len(used)} x {kinds}" + ("" if plan.get("world_size") == len(used) else " a machine")


def settings(trained: Trained) -> Table:
    """What was set to something else than the schema's own value, and the batch and rate in any case."""
    config = trained.config
    rows = [["seed", str(config.seed)]]
    for name in _SECTIONS:
        section: Any = getattr(config, name)
        if section is None:
            continue
        own = dict(leaves(section.model_dump(mode="json")))
        usual = dict(leaves(unset_values(section)))
        always = {"kind", "global_batch", "lr", "epochs", "max_steps", "context"}
        for key, value in own.items():
            if re.match(r"\w+", key)[0] in _PLACES or key == "adapter.initial":  # type: ignore[index]
                continue
            if value is not None and (key in always or value != usual.get(key)):
                rows.append([f"{name}.{key}", as_text(value)])
    return Table("Settings", ["setting", "value"], rows, "Those that differ from drumline's own values.", names=True)


def unset_values(section: Any) -> Any:
    """The values that a section of this kind has where nothing is set."""
    found = {
        name: field.get_default(call_default_factory=True)
        for name, field in type(section).model_fields.items()
        if not field.is_required()
    }
    return {
        name: value.model_dump(mode="json") if hasattr(value, "model_dump") else value for name, value in found.items()
    }


def last_event(records: RunRecords, name: str) -> Mapping[str, Any]:
    """The newest event of that name; empty where there is none."""
    return next((event for event in reversed(records.events) if event.get("event") == name), {})


def as_mapping(value: Any) -> Mapping[str, Any]:
    """The value where it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def number(value: Any) -> str:
    """A count, or the total of a record of counts; empty for anything else."""
    if isinstance(value, Mapping):
        value = value.get("total")
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else ""
