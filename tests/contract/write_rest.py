"""Writes docs/rest.md from the service's OpenAPI document: python -m tests.contract.write_rest"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.contract.write_openapi import document

PAGE = Path(__file__).parents[2] / "docs" / "rest.md"
HEAD = """# REST

Made from the OpenAPI document, which a running service gives at `/openapi.json`, with all schemas, and at `/docs` as a
page to try. How they are used: [service.md](service.md).
"""
METHODS = ("get", "post", "put", "patch", "delete")


def page() -> str:
    """Markdown, a table a tag."""
    by_tag: dict[str, list[str]] = {}
    for path, operations in sorted(document()["paths"].items()):
        for method in METHODS:
            if operation := operations.get(method):
                for tag in operation.get("tags", ["other"])[:1]:
                    by_tag.setdefault(tag, []).append(row(path, method, operation))
    return "\n".join([HEAD, *(line for tag in sorted(by_tag) for line in section(tag, by_tag[tag]))])


def section(tag: str, rows: list[str]) -> Iterator[str]:
    """The table of a tag."""
    yield f"## {tag}\n\n| | path | what it does | takes | answers |\n|---|---|---|---|---|"
    yield from rows
    yield ""


def row(path: str, method: str, operation: dict[str, Any]) -> str:
    """One operation."""
    queries = [f"`{each['name']}`" for each in operation.get("parameters", ()) if each["in"] == "query"]
    contents = operation.get("requestBody", {}).get("content", {})
    bodies = [schema_name(content) for content in contents.values()]
    takes = ", ".join([*bodies, *queries])
    answers = ", ".join(sorted(operation["responses"]))
    what = " ".join((operation.get("description") or operation.get("summary", "")).split("\n\n")[0].split())
    return f"| {method.upper()} | `{path}` | {what.replace('|', chr(92) + '|')} | {takes} | {answers} |"


def schema_name(content: dict[str, Any]) -> str:
    """The name of a body's schema."""
    schema = content.get("schema", {})
    return f"`{schema['$ref'].rsplit('/', 1)[-1]}`" if "$ref" in schema else schema.get("type", "a body")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
