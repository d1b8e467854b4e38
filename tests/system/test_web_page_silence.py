"""What the web page says where there is nothing to say, and where nobody answers: empty logs, ended jobs, machines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.browser import Browser, chromium
from tests.simulated_service import Simulated, add_silent, job, serving

pytestmark = pytest.mark.system

SEEN_COMPLETE = """
const place = document.getElementById("main"), done = arguments[0];
new MutationObserver(() => {
  const said = place.querySelector("#charts .stream-state"), none = place.querySelector(".chart-none");
  if (said?.textContent === "Complete") done(none.hidden ? "drawn" : none.textContent);
}).observe(place, {childList: true, subtree: true, characterData: true, attributes: true});
location.hash = "#/jobs/job-1";
"""
"""Opens a job, and gives what stands in the place of its curves in the moment in which all of it has come."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        found.size(1280)
        yield found


def test_an_ended_job_has_its_curves_when_it_is_complete(browser: Browser) -> None:
    records = [{"kind": "train", "step": step, "loss": 3.0, "time": 1.79e9 + step} for step in range(9)]
    state = Simulated(jobs={"job-1": job("job-1", "failed")}, records={"job-1": records})
    with serving(state) as address:
        browser.driver.get(f"{address}/#/jobs")
        browser.reads("Nothing runs and nothing waits.")
        assert browser.driver.execute_async_script(SEEN_COMPLETE) == "drawn"
        browser.until(lambda: browser.all(".chart .xtick text"), "a time axis")
        assert "21 Sep 2026" in browser.text(".chart .xtick text")
        state.records["job-1"] = []
        browser.driver.get(f"{address}/#/jobs")
        assert browser.driver.execute_async_script(SEEN_COMPLETE) == "No update was recorded."


def test_an_empty_log_says_so(browser: Browser) -> None:
    state = Simulated(jobs={"job-1": job("job-1")})
    with serving(state) as address:
        browser.driver.get(f"{address}/#/jobs/job-1")
        browser.reads("Nothing has been written yet.", "#log")
        state.lines["job-1"] = ["a first line"]
        browser.driver.refresh()
        browser.reads("a first line", "#log pre")
        assert "Nothing" not in browser.text("#log")
        state.lines["job-1"], state.jobs["job-1"] = [], job("job-1", "failed")
        browser.driver.refresh()
        browser.reads("Nothing was written.", "#log")
        assert not browser.find("#log pre").is_displayed()


def test_of_a_machine_that_does_not_answer_the_page_says_what_can_be_done(browser: Browser) -> None:
    state = Simulated()
    add_silent(state, "job-5")
    with serving(state) as address:
        browser.driver.get(f"{address}/#/")
        browser.reads("trainer-2", "[aria-label='Leases that have run out']")
        rows = [row.text.split() for row in browser.all("[aria-label='Leases that have run out'] tbody tr")]
        assert [row[:3] for row in rows] == [["trainer-2", "GPU-5", "job-5"], ["trainer-3", "cpu:0", "of"]]
        assert "trainer-1" in browser.text(".view-head")
        browser.driver.get(f"{address}/#/jobs")
        browser.reads("Its machine does not answer", "tbody")
        browser.driver.get(f"{address}/#/jobs/job-5")
        browser.reads("A cancel of before does not count: cancel it again.", ".note.bad")
        assert "node trainer-2 does not answer" in browser.text(".note.bad")
        browser.button("Cancel").click()
        browser.reads("the job ends as lost", "dialog")
        browser.button("Cancel the job").click()
        browser.until(lambda: state.posted, "a cancel")
