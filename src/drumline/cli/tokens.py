"""`drumline tokens`: API keys of a service, made and revoked straight in its store."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drumline.cli.options import Json
from drumline.cli.output import print_columns, print_json
from drumline.cli.service_options import ServiceFile, ServiceSettings, check_store

if TYPE_CHECKING:
    from pathlib import Path

    from drumline.jobs.store import Key, Store

DAY_S = 86400.0
MOST_DAYS = 36_500.0
COMMAND = "drumline tokens"
"""Who did it, in the audit log."""


class RoleName(StrEnum):
    """What a key may do."""

    viewer = "viewer"
    user = "user"
    admin = "admin"


Owner = Annotated[
    str, typer.Argument(metavar="OWNER", help="Whose jobs it sees and changes; * with --role viewer: sees everybody's.")
]
OfRole = Annotated[
    RoleName, typer.Option("--role", help="viewer: changes nothing; user: its owner's jobs; admin: everything.")
]
Name = Annotated[str, typer.Option("--name", help="What it is for, to know it again.")]
Days = Annotated[
    float | None, typer.Option("--days", min=0.001, max=MOST_DAYS, help="It ends after so many days, or never.")
]
KeyId = Annotated[str, typer.Argument(metavar="KEY", help="Id of a key, as `drumline tokens list` shows it.")]


def register(app: typer.Typer) -> None:
    """Add the commands below `tokens`."""
    about = "API keys of a service: make, list, revoke."
    commands = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=about)
    for name, command in (("create", create), ("list", list_keys), ("revoke", revoke)):
        commands.command(name)(command)
    app.add_typer(commands, name="tokens")


def create(
    owner: Owner,
    role: OfRole = RoleName.user,
    name: Name = "",
    days: Days = None,
    file: ServiceFile = None,
    overrides: ServiceSettings = None,
    as_json: Json = False,
) -> None:
    """Make a key and show it, this once: only its hash is kept.

    The key is the only thing on standard output, so that `drumline tokens create ann > key.txt` keeps it.
    """
    from drumline.errors import ConfigError
    from drumline.service.new_keys import OWNER, new_key

    if not OWNER.match(owner):
        raise ConfigError(f"{owner[:100]!r} is no owner", "letters, digits and ._@- make one, or * for everybody")
    if owner == "*" and role is not RoleName.viewer:
        raise ConfigError("the owner * is everybody, whom only a viewer's key may read", "add --role viewer, or a name")
    if days is not None and math.isnan(days):  # it is neither below the least nor above the most
        raise ConfigError("--days is no number", f"say one up to {MOST_DAYS:g}, or leave it out")
    now = time.time()
    ends = None if days is None else now + days * DAY_S
    secret, key = new_key(owner, role.value, now, name=name, expires=ends)
    with opened(file, overrides, may_be_new=True) as store:
        store.keys.add(key)
        store.log.audit("key_created", COMMAND, f"{key.id} of {owner}, {role.value}", now)
    if as_json:
        print_json({**as_record(key), "key": secret})
        return
    typer.echo(secret)
    typer.echo(f"{key.id}, {role.value} {owner}: keep it now, it is not shown again", err=True)


def list_keys(file: ServiceFile = None, overrides: ServiceSettings = None, as_json: Json = False) -> None:
    """List keys, the newest first, those that are revoked or past their end too; never the secrets."""
    with opened(file, overrides) as store:
        keys = store.keys.list()
    if as_json:
        print_json([as_record(key) for key in keys])
    elif not keys:
        typer.echo("there are no keys")
    else:
        rows = [
            [key.id, key.owner, key.role, state(key), key.name, day(key.created), day(key.last_used)] for key in keys
        ]
        print_columns(["key", "owner", "role", "state", "name", "made", "last used"], rows)


def revoke(key_id: KeyId, file: ServiceFile = None, overrides: ServiceSettings = None) -> None:
    """Let a key open nothing any more, nor the logins that were made with it."""
    from drumline.errors import ConfigError

    now = time.time()
    with opened(file, overrides) as store:
        if not store.keys.revoke(key_id, now):
            raise ConfigError(f"there is no key {key_id[:100]!r}", "see their ids with: drumline tokens list")
        store.log.audit("key_revoked", COMMAND, key_id, now)
    typer.echo(f"{key_id} is revoked")


@contextmanager
def opened(file: Path | None, overrides: list[str] | None, *, may_be_new: bool = False) -> Iterator[Store]:
    """The store that a service with these settings has; may_be_new: it is made where there is none."""
    from drumline.config.service_file import load_service_config
    from drumline.jobs.store import open_store, store_url

    config = load_service_config(file, overrides or ())
    check_store(config, may_be_new=may_be_new)
    store = open_store(store_url(config))
    try:
        yield store
    finally:
        store.close()


def as_record(key: Key) -> dict[str, Any]:
    """A key as JSON: everything but its hash."""
    return {name: value for name, value in asdict(key).items() if name not in ("hash", "kind", "parent")} | {
        "state": state(key)
    }


def state(key: Key) -> str:
    """Whether it opens anything, or why not."""
    if key.revoked is not None:
        return f"revoked {day(key.revoked)}"
    if not key.is_valid(time.time()):
        return f"ended {day(key.expires)}"
    return "valid" if key.expires is None else f"valid to {day(key.expires)}"


def day(moment: float | None) -> str:
    """A moment to the minute, UTC."""
    from drumline.service.views import timestamp

    return (timestamp(moment) or "")[:16].replace("T", " ")
