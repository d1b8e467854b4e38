"""How large a body may be, counted as it comes in."""

from __future__ import annotations

import asyncio

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive

SILENT_S = 30.0
"""How long a sender may leave a body half sent."""
WHOLE_S = 120.0
"""In which a body must be there: who sends a byte now and then is never silent."""


def limited(request: Request, max_bytes: int) -> Receive:
    """Where to take the body from instead. What says that it is larger is refused at once, the rest while it comes.

    Raises HTTPException 413 and 408, which the framework lets through.
    """
    said = request.headers.get("content-length", "")
    if said.isdecimal() and (len(said) > 18 or int(said) > max_bytes):
        raise too_large(max_bytes)
    receive, taken, is_whole = request.receive, 0, False
    ends: float | None = None

    async def counted() -> Message:
        nonlocal taken, is_whole, ends
        if is_whole:  # what comes now is that the sender went
            return await receive()
        now = asyncio.get_running_loop().time()
        ends = now + WHOLE_S if ends is None else ends
        try:
            message = await asyncio.wait_for(receive(), max(0.0, min(SILENT_S, ends - now)))
        except TimeoutError:
            what = f"nothing came for {SILENT_S:g} s" if ends - now > SILENT_S else f"it took more than {WHOLE_S:g} s"
            raise HTTPException(408, what, {"Connection": "close"}) from None
        if message["type"] == "http.request":
            taken += len(message.get("body", b""))
            if taken > max_bytes:
                raise too_large(max_bytes)
            is_whole = not message.get("more_body", False)
        return message

    return counted


def too_large(max_bytes: int) -> HTTPException:
    """The answer to a body that is too large. The connection ends: what is still to come is not read."""
    return HTTPException(413, f"a body may have {max_bytes:,} bytes at most", {"Connection": "close"})
