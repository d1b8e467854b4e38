"""From a request to a job's work: checked against what the service allows, with paths and names looked up."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from drumline.config.service import ServiceConfig
from drumline.errors import ConfigError, Forbidden, TooLarge
from drumline.jobs.defaults import GPUConfig, devices_from, parallel_from, settings_from
from drumline.jobs.finetuning_settings import as_settings
from drumline.jobs.intake_data_sets import check_saved
from drumline.jobs.intake_paths import Places
from drumline.jobs.intake_predictions import check_images, image_roots, prediction_settings
from drumline.jobs.intake_settings import bounded, finetuning_settings, is_text, run_settings
from drumline.jobs.records import Resources, Work
from drumline.jobs.requests import JobRequest, ResourcesRequest, Who

COUNTS = ("hardware.count", "hardware.num_processes", "hardware.gpus")
"""Settings by which a run says how many devices it wants; of a job its resources say it."""
BATCH_A_GPU = frozenset({"train.batch_size_per_gpu", "train.gradient_accumulation_steps"})


@dataclass(frozen=True)
class Accepted:
    """A request that may be done."""

    work: Work
    resources: Resources
    rows: bytes | None
    """Texts that came with it, as JSON Lines for the job's own folder."""
    notes: tuple[str, ...]
    """What was understood in another way than it was said."""


def accept(
    request: JobRequest,
    config: ServiceConfig,
    places: Places,
    defaults: GPUConfig | None,
    *,
    has_gpus: bool,
    complete: bool = True,
) -> Accepted:
    """Check a request: what it names lies where it may, its settings are such, and its sizes are bounded.

    defaults: what jobs take that do not say it themselves; None: nothing, or the request has it already. complete:
    whether model and data must be there. Raises ConfigError for what cannot be meant or is not allowed, TooLarge for
    too many texts.
    """
    _check_kind(request, complete=complete)
    bounded([request.columns, request.path], "the request")
    notes: list[str] = []
    asked, said = _without_counts(request, notes, has_gpus=has_gpus)
    elastic = request.resources is not None and request.resources.min_devices is not None
    rows: bytes | None = None
    data: tuple[str, ...] = ()
    if request.kind == "infer":
        return _prediction(request, said, config, places, defaults, (asked, tuple(notes)), has_gpus=has_gpus)
    if request.kind == "train":
        settings = run_settings(said, places)
        settings = _with_defaults_in_sections(settings, defaults, has_gpus=has_gpus, elastic=elastic)
        flat = as_settings(settings)
        model, name = None, _model_in(said)
    else:
        name = request.model_name
        model = None if name is None else places.model(name)
        rows, data = _data(request, config, places)
        extra = {"data.context": request.max_length, "data.columns": dict(request.columns) or None}
        said = {**{key: value for key, value in extra.items() if value is not None}, **said}
        settings = flat = finetuning_settings(said, places)
        if defaults is not None:
            settings |= settings_from(defaults, set(flat), has_gpus=has_gpus, elastic=elastic)
    if elastic and BATCH_A_GPU & set(flat):
        raise ConfigError(
            "an elastic job cannot have a batch a GPU: the whole batch would change with its size",
            "say train.global_batch instead of train.batch_size_per_gpu, or leave min_devices out",
        )
    parallel = request.parallel
    if parallel == "auto" and defaults is not None:
        parallel = parallel_from(defaults)
    single = flat.get("parallel.kind") == "single" or flat.get("parallel") == {"kind": "single"}
    resources = _resources(request.resources, asked, 1 if single else _usual(defaults))
    # Only a Hugging Face model becomes a folder that others read.
    export = request.kind == "finetune" or flat.get("model.kind", _kind_of(flat.get("model"))) == "huggingface"
    work = Work(request.kind, settings, model, name, data, parallel, export=export)
    return Accepted(work, resources, rows, tuple(notes))


def most_priority(config: ServiceConfig, who: Who) -> int:
    """The highest priority that somebody may ask for."""
    return 100 if who.role == "admin" else config.limits.max_user_priority


def check_priority(request: JobRequest, config: ServiceConfig, who: Who) -> None:
    """Raise Forbidden for a priority that is an admin's alone: with it one owner's jobs would stop all others'."""
    most = most_priority(config, who)
    if request.resources is not None and request.resources.priority > most:
        raise Forbidden(
            f"priority {request.resources.priority} is an admin's to ask for, and others may have {most} at most",
            f"ask for {most} or less, or ask an admin (limits.max_user_priority of the service)",
        )


