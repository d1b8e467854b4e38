"""The OpenAPI document of our own application: problems by reference, instead of in full at every route."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from drumline.service.problems import MEANINGS, PROBLEM_JSON, problem_schema


def with_problems_named(make: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """A maker of the document in which Problem, and the answers that tell one, are among the components."""

    def made() -> dict[str, Any]:
        document = make()
        components = document.setdefault("components", {})
        components.setdefault("schemas", {})["Problem"] = problem_schema()
        named = components.setdefault("responses", {})
        for operations in document["paths"].values():
            for operation in operations.values():
                answers = operation["responses"]
                for status in [status for status, answer in answers.items() if is_plain(status, answer)]:
                    content = {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}}
                    named[f"Problem{status}"] = {"description": MEANINGS[int(status)], "content": content}
                    answers[status] = {"$ref": f"#/components/responses/Problem{status}"}
        return document

    return made


def is_plain(status: str, answer: dict[str, Any]) -> bool:
    """Whether an answer tells a problem, and nothing else about it."""
    is_problem = list(answer.get("content", {})) == [PROBLEM_JSON] and "headers" not in answer
    return is_problem and answer.get("description") == MEANINGS.get(int(status))
