from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from drumline.errors import MissingExtra, NotFound
from drumline.service.page import page
from drumline.service.page.page import FOLDER, page_asset, page_names, page_router

SCRIPTS = sorted(FOLDER.glob("*.js"))
HTML_SINKS = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "DOMParser", "createContextualFragment")


@pytest.fixture
def client() -> TestClient:
    app = FastAPI()
    app.include_router(page_router(), prefix="/api/v1")
    return TestClient(app)


def test_the_page_allows_no_script_or_style_but_its_own_files(client: TestClient) -> None:
    answer = client.get("/api/v1/")

    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self';" in policy and "style-src 'self';" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    # What the policy would refuse must not be there either.
    assert not re.findall(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=|javascript:", answer.text)


def test_all_addresses_are_relative_so_that_any_prefix_will_do(client: TestClient) -> None:
    found = re.findall(r'(?:src|href)="([^"#]+)"', client.get("/api/v1/").text)

    assert len(found) > 5
    for address in found:
        assert client.get(f"/api/v1/{address}").status_code == 200, address


def test_every_module_that_is_imported_is_there() -> None:
    for script in SCRIPTS:
        for name in re.findall(r'from "\./([^"]+)"', script.read_text()):
            assert name in page_names(), f"{script.name} imports {name}"


def test_media_types(client: TestClient) -> None:
    types = {
        name: client.get(f"/api/v1/ui/{name}").headers["content-type"] for name in ("app.js", "base.css", "icon.svg")
    }

    assert types == {
        "app.js": "text/javascript; charset=utf-8",
        "base.css": "text/css; charset=utf-8",
        "icon.svg": "image/svg+xml; charset=utf-8",
    }


def test_what_the_browser_has_already_is_not_sent_again(client: TestClient) -> None:
    first = client.get("/api/v1/ui/app.js")
    again = client.get("/api/v1/ui/app.js", headers={"If-None-Match": f'"other", W/{first.headers["etag"]}'})
    other = client.get("/api/v1/ui/app.js", headers={"If-None-Match": '"other"'})

    assert first.headers["cache-control"] == "no-cache"
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert (other.status_code, other.content) == (200, first.content)


def test_head_is_answered_like_get(client: TestClient) -> None:
    head, get = client.head("/api/v1/"), client.get("/api/v1/")

    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", get.headers["etag"])


@pytest.mark.parametrize(
    ("accepts", "is_compressed"),
    [
        ("gzip", True),
        ("br, gzip;q=0.8", True),
        ("", False),
        ("br", False),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
    ],
)
def test_compressed_for_those_who_take_it(client: TestClient, accepts: str, is_compressed: bool) -> None:
    answer = client.get("/api/v1/ui/base.css", headers={"Accept-Encoding": accepts})

    assert (answer.headers.get("content-encoding") == "gzip") is is_compressed
    assert answer.headers["vary"] == "Accept-Encoding"
    assert answer.content == (FOLDER / "base.css").read_bytes()  # the client has decompressed it


@pytest.mark.parametrize(
    "name", ["page.py", "../page.py", "nothing.js", "__pycache__", "", "app.js/", "index.html\x00"]
)
def test_nothing_else_is_given_away(name: str) -> None:
    with pytest.raises(NotFound):
        page_asset(name)


def test_plotly_is_sent_from_its_own_package(client: TestClient) -> None:
    import plotly  # type: ignore[import-untyped]

    answer = client.get("/api/v1/ui/plotly.js", headers={"Accept-Encoding": "gzip"})

    assert answer.content == (Path(plotly.__file__).parent / "package_data" / "plotly.min.js").read_bytes()
    assert answer.headers["cache-control"] == "public, max-age=86400"
    assert len(page.plotly_asset().compressed) < len(answer.content) / 2
    assert gzip.decompress(page.plotly_asset().compressed) == answer.content


def test_without_plotly_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "find_spec", lambda name: None)

    with pytest.raises(MissingExtra, match=r"drumline\[serve\]"):
        page.plotly_asset.__wrapped__()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_no_text_can_become_html_or_code(script: Path) -> None:
    source = script.read_text()

    assert not [sink for sink in HTML_SINKS if sink in source]
    assert not re.findall(r"\beval\(|new Function|setTimeout\([\"'`]", source)
    assert len(source.splitlines()) < 400
