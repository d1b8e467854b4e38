"""Writes openapi.json, after a change of the service's API that is meant: python -m tests.contract.write_openapi"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SNAPSHOT = Path(__file__).with_name("openapi.json")


def document() -> dict[str, Any]:
    """The OpenAPI document of the service as it is now, without the package's version."""
    from drumline.config.service import ServiceConfig
    from drumline.service.app import create_app

    made: dict[str, Any] = json.loads(json.dumps(create_app(ServiceConfig()).openapi()))
    del made["info"]["version"]
    return made


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(document(), indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
