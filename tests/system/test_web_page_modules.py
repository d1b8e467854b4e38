"""The pure parts of the web page's script, run where they run: in a browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser import Browser, chromium
from tests.simulated_service import Simulated, serving

pytestmark = pytest.mark.system

NONE = "\u2013"
MODULES = """
const names = ["stream", "charts", "texts", "records", "format"];
const [{Events}, {thin}, {rowsOf}, {differing, flat, gpuUse}, format] = await Promise.all(
    names.map((name) => import(new URL(`ui/${name}.js`, document.baseURI))));
"""


def run(browser: Browser, source: str) -> Any:
    """What an async function's body gives that has the page's modules."""
    return browser.driver.execute_async_script(
        f"const done = arguments[0]; (async () => {{{MODULES} {source}}})().then(done, (error) => done(`${{error}}`))"
    )


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with serving(Simulated()) as address, chromium() as found:
        found.driver.get(f"{address}/#/new")
        yield found


def test_modules(browser: Browser) -> None:
    events = run(
        browser,
        r"""
        const events = new Events();
        return [...events.add(": hello\n\nevent: line\nda"), ...events.add("ta: \"a\"\ndata: b\nid: 7:1\n"),
                ...events.add("\r\nevent: end\r\ndata:\r\n\r\n")];
    """,
    )
    assert events == [
        {"id": "7:1", "event": "line", "data": '"a"\nb'},
        {"id": None, "event": "end", "data": ""},
    ]
    thinned = run(
        browser,
        """
        const x = [...Array(10000).keys()], y = x.map((at) => (at === 5001 ? 9 : at === 7003 ? -9 : 0));
        const few = thin({x, y}, 100);
        const inOrder = few.x.every((at, i) => !i || at > few.x[i - 1]);
        return [few.x.length <= 100, few.y.includes(9), few.y.includes(-9), inOrder];
    """,
    )
    assert thinned == [True, True, True, True]
    assert run(browser, r'return rowsOf("\ufeffa\r\n\n b \n")') == ["a", "b"]
    assert "line 2" in run(browser, r'return rowsOf("\"a\"\n{", "x.jsonl")')
    assert run(browser, "return differing([flat({a: {b: 1, c: [2]}}), flat({a: {b: 1, c: [3]}, d: null})])") == [
        "a.c",
        "d",
    ]
    use = run(
        browser,
        """
        const gpus = Object.fromEntries([0.5, 0.7, 0.9, 0.9, 1].map((mean, i) => [i, {utilization: {mean}}]));
        return gpuUse([{kind: "gpu", gpus}], () => 0).map((each) => [each.name, Math.round(each.y[0])]);
    """,
    )
    assert use == [["mean of 5 GPUs", 80], ["lowest", 50]]
    values = run(
        browser,
        """return [format.bytes(1536), format.bytes(0), format.duration(3725), format.duration(59.6),
        format.number(NaN), format.number(5e-5), format.number(12345.6), format.percent(null), format.energy(3.6e6),
        format.duration(86399)];""",
    )
    assert values == ["1.5 KiB", "0 B", "1 h 2 min", "1 min 0 s", "NaN", "5e-5", "12,346", NONE, "1 kWh", "1 d 0 h"]
