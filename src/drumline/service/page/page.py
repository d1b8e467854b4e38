"""The web page: fixed files of this folder and plotly's script, with their cache headers and a strict policy."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from fastapi import APIRouter, Request, Response

from drumline.errors import MissingExtra, NotFound
from drumline.service.headers import add_security_headers

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""Nothing but the page's own files is loaded or executed; neither scripts nor styles may stand in the document."""

MEDIA_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}

ASK_AGAIN = "no-cache"
"""Kept by the browser and asked about each time, so that an upgrade of the package is seen at once."""

KEEP_A_DAY = "public, max-age=86400"
"""For plotly's script, which is large and changes with that package alone."""

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Asset:
    """One file as it is sent."""

    content: bytes
    compressed: bytes
    """The same by gzip."""
    media_type: str
    etag: str
    cache_control: str


def page_router() -> APIRouter:
    """Router with the page at / and its files at /ui/*; all of its addresses are relative, so any prefix will do."""
    router = APIRouter(include_in_schema=False)

    @router.api_route("/", methods=["GET", "HEAD"])
    def index(request: Request) -> Response:
        """The page."""
        return _answer(request, page_asset("index.html"))

    @router.api_route("/ui/{name}", methods=["GET", "HEAD"])
    def file(request: Request, name: str) -> Response:
        """One of its files."""
        return _answer(request, plotly_asset() if name == "plotly.js" else page_asset(name))

    return router


@cache
def page_asset(name: str) -> Asset:
    """One file of this folder. Raises NotFound for anything that is not one that a page is made of."""
    if name not in page_names():
        # Unknown names are not kept: whoever asks for many must not fill the memory (an exception is not cached).
        raise NotFound(f"the page has no file {name!r}", "open the page itself, at /")
    return _read(FOLDER / name, ASK_AGAIN)


@cache
def page_names() -> frozenset[str]:
    """The files of the page."""
    return frozenset(path.name for path in FOLDER.iterdir() if path.suffix in MEDIA_TYPES)


@cache
def plotly_asset() -> Asset:
    """plotly.js as the installed package plotly has it. Raises MissingExtra where there is none."""
    spec = find_spec("plotly")  # without importing it, which takes long
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        script = Path(folder) / "package_data" / "plotly.min.js"
        if script.is_file():
            return _read(script, KEEP_A_DAY)
    raise MissingExtra("plotly", "serve")


def _read(path: Path, cache_control: str) -> Asset:
    content = path.read_bytes()
    return Asset(
        content,
        gzip.compress(content, 6, mtime=0),
        f"{MEDIA_TYPES[path.suffix]}; charset=utf-8",
        f'"{hashlib.sha256(content).hexdigest()[:32]}"',
        cache_control,
    )


def _answer(request: Request, asset: Asset) -> Response:
    headers = {
        "ETag": asset.etag,
        "Cache-Control": asset.cache_control,
        "Content-Security-Policy": POLICY,
        "Vary": "Accept-Encoding",
    }
    if _knows(request.headers.get("if-none-match", ""), asset.etag):
        answer = Response(status_code=304, headers=headers)
    else:
        content = asset.content
        if _takes_gzip(request.headers.get("accept-encoding", "")):
            content, headers["Content-Encoding"] = asset.compressed, "gzip"
        answer = Response(content, media_type=asset.media_type, headers=headers)
    add_security_headers(answer)
    return answer


def _knows(if_none_match: str, etag: str) -> bool:
    """Whether an If-None-Match names this version; a proxy that compresses may have made the tag a weak one."""
    return any(tag.strip().removeprefix("W/") in (etag, "*") for tag in if_none_match.split(","))


def _takes_gzip(accept_encoding: str) -> bool:
    """Whether an Accept-Encoding allows gzip; `gzip;q=0` forbids it."""
    for item in accept_encoding.lower().split(","):
        coding, _, weight = item.partition(";")
        if coding.strip() == "gzip":
            return weight.replace(" ", "").removeprefix("q=").strip("0.") != "" or weight == ""
    return False
