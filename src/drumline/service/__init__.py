"""The service: jobs, GPUs and measurements over HTTP. `router` mounts into an application of somebody's own."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi import APIRouter

    from drumline.service.app import create_app, make_router

    router: APIRouter

__all__ = ["create_app", "make_router", "router"]


def __getattr__(name: str) -> Any:
    """Import when first used. `router` is made once, with the settings that drumline.config.service says."""
    if name in ("create_app", "make_router"):
        return getattr(import_module("drumline.service.app"), name)
    if name == "router":
        globals()["router"] = import_module("drumline.service.app").make_router()
        return globals()["router"]
    raise AttributeError(f"module 'drumline.service' has no attribute {name!r}")