def _prediction(
    request: JobRequest,
    said: Mapping[str, Any],
    config: ServiceConfig,
    places: Places,
    defaults: GPUConfig | None,
    asked: tuple[int | None, tuple[str, ...]],
    *,
    has_gpus: bool,
) -> Accepted:
    """A request of kind infer. asked: devices that its settings ask for, and notes."""
    name = request.model_name
    model = None if name is None else places.model(name)
    if model is not None:
        check_images(model, request)
    rows, data = _data(request, config, places)
    settings = prediction_settings(request, said, places)
    if data:
        settings["rows"] = {**settings.get("rows", {}), "image_roots": image_roots(config)}
    if defaults is not None and has_gpus:
        settings["hardware"] = {"memory_fraction": defaults.memory_fraction, **settings.get("hardware", {})}
    work = Work("infer", settings, model, name, data, output=request.output)
    return Accepted(work, _resources(request.resources, asked[0], _usual(defaults)), rows, asked[1])


def _check_kind(request: JobRequest, *, complete: bool) -> None:
    if request.kind != "infer" and (request.task is not None or "output" in request.model_fields_set):
        raise ConfigError("task and output go with kind infer", "leave them out, or send kind: infer")
    if request.kind == "infer" and (request.max_length is not None or request.parallel != "auto"):
        raise ConfigError(
            "max_length and parallel go with kind finetune", "say task.context, or split in settings, or leave them out"
        )
    if request.kind == "train":
        if request.config is None:
            raise ConfigError("kind train needs config", "send a RunConfig as config, or kind: finetune")
        extra = [name for name in ("model_name", "texts", "path", "max_length") if getattr(request, name) is not None]
        extra += [name for name in ("columns", "settings") if getattr(request, name)]
        if extra:
            raise ConfigError(f"{', '.join(extra)}: kind train says all of it in config", "leave it out")
        return
    if request.config is not None:
        raise ConfigError("config goes with kind train", "say what differs in settings")
    if request.model_name is None and complete:
        what = "fine-tuned" if request.kind == "finetune" else "asked"
        raise ConfigError("model_name is missing", f"name the model that is to be {what}")
    if (request.texts is not None and request.path is not None) or (complete and request.texts == request.path):
        what = "a fine-tuning learns" if request.kind == "finetune" else "a prediction takes its rows"
        raise ConfigError(f"{what} from texts or from path", "send one of the two")


def _data(request: JobRequest, config: ServiceConfig, places: Places) -> tuple[bytes | None, tuple[str, ...]]:
    if request.texts is not None:
        return rows_of(request.texts, config), ()
    paths = [request.path] if isinstance(request.path, str) else list(dict.fromkeys(request.path or []))
    if request.path is not None and not paths:
        raise ConfigError("path names no file", "name at least one")
    found = tuple(places.data(path, "path") for path in paths)
    for path in found:
        check_saved(path, "path")
    return None, found


def rows_of(texts: list[str | dict[str, Any]], config: ServiceConfig) -> bytes:
    """Rows as JSON Lines. Raises ConfigError for none, and for what is no text; TooLarge for too many, or too much."""
    if not texts:
        raise ConfigError("texts is empty", "send at least one text")
    if len(texts) > config.limits.max_texts:
        raise TooLarge(
            f"{len(texts):,} texts, and a request may have {config.limits.max_texts:,}",
            "put them into a file below one of files.data_roots and name it as path",
        )
    lines, size = [], 0
    for number, row in enumerate(texts):
        if isinstance(row, str):
            if not is_text(row):
                raise ConfigError(f"texts[{number}] has half a character (a lone surrogate)", "send it as UTF-8")
            row = {"text": row}
        else:
            bounded(row, f"texts[{number}]", config.limits.max_body_bytes)
            if not row:
                raise ConfigError(f"texts[{number}] has no values", "leave it out")
        lines.append(json.dumps(row).encode() + b"\n")
        size += len(lines[-1])
        # ASCII with escapes is up to six bytes where UTF-8 had one to three.
        if size > 6 * config.limits.max_body_bytes:
            raise TooLarge("the texts of the request are too large", "put them into a file and name it as path")
    return b"".join(lines)


