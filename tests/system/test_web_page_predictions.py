"""The web page of a job that predicts, in a real browser: rows instead of updates, and its answers to be saved."""

from __future__ import annotations

import pytest

from tests.browser import chromium
from tests.simulated_service import Simulated, job, serving

pytestmark = pytest.mark.system


def test_rows_are_shown_and_then_the_answers() -> None:
    known = {"rows_done": 30, "rows_total": 120, "rows_failed": 2, "rows_per_s": 3.5, "tokens_per_s": 900.0}
    one = job("job-1", kind="infer", name="label ads", devices=["cpu:0"], output_path=None)
    one["log_sources"] = ["command", "worker_0"]
    one["progress"] = {**one["progress"], **known, "eta_s": 26.0}
    state = Simulated(jobs={"job-1": one}, lines={"job-1": ["30 of 120 rows"]})
    with serving(state) as address, chromium() as browser:
        browser.size(1280)
        browser.driver.get(f"{address}/#/jobs")
        browser.reads("30 of 120 rows, 26 s left")
        browser.driver.get(f"{address}/#/jobs/job-1")
        browser.reads("3.5 rows/s", ".standing")
        shown = browser.text(".standing")
        assert "30 of 120" in shown and "900 tokens/s" in shown and "Loss" not in shown and "25 %" in shown
        assert not browser.all("#charts") and "Checkpoints" not in browser.text()
        names = [option.text for option in browser.all("#log-source option")]
        assert names == ["Command", "Worker 0"]
        one.update(state="succeeded", status="succeeded", output_path="/data/jobs/job-1/answers.csv", success=True)
        browser.reads("answers.csv")
        [link] = [each for each in browser.all("main a") if each.text == "answers.csv"]
        assert (link.get_attribute("href") or "").endswith("/jobs/job-1/output")
        assert browser.errors() == []
