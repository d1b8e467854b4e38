"""Brings a database to the shape that this drumline knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, inspect, select
from sqlalchemy import table as table_of
from sqlalchemy.sql import column

from drumline.errors import MissingExtra, StoreError
from drumline.jobs.store.connection import Database
from drumline.jobs.store.tables import REVISION, VERSION_TABLE

SCRIPTS = Path(__file__).with_name("migrations")


def bring_up_to_date(database: Database) -> None:
    """Run the migrations that a database lacks, in one transaction under the lock: all of them are made or none.

    Raises StoreError for a database that a newer drumline has changed, and MissingExtra without Alembic.
    """
    with database.read() as connection:
        if _revision_of(connection) == REVISION:
            return
    with database.write(lock=True) as connection:
        # Read again: another service may have been first.
        if _revision_of(connection) != REVISION:
            _upgrade(connection, database.name)


def _revision_of(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    revision: str | None = connection.scalar(select(column("version_num")).select_from(table_of(VERSION_TABLE)))
    return revision


def _upgrade(connection: Connection, name: str) -> None:
    try:
        from alembic.migration import MigrationContext
        from alembic.operations import Operations
        from alembic.script import ScriptDirectory
    except ImportError as error:
        raise MissingExtra("alembic", "serve") from error
    scripts = ScriptDirectory(str(SCRIPTS))
    found = _revision_of(connection)
    if found is not None and found not in {script.revision for script in scripts.walk_revisions()}:
        raise StoreError(
            f"the store {name} has been used by a newer drumline (its shape is {found}, this one knows {REVISION})",
            "upgrade drumline, or give this one a store of its own (data_dir, database)",
        )

    def missing(heads: Any, _context: Any) -> Any:
        return scripts._upgrade_revs("head", heads)

    options = {"fn": missing, "script": scripts, "version_table": VERSION_TABLE}
    context = MigrationContext.configure(connection, opts=options)
    with Operations.context(context):
        context.run_migrations()
