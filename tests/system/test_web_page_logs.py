"""A job's files on the web page: the end of a long log, logs of ranks that were, and files that are not here."""

from __future__ import annotations

import pytest

from tests.browser import chromium
from tests.simulated_service import Simulated, job, serving

pytestmark = pytest.mark.system

NOTE = "the files of job-2 lie on gpu-2: ask the service on that machine"


def test_logs_end_and_curves_are_of_the_file_as_it_is_now() -> None:
    ranks = [f"rank_{number}" for number in range(4)]
    shrunk = job("job-1", devices=["GPU-0"], log_sources=["command", "launcher", *ranks])
    there = job("job-2", "succeeded", log_sources=None, note=NOTE)
    trains = [{"kind": "train", "step": step, "loss": 3.0, "time": 1.78e9 + step} for step in range(1, 9)]
    state = Simulated(
        jobs={"job-1": shrunk, "job-2": there, "job-3": job("job-3", "succeeded"), "job-4": job("job-4", "failed")},
        lines={"job-1": [f"line {number}" for number in range(6000)]},
        records={"job-1": trains, "job-3": trains, "job-4": trains},
        begun_anew={"job-3"},
    )
    with serving(state) as address, chromium() as browser:
        browser.size(1280)
        browser.driver.get(f"{address}/#/jobs/job-1")
        browser.reads("The last 5,000 lines are shown.", "#log")
        lines = browser.script("return [...document.querySelectorAll('#log pre span')].map((each) => each.textContent)")
        assert (len(lines), lines[0], lines[-1]) == (5000, "line 1000\n", "line 5999\n")
        names = [option.text for option in browser.all("#log-source option")]
        assert names == ["Command", "Launcher", *(f"Process {number}" for number in range(4))]
        browser.driver.get(f"{address}/#/jobs/job-2")
        browser.reads(NOTE, "main .note")
        browser.reads(NOTE, "main .columns")
        browser.driver.get(f"{address}/#/compare/job-3,job-4")
        browser.until(lambda: browser.find(".chart").get_attribute("data-points") == "16", "each record once")
        assert [error for error in browser.errors() if "plotly.js" not in error] == []  # its inline styles are refused
