"""Makes a ServiceConfig: the schema's defaults, then a YAML file, then `a.b=c` overrides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from drumline.config.load import apply_override, validated
from drumline.config.problem import Place
from drumline.config.service import ServiceConfig
from drumline.config.source import Layer, read_file


def load_service_config(path: Path | None = None, overrides: Sequence[str] = ()) -> ServiceConfig:
    """Read a service's settings from a file (None: defaults only) and apply overrides in their order.

    data_dir is absolute then. Raises ConfigError that lists every mistake with its file and line, or its override.
    """
    if path is None:
        layer = Layer({}, {(): Place("the defaults")})
    else:
        layer = read_file(path, called="a service's file", if_empty="write settings into it, such as 'port: 8000'")
    for override in overrides:
        apply_override(layer, override, example="port=8000")
    config = validated(layer, ServiceConfig)
    return config.model_copy(update={"data_dir": config.data_dir.expanduser().absolute()})
