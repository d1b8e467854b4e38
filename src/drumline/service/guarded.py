"""What every route of ours goes through, also inside somebody else's application: keys, limits, sizes, problems."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive

from drumline.service.access import READING, Asking, Caller
from drumline.service.headers import add_security_headers
from drumline.service.idempotency import refuse_key, takes_key
from drumline.service.problems import answer_to, responses, shown_path
from drumline.service.sizes import limited
from drumline.service.state import Service, key_is_needed, service_of

logger = logging.getLogger("drumline.service")

SMALL_BYTES = 8 * 1024
"""A body up to this is parsed at once; and it is the largest that routes take which need no key."""
MOST_NAMES = 1000
"""Of one object; rows of `texts` are intake's matter."""
MOST_PARTS = 1_000_000
"""Entries, objects and lists of one body, unless max_texts allows more: while a body is parsed nothing else is done in
the process, and a million parts of a few bytes take as long as 30 MB of text."""
PARTS_A_TEXT = 10
PIECE_BYTES = 2**18
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class StrictRequest(Request):
    """A request whose JSON is JSON: no NaN, no number beyond float64, and no text that is not Unicode."""

    most_parts = MOST_PARTS

    async def json(self) -> Any:
        """The body; a large one is parsed in a thread. Raises json.JSONDecodeError."""
        body = await self.body()
        if len(body) <= SMALL_BYTES:
            return parse_strictly(body)
        return await run_in_threadpool(parse_strictly, body, self.most_parts)


class GuardedRoute(APIRoute):
    """A route that asks who is there before it reads the body, and answers every error as a problem."""

    needs_key = True
    takes_turns = False
    """Whether only `state.READERS` of its answers are made at a time."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Declares the problems that this very route may answer with, besides those that it names itself."""
        super().__init__(path, endpoint, **options)
        found = self.dependant
        # What is open to all and changes nothing asks nobody and counts nothing: it answers, whoever floods the rest.
        is_plain = not self.needs_key and (self.methods or set()) <= READING
        self._ignores_key = "POST" in (self.methods or set()) and not takes_key(found)
        statuses = set() if is_plain else {429, 503} | ({401, 403} if self.needs_key else set())
        if found.path_params or found.query_params or found.header_params:
            statuses |= {422}
        if self._ignores_key:
            statuses |= {422}
        if self.body_field is not None:
            statuses |= {400, 408, 413, 422}
        for status, described in responses(*statuses).items():
            self.responses.setdefault(status, described)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The framework's own handler, guarded."""
        handle = super().get_route_handler()

        async def guarded(request: Request) -> Response:
            try:
                service = service_of(request)
                request.state.caller = await _admit(service, request, needs_key=self.needs_key)
                if self._ignores_key:
                    refuse_key(request)
                strict = StrictRequest(request.scope, self._body_of(request, service))
                strict.most_parts = max(MOST_PARTS, PARTS_A_TEXT * service.config.limits.max_texts)
                takes_turns = self.takes_turns and request.method in READING
                async with service.reading if takes_turns else nullcontext():
                    answer = await handle(strict)
            except Exception as error:
                answer = answer_to(error, request)
            add_security_headers(answer)
            if request.method not in READING:
                _log(request, answer)
            return answer

        return guarded

    def _body_of(self, request: Request, service: Service) -> Receive:
        """Where to take the body from; of routes without one nobody reads what is sent."""
        if self.body_field is None:
            return request.receive
        most = service.config.limits.max_body_bytes
        return limited(request, most if self.needs_key else min(most, SMALL_BYTES))


class StoreRoute(GuardedRoute):
    """A route that reads the store and files, which takes milliseconds and never waits for a GPU's driver."""

    takes_turns = True


class OpenRoute(GuardedRoute):
    """A route that needs no key. Changes are limited by address, and bodies are small."""

    needs_key = False


def guarded_router(
    tag: str, prefix: str = "", *, statuses: Sequence[int] = (), kind: type[GuardedRoute] = GuardedRoute
) -> APIRouter:
    """A router whose routes need a key. statuses: problems of all of its routes besides those of their kind."""
    return APIRouter(
        prefix=prefix,
        tags=[tag],
        route_class=kind,
        responses=responses(*statuses),
        dependencies=[Depends(key_is_needed)],
        generate_unique_id_function=operation_id,
    )


