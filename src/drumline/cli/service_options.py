"""Options by which commands find a service, or its data directory where they work without one."""

from __future__ import annotations

import functools
import inspect
import os
import pwd
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from drumline.config.service import ServiceConfig
    from drumline.service.client import Client
    from drumline.service.in_process import InProcess

KEY_VARIABLE = "DRUMLINE_KEY"

ServiceFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The service's settings, as YAML; see docs/service-config.md."),
]
ServiceSettings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set one of them, e.g. port=8080; may be given again."),
]


@dataclass(frozen=True)
class Place:
    """Where jobs are: at a service, or without --url in its data directory. The fields are the options."""

    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Of a running service; unless given, its data directory is used directly."),
    ] = None
    key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file that holds the API key for --url and nothing else.")
    ] = None
    key_variable: Annotated[
        str, typer.Option(metavar="NAME", help="The environment variable that holds the API key, without --key-file.")
    ] = KEY_VARIABLE
    file: ServiceFile = None
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The service's data_dir, unless --url or --config says."),
    ] = None

    @contextmanager
    def jobs(self, *, may_be_new: bool = False) -> Iterator[Client | InProcess]:
        """The door to the jobs. Raises ConfigError for options that contradict each other.

        may_be_new: whether a data directory is made where there is none.
        """
        from drumline.errors import ConfigError

        if self.url is None:
            from drumline.config.service_file import load_service_config
            from drumline.service.in_process import InProcess

            own = [] if self.data_dir is None else [f"data_dir={self.data_dir}"]
            config = load_service_config(self.file, own)
            check_store(config, may_be_new=may_be_new)
            with InProcess(config) as inside:
                yield inside
            return
        if self.file is not None or self.data_dir is not None:
            raise ConfigError("--url and a data directory at the same time", "leave --config and --data-dir out")
        from drumline.service.client import Client

        key = None if self.key_file is not None else os.environ.get(self.key_variable) or None
        with Client(self.url, key, key_file=self.key_file) as client:
            yield client


def check_store(config: ServiceConfig, *, may_be_new: bool) -> None:
    """Raise ConfigError where the data directory is another user's, or there is no store in it and none is to be made.

    What another user would write there, the service could not read: its store, or a job's folder.
    """
    from drumline.errors import ConfigError

    folder = config.data_dir
    try:
        owner: int | str = folder.stat().st_uid
    except FileNotFoundError:
        owner = os.geteuid()
    except OSError as error:
        raise ConfigError(f"{folder} cannot be looked at: {error.strerror}", "check the path and its rights") from None
    if owner != os.geteuid():
        with suppress(KeyError):  # a number without a name, as in many containers
            owner = pwd.getpwuid(int(owner)).pw_name
        raise ConfigError(f"{folder} belongs to the user {owner}", f"do it as that one: sudo -u '{owner}' drumline ...")
    if config.database is None and not may_be_new and not (folder / "store.sqlite3").is_file():
        raise ConfigError(
            f"there is no store of a service in {folder}",
            "say where it is: data_dir (here or in the --config file), or --url of a running service for its jobs",
        )


def placed(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of Place, which reach it as its parameter `place`."""
    signature = inspect.signature(command, eval_str=True)
    options = inspect.signature(Place, eval_str=True).parameters
    own = [parameter for name, parameter in signature.parameters.items() if name != "place"]
    added = [parameter.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) for parameter in options.values()]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        place = Place(**{each.name: given.pop(each.name) for each in fields(Place)})
        command(**given, place=place)

    run.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *added)}
    return run
