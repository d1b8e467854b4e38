"""The store of jobs, leases, keys, settings and audit events: SQLite in a file, or PostgreSQL.

Importing this loads neither SQLAlchemy nor a driver: open_store() does.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from drumline.config.service import ServiceConfig
from drumline.errors import MissingExtra
from drumline.jobs.store.values import (
    Audit,
    AuditFilter,
    Beat,
    DocumentKind,
    Idempotency,
    JobFilter,
    Key,
    KeyFilter,
    KeyKind,
    Page,
    Role,
    Use,
    Versioned,
)

if TYPE_CHECKING:
    from drumline.jobs.store.change import Change
    from drumline.jobs.store.opened import Store

_HOMES = {"Change": "drumline.jobs.store.change", "Store": "drumline.jobs.store.opened"}

__all__ = [
    "Audit",
    "AuditFilter",
    "Beat",
    "Change",
    "DocumentKind",
    "Idempotency",
    "JobFilter",
    "Key",
    "KeyFilter",
    "KeyKind",
    "Page",
    "Role",
    "Store",
    "Use",
    "Versioned",
    "open_store",
    "store_url",
]


def open_store(url: str) -> Store:
    """Open the store at an SQLAlchemy URL, and bring it to this drumline's shape under a lock.

    sqlite:////absolute/path makes the file, for its owner only; postgresql://… needs a database that exists.
    Raises StoreError where it cannot be reached or is of a newer drumline, ConfigError for any other URL, and
    MissingExtra without SQLAlchemy.
    """
    try:
        import sqlalchemy  # noqa: F401
    except ImportError as error:
        raise MissingExtra("sqlalchemy", "serve") from error
    from drumline.jobs.store.opened import Store

    return Store(url)


def store_url(config: ServiceConfig) -> str:
    """Where a service has its store: what it was told, else SQLite in its data directory."""
    return config.database or f"sqlite:///{config.data_dir.absolute() / 'store.sqlite3'}"


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