def open_router(tag: str, *, statuses: Sequence[int] = ()) -> APIRouter:
    """A router whose routes need no key."""
    return APIRouter(
        tags=[tag],
        route_class=OpenRoute,
        responses=responses(*statuses),
        generate_unique_id_function=operation_id,
    )


def operation_id(route: APIRoute) -> str:
    """The name of its function."""
    return route.name


def parse_strictly(body: bytes, most_parts: int = MOST_PARTS) -> Any:
    """Parse JSON as RFC 8259 has it.

    Raises json.JSONDecodeError for all that Python would take beyond it, for objects so large that nobody means them
    (each name that is wrong would be an error of its own, of hundreds of bytes), and before it is parsed for a body of
    so many parts that nothing else would be done for seconds.
    """
    try:
        _check_parts(body, most_parts)
        text = body.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
        if _SURROGATE.search(text):
            # A half of a surrogate pair is no text, and no file or database would take it.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        _check_names(value)
    except json.JSONDecodeError:
        raise
    except UnicodeError:
        raise json.JSONDecodeError("not UTF-8", "", 0) from None
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", "", 0) from None
    except ValueError as error:  # numbers of thousands of digits too
        raise json.JSONDecodeError(str(error)[:100], "", 0) from None
    return value


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number beyond float64")
    return value


def _check_parts(body: bytes, most: int) -> None:
    """Raise ValueError for a body with too many entries, objects and lists; those are commas and brackets.

    What stands in texts is looked at only where all together are too many. It goes piece by piece, between which other
    threads have their turn.
    """
    if _num_marks(body) <= most:
        return
    found, start, is_in_text = 0, 0, False
    while start < len(body):
        piece = body[start : start + PIECE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # what it escapes belongs to it
            piece = body[start : start + PIECE_BYTES + 1]
        start += len(piece)
        runs = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        found += _num_marks(b"".join(runs[is_in_text::2]))
        is_in_text ^= len(runs) % 2 == 0
        if found > most:
            raise ValueError(f"more than {most:,} entries, objects and lists, which is as many as a body may have")


def _num_marks(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _check_names(value: Any) -> None:
    """Raise ValueError for an object with too many names."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, list):
            pending += [part for part in each if isinstance(part, dict | list)]
        elif isinstance(each, dict):
            if len(each) > MOST_NAMES:
                raise ValueError(f"an object has {len(each):,} names, and may have {MOST_NAMES:,}")
            for name, part in each.items():
                is_rows = name == "texts" and isinstance(part, list)
                if isinstance(part, dict | list) and not is_rows:
                    pending.append(part)


def _log(request: Request, answer: Response) -> None:
    """A change, by whom, and what came of it; nothing that was sent."""
    caller: Caller | None = getattr(request.state, "caller", None)
    name = "nobody" if caller is None else f"{caller.who.owner} ({caller.name})"
    logger.info("%s %s by %s: %d", request.method, shown_path(request), name, answer.status_code)


async def _admit(service: Service, request: Request, *, needs_key: bool) -> Caller | None:
    """Say who asks, and count the request. Raises Unauthorized, Forbidden or RateLimited."""
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in request.scope["headers"]}
    client = request.client.host if request.client is not None else None
    asking = Asking(request.method, headers, request.cookies, client, request.url.scheme)
    caller = None
    if needs_key:
        address = client or "local"
        try:
            has_secret = "authorization" in headers or "x-api-key" in headers or bool(asking.cookies)
            if has_secret and not service.access.knows(asking):  # the store is asked, which may wait
                caller = await run_in_threadpool(service.access.caller, asking)
            else:
                caller = service.access.caller(asking)
        except Exception:
            service.rates.count(address, is_change=False)
            raise
    elif not asking.is_change:
        return None
    service.rates.count(caller.name if caller is not None else client or "local", is_change=asking.is_change)
    return caller