def _without_counts(request: JobRequest, notes: list[str], *, has_gpus: bool) -> tuple[int | None, dict[str, Any]]:
    """How many devices the settings ask for, and the settings without that."""
    bounded(request.config or request.settings, "config" if request.kind == "train" else "settings")
    if request.kind == "finetune":
        said: dict[str, Any] = as_settings(request.settings)
        hardware = {name: said.pop(name) for name in (*COUNTS, "hardware.device") if name in said}
    else:
        said = dict((request.config if request.kind == "train" else request.settings) or {})
        section = dict(said["hardware"]) if isinstance(said.get("hardware"), Mapping) else {}
        names = [name.partition(".")[2] for name in (*COUNTS, "hardware.device")]
        hardware = {f"hardware.{name}": section.pop(name) for name in names if name in section}
        if isinstance(said.get("hardware"), Mapping):
            said["hardware"] = section
        if request.kind == "infer":
            dotted = [name for name in (*COUNTS, "hardware.device") if name in said]
            hardware |= {name: said.pop(name) for name in dotted}
    _check_device(hardware.pop("hardware.device", "auto"), has_gpus=has_gpus)
    count = None
    for name, value in hardware.items():
        if value is None:
            continue
        if name == "hardware.gpus":
            value = len(value) if isinstance(value, list) and value else None
            notes.append("of the GPUs that it names only their number counts: the service chooses which are free")
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 100_000:
            raise ConfigError(f"{name} says no number of devices", "say resources.devices")
        count = value
    return count, said


def _check_device(device: object, *, has_gpus: bool) -> None:
    here = "cuda" if has_gpus else "cpu"
    if device not in ("auto", here):
        raise ConfigError(f"hardware.device: jobs of this service run on {here}", "leave it out")


def _model_in(config: Mapping[str, Any]) -> str | None:
    """What a RunConfig calls its model."""
    model = config.get("model")
    path = model.get("path") if isinstance(model, Mapping) else None
    return path if isinstance(path, str) else None


def _kind_of(section: object) -> object:
    return section.get("kind") if isinstance(section, Mapping) else None


def _with_defaults_in_sections(
    settings: dict[str, Any], defaults: GPUConfig | None, *, has_gpus: bool, elastic: bool
) -> dict[str, Any]:
    """A RunConfig with what the defaults say and it does not."""
    if defaults is None:
        return settings
    found = {name: dict(value) if isinstance(value, Mapping) else value for name, value in settings.items()}
    said = {f"{top}.{name}" for top, section in found.items() if isinstance(section, Mapping) for name in section}
    for name, value in settings_from(defaults, said, has_gpus=has_gpus, elastic=elastic).items():
        section, _, last = name.partition(".")
        found.setdefault(section, {})[last] = value
    return found


def _usual(defaults: GPUConfig | None) -> int | Literal["auto"]:
    return "auto" if defaults is None else devices_from(defaults)


def _resources(request: ResourcesRequest | None, asked: int | None, usual: int | Literal["auto"]) -> Resources:
    """What a job needs: as its resources say, else its settings, else the defaults. Raises ConfigError."""
    request = ResourcesRequest() if request is None else request
    least, most = request.min_devices, request.max_devices
    devices: int | Literal["auto"] = usual if asked is None else asked
    if "devices" in request.model_fields_set:
        devices = request.devices
    if (least is None) != (most is None):
        raise ConfigError("min_devices and max_devices go together", "say both, or neither")
    if least is not None and most is not None:
        if least > most:
            raise ConfigError(f"min_devices is {least} and max_devices {most}", "write the smaller one as min_devices")
        if devices != "auto" and not least <= devices <= most:
            raise ConfigError(f"devices is {devices}, not between {least} and {most}", "leave devices out")
    found = Resources(
        devices=devices,
        min_devices=least,
        max_devices=most,
        memory_bytes=request.memory_bytes,
        gpus=tuple(dict.fromkeys(request.gpus)),
        priority=request.priority,
        time_limit_s=request.time_limit_s,
        retries=request.retries,
        preemptible=request.preemptible,
    )
    if found.gpus and found.least > len(found.gpus):
        raise ConfigError(
            f"it asks for {found.least} devices, and gpus names {len(found.gpus)}", "name as many, or ask for fewer"
        )
    return found
