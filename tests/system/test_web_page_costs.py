"""The web page of costs, in a real browser: sums of all that was used, and what is left out said so."""

from __future__ import annotations

import pytest

from tests.browser import chromium
from tests.simulated_service import Simulated, serving, use

pytestmark = pytest.mark.system


def test_sums_are_of_all_and_what_is_not_known_is_told() -> None:
    on_slots = {"gpu_s": 0.0, "energy_j": None, "measured_device_s": 0.0, "cost": 0.0, "mfu": None}
    state = Simulated(usage=[use("job-1", name="on a GPU"), use("job-2", owner="bob", name="on slots", **on_slots)])
    with serving(state) as address, chromium() as browser:
        browser.size(1280)
        browser.driver.get(f"{address}/#/costs")
        browser.reads("4 h", "[aria-label='Sums']")
        sums = browser.text("[aria-label='Sums']")
        assert "1 kWh (of 50 % of the time)" in sums and "4.00 EUR" in sums
        owners = {row.text.split()[0]: row.text for row in browser.all("[aria-label='By owner'] tbody tr")}
        assert "1 kWh" in owners["ada"] and "of the time" not in owners["ada"] and "not measured" in owners["bob"]
        assert "38 %" in owners["ada"] and "93 %" in owners["ada"] and "tokens/s" in owners["ada"]
        day = browser.text("[aria-label='By day'] tbody tr")
        assert "28 Nov 2026" in day and "93 %" in day and "41 s" in day
        jobs = {row.text.split("\n")[0][:8]: row.text for row in browser.all("[aria-label^='Newest'] tbody tr")}
        assert "not measured" in jobs["on slots"] and "not measured" not in jobs["on a GPU"]
        assert not [each for each in browser.all("main .hint") if each.is_displayed() and "newest" in each.text]

        # Of many the sums are of all, and lists that are cut say so.
        state.usage = [use(f"job-{number}") for number in range(2100)]
        browser.driver.refresh()
        browser.reads("8,400.00 EUR".replace(",", ""), "[aria-label='Sums']")
        browser.reads("goodput are of the newest 2,000 of 2,100 jobs", "[aria-label='Sums']")
        browser.reads("The 20 that took most, of the newest 500 of 2,100 jobs.", "[aria-label^='Newest']")
        for width in (390, 1280):
            browser.size(width)
            assert browser.script("return document.documentElement.scrollWidth") <= width

        state.usage = []
        browser.driver.refresh()
        browser.reads("No job has used a device in this time.")
        assert browser.errors() == [] or all("/ui/plotly.js" in each for each in browser.errors())
