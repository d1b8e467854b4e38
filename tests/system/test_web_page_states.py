"""The web page in a real browser against a simulated service: every view and state, by eye, keyboard and phone.

`make test-long` takes pictures of all views; with DRUMLINE_SCREENSHOTS=folder they are kept there, to be looked at.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.browser import Browser, chromium
from tests.simulated_service import GIB, KEY, Simulated, add_silent, gpu, job, progress, serving, use

pytestmark = pytest.mark.system

EVIL = '<script>window.hacked = 1</script><img src=x onerror="window.hacked = 2"><b>bold</b>'
WAITS = "waits for 4 GPUs: 3 are free, job-1 has the others"
VIEWS = ("", "jobs", "jobs/job-1", "jobs/job-2", "jobs/nobody", "new", "history", "compare/job-3,job-4", "costs")

PICTURES = os.environ.get("DRUMLINE_SCREENSHOTS")
TAKEN = {
    "gpus": "", "jobs": "jobs", "job": "jobs/job-1", "failed": "jobs/job-4", "compare": "compare/job-3,job-4",
    "history": "history", "form": "new", "costs": "costs", "silent": "jobs/job-5",
}  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def state() -> Simulated:
    held = {"kind": "job", "job_id": "job-1", "owner": "ada", "since": None, "message": "held by job-1"}
    state = Simulated(
        jobs={
            each["id"]: each
            for each in (
                job("job-1", name="ads, german", tags=["ads"], devices=["GPU-0", "GPU-1"], progress=progress(120)),
                job("job-2", "queued", waits_for=WAITS, position=3, model_name=EVIL),
                job(
                    "job-3", "succeeded", name="first try", best_loss=1.73, training_time=1860.0, progress=progress(400)
                ),
                job(
                    "job-4",
                    "failed",
                    name=EVIL,
                    message=EVIL,
                    fix="take fewer texts",
                    best_loss=2.28,
                    progress=progress(40),
                ),
            )
        },
        records={"job-1": train(5), "job-3": train(20), "job-4": train(9)},
        lines={"job-1": ["step 1", EVIL]},
        configs={"job-3": {"train": {"lr": 5e-5, "epochs": 3}}, "job-4": {"train": {"lr": 1e-4, "epochs": 3}}},
        gpus=[
            gpu(0, gpu_utilization=97.0, memory_used_bytes=62 * GIB, power_w=655.0, temperature_c=64.0, held_by=held),
            gpu(1, health={"status": "warn", "reason": "a row remap is pending", "findings": []}),
        ],
    )
    state.jobs["job-3"]["gpu_stats"] = {"gpu_seconds": 3720.0, "energy_j": 2.3e6, "cost": 2.07}
    return state


@pytest.fixture
def page(browser: Browser, state: Simulated) -> Iterator[str]:
    browser.size(1280)
    browser.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})  # a login is of all ports of a host
    with serving(state) as address:
        yield address
        assert browser.script("return window.hacked") is None
        browser.driver.get("about:blank")


def train(count: int) -> list[dict[str, Any]]:
    return [
        {"kind": "train", "time": 1.79e9 + step, "step": step, "elapsed_s": float(step), "loss": 3.0 - step / 100,
         "units_per_s": 480.0, "unit": "tokens"}
        for step in range(1, count + 1)
    ]  # fmt: skip


def visit(browser: Browser, page: str, view: str) -> None:
    browser.driver.get("about:blank")
    browser.driver.get(f"{page}/#/{view}")
    browser.until(lambda: browser.all("h1") and not browser.all(".skeleton"), f"the view {view!r}")


def complaints(browser: Browser) -> list[str]:
    """Of the console; but that plotly may not add the style of its maps, none of which is drawn, is as we want it."""
    return [each for each in browser.errors() if not ("/ui/plotly.js" in each and "inline style" in each)]


def test_gpus_are_shown_as_they_are_now(browser: Browser, page: str, state: Simulated) -> None:
    visit(browser, page, "")
    card = browser.find("[aria-label='GPU 0']")

    for words in ("97 %", "62.0 GiB of 80.0 GiB", "655 W of 700 W", "64 °C", "Healthy", "job-1 of ada"):
        assert words in card.text
    assert "Needs care" in browser.text("[aria-label='GPU 1']") and "row remap" in browser.text("[aria-label='GPU 1']")
    browser.reads("GPU 3 has a row remap pending", ".note")
    state.gpus[0]["temperature_c"] = 81.0
    browser.reads("81 °C", "[aria-label='GPU 0']")
    assert card.text  # the same element as before: nothing was drawn anew
    assert complaints(browser) == []


def test_a_machine_without_gpus_shows_its_slots(browser: Browser, page: str, state: Simulated) -> None:
    state.gpus = []
    visit(browser, page, "")

    browser.reads("job-1 of ada", "[aria-label='Slot 0']")
    browser.reads("Free", "[aria-label='Slot 1']")


def test_names_that_look_like_html_are_texts(browser: Browser, page: str) -> None:
    for view in ("jobs", "jobs/job-1", "jobs/job-2", "history", "jobs/job-4", "compare/job-3,job-4"):
        visit(browser, page, view)
        browser.reads("<script>window.hacked", "main")
        assert browser.all("main script, main b, main img") == []


def test_filters_change_list_and_address(browser: Browser, page: str, state: Simulated) -> None:
    visit(browser, page, "jobs")
    browser.reads(f"Place 3 in the queue: {WAITS}")

    browser.field("Search").send_keys("german")

    browser.until(lambda: len(browser.all("tbody tr")) == 1, "one job")
    assert browser.driver.current_url.endswith("#/jobs?q=german")
    browser.field("Search").send_keys("no such")
    browser.reads("No job fits these filters.")
    browser.button("Clear filters").click()
    browser.until(lambda: len(browser.all("tbody tr")) == 2, "all jobs")
    state.jobs.clear()
    browser.reads("Nothing runs and nothing waits.")


def test_a_jobs_curves_and_log_grow_until_it_ends(browser: Browser, page: str, state: Simulated) -> None:
    visit(browser, page, "jobs/job-1")

    def points() -> int:
        return int(browser.find(".chart").get_attribute("data-points") or 0)

    browser.until(lambda: points() == 10, "loss and rate of 5 records")  # two curves
    browser.until(lambda: browser.all(".chart .scatterlayer path"), "curves that are drawn")
    state.records["job-1"] += train(8)[5:]
    state.lines["job-1"].append("step 2")
    browser.until(lambda: points() == 16, "the new records")
    browser.reads("step 2", "#log pre")
    state.jobs["job-1"].update(
        state="succeeded", status="succeeded", best_loss=2.92, ended_at="2026-11-28T20:41:00.000Z"
    )
    browser.reads("Succeeded", ".badge")
    browser.reads("Complete", "#charts .stream-state")
    assert "now: Succeeded" in (browser.find("#announce").get_attribute("textContent") or "")
    assert complaints(browser) == []


def test_a_lost_connection_is_seen_and_nothing_is_lost(browser: Browser, page: str, state: Simulated) -> None:
    visit(browser, page, "jobs/job-1")
    browser.reads("Live", "#log .stream-state")
    state.is_down = True
    browser.reads("Reconnecting…", "#link-state")
    browser.reads("Connection lost", "#log .stream-state")
    state.lines["job-1"] += ["written meanwhile"]

    state.is_down = False

    browser.reads("written meanwhile", "#log pre", limit_s=20)
    browser.until(lambda: browser.find("#link-state").text == "Live", "a live page", limit_s=20)
    assert len(browser.all("#log pre span")) == 3  # each line once
    assert "2" in state.resumed_at  # the place after two lines


def test_a_service_that_is_away_at_first_is_waited_for(browser: Browser, page: str, state: Simulated) -> None:
    state.is_down = True
    visit(browser, page, "jobs")
    browser.reads("The service is starting.", "[role=alert]")

    state.is_down = False

    browser.reads("ads, german", "main")


def test_a_job_is_cancelled_by_keyboard(browser: Browser, page: str, state: Simulated) -> None:
    visit(browser, page, "jobs/job-1")
    keys = ActionChains(browser.driver)
    browser.script("arguments[0].focus()", browser.button("Cancel"))
    keys.send_keys(Keys.ENTER).perform()
    browser.until(lambda: browser.find("dialog[open]"), "a question")
    assert browser.script("return document.activeElement.textContent") == "Go back"
    keys.send_keys(Keys.ESCAPE).perform()
    browser.until(lambda: not browser.all("dialog"), "no question any more")
    assert browser.script("return document.activeElement.textContent") == "Cancel" and not state.posted

    keys.send_keys(Keys.ENTER).perform()
    browser.until(lambda: browser.find("dialog[open]"), "a question")
    keys.send_keys(Keys.TAB, Keys.ENTER).perform()

    browser.reads("Cancelled", ".badge")
    browser.reads("cancelled by ada", ".note")
    assert [(what, headers["x-drumline"]) for what, _, headers in state.posted] == [("cancel", "1")]
    browser.button("Retry from checkpoint").click()
    browser.until(lambda: browser.driver.current_url.endswith("#/jobs/job-again"), "the new job")
    assert state.posted[-1][1] == b'{"from_checkpoint":true}' and state.posted[-1][2]["idempotency-key"]


def test_the_form_says_what_is_missing_and_what_was_refused(browser: Browser, page: str, state: Simulated) -> None:
    visit(browser, page, "new")
    browser.button("Start fine-tuning").click()
    assert "Say which model" in browser.text("main") and "Paste texts" in browser.text("main")
    assert browser.script("return document.activeElement") == browser.field("Model")
    assert not state.posted
    state.refuse = {
        "status": 422, "code": "config", "detail": "there is no model gpt9", "fix": "the service knows gpt2",
        "errors": [{"field": "body.settings.epochs", "problem": "must be above 0"}],
    }  # fmt: skip
    browser.field("Model").send_keys("gpt9")
    browser.field("Texts").send_keys(f"first text\n\n{EVIL}")
    browser.button("Start fine-tuning").click()

    browser.reads("there is no model gpt9", "[role=alert]")
    browser.reads("the service knows gpt2", "[role=alert]")
    assert browser.field("Epochs").get_attribute("aria-invalid") == "true"
    state.refuse = None
    browser.field("Learning rate").send_keys("5e-5")
    browser.field("Tags").send_keys("ads, de")
    browser.field("Name").send_keys(EVIL)
    browser.button("Start fine-tuning").click()
    browser.until(lambda: browser.driver.current_url.endswith("#/jobs/job-new"), "the job's page")
    browser.reads("waits for 2 GPUs: 0 are free", ".note")
    (_, refused, first), (_, sent, second) = state.posted
    assert sent == {
        "kind": "finetune", "model_name": "gpt9", "name": EVIL, "texts": ["first text", EVIL],
        "settings": {"epochs": 3, "learning_rate": 5e-5}, "parallel": "auto",
        "resources": {"devices": "auto", "priority": 0}, "tags": ["ads", "de"],
    }  # fmt: skip
    assert refused["texts"] == sent["texts"] and first["idempotency-key"] != second["idempotency-key"]


def test_texts_come_from_a_file(browser: Browser, page: str, state: Simulated, tmp_path: Path) -> None:
    rows, bad = tmp_path / "rows.jsonl", tmp_path / "bad.json"
    rows.write_text('{"text": "one"}\n"two"\n{"prompt": "a", "completion": "b"}\n')
    bad.write_text('{"not": "a list"}')
    visit(browser, page, "new")
    browser.field("Model").send_keys("gpt2")
    browser.field("Or a file with texts").send_keys(str(bad))
    browser.reads("must hold a list of texts", ".wrong")
    browser.field("Or a file with texts").send_keys(str(rows))
    browser.reads("3 texts")
    browser.button("Start fine-tuning").click()

    browser.until(lambda: state.posted, "a request")
    assert state.posted[0][1]["texts"] == ["one", "two", {"prompt": "a", "completion": "b"}]


def test_runs_are_compared(browser: Browser, page: str) -> None:
    visit(browser, page, "history")
    listed = browser.text("tbody")
    for box in browser.all("tbody input"):
        browser.driver.execute_script("arguments[0].click()", box)
    browser.button("Compare 2 jobs").click()

    browser.reads("Settings that differ")
    assert "train.lr" in browser.text("#differences") and "0.00005" in browser.text("#differences")
    assert "epochs" not in browser.text("#differences")
    results = browser.text("#results")
    assert "2.07 EUR" in results
    for same in ("1.73", "31 min 0 s", "2.28", "1 min 24 s"):
        assert same in listed and same in results
    browser.until(lambda: len(browser.all(".scatterlayer .trace")) == 2, "two curves")


def test_login_and_logout(browser: Browser, page: str, state: Simulated) -> None:
    state.needs_key = True
    visit(browser, page, "jobs")
    browser.field("API key").send_keys("dl_wrong", Keys.ENTER)
    browser.reads("the API key is unknown", "[role=alert]")
    assert not browser.all("nav a")
    browser.field("API key").clear()
    browser.field("API key").send_keys(KEY, Keys.ENTER)
    browser.reads("ads, german")
    assert browser.script("return document.cookie") == ""  # no script can read it
    browser.button("Log out").click()
    browser.reads("API key")
    assert "ads, german" not in browser.text("body")


def test_who_only_reads_is_offered_no_change(browser: Browser, page: str, state: Simulated) -> None:
    state.needs_key, state.role = True, "viewer"
    visit(browser, page, "jobs/job-1")
    browser.field("API key").send_keys(KEY, Keys.ENTER)
    browser.button("Compare")
    assert not [each for each in browser.all("main button") if each.is_displayed()]
    visit(browser, page, "new")
    browser.reads("Your key reads only")


@pytest.mark.parametrize("width", [390, 1280])
def test_every_view_fits_and_is_labelled(browser: Browser, page: str, width: int) -> None:
    browser.size(width)
    for view in VIEWS:
        visit(browser, page, view)
        assert browser.misfits() == [], view
        shown = [each for each in browser.all("input, select, textarea, button, a, progress") if each.is_displayed()]
        assert not [each.get_attribute("outerHTML") for each in shown if not each.accessible_name], view
        assert len(browser.all("h1")) == 1 and browser.all("h1")[0].text
    visit(browser, page, "jobs/nobody")
    browser.reads("see GET /jobs for those that there are", "[role=alert]")


def test_the_way_through_the_page_by_keyboard(browser: Browser, page: str) -> None:
    visit(browser, page, "jobs")
    names = []
    keys = ActionChains(browser.driver)
    browser.script("document.activeElement.blur()")
    for _ in range(15):
        keys.send_keys(Keys.TAB).perform()
        focused = browser.driver.switch_to.active_element
        names.append(focused.accessible_name)
        assert focused.value_of_css_property("outline-style") != "none", names[-1]
    assert names[:8] == ["Skip to content", "drumline", "Machine", "Jobs", "New", "History", "Costs", "Theme: system"]
    assert names[8:15] == ["New fine-tuning", "Search", "State", "Kind", "Owner", "Tag", "ads, german"]
    keys.send_keys(Keys.ENTER).perform()
    browser.until(lambda: browser.driver.current_url.endswith("#/jobs/job-1"), "the job")
    assert browser.script("return document.activeElement.tagName") == "H1"


def test_dark_by_system_or_by_choice(browser: Browser, page: str) -> None:
    def background() -> str:
        return str(browser.script("return getComputedStyle(document.body).backgroundColor"))

    browser.size(1280, dark=True)
    visit(browser, page, "jobs/job-1")
    dark = background()
    browser.size(1280)
    light = background()
    assert dark != light
    theme = browser.find("#theme")
    theme.click()
    assert theme.accessible_name == "Theme: light" and background() == light
    theme.click()
    assert theme.accessible_name == "Theme: dark" and background() == dark
    visit(browser, page, "jobs/job-1")
    assert background() == dark  # kept
    browser.find("#theme").click()
    assert background() == light


def test_nothing_jumps_while_it_loads(browser: Browser, page: str, state: Simulated) -> None:
    state.slow_s = 0.2
    for view in ("jobs/job-1", "jobs"):
        visit(browser, page, view)
        browser.script(
            "window.shift = 0; new PerformanceObserver((list) => list.getEntries().forEach((each) => "
            "window.shift += each.value)).observe({type: 'layout-shift', buffered: true})"
        )
        began = time.monotonic()
        browser.until(lambda began=began: time.monotonic() - began > 1.5, "the view at rest")  # type: ignore[misc]
        assert browser.script("return window.shift") < 0.1, view  # "good" by web.dev/cls


@pytest.mark.long
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pictures_are_taken(
    browser: Browser, page: str, state: Simulated, width: int, is_dark: bool, tmp_path: Path
) -> None:
    folder = tmp_path if PICTURES is None else Path(PICTURES)
    folder.mkdir(parents=True, exist_ok=True)
    browser.size(width, dark=is_dark)
    kind = f"{width}-{'dark' if is_dark else 'light'}.png"
    state.records["job-1"] = train(200)
    add_silent(state, "job-5")
    state.usage = [
        use(f"job-{day}", owner=owner, day=f"2026-11-{day}") for day in (26, 27, 28) for owner in ("ada", "bob")
    ]
    for name, view in TAKEN.items():
        visit(browser, page, view)
        if name in ("job", "failed", "compare", "costs"):
            browser.until(lambda: browser.all(".chart .trace path"), "what is drawn", limit_s=30)
        if name in ("failed", "silent"):
            browser.reads("Nothing", "#log .log-none")
        browser.picture(str(folder / f"{name}-{kind}"))
    state.needs_key = True
    visit(browser, page, "jobs")
    browser.field("API key")
    browser.picture(str(folder / f"login-{kind}"))
    assert len(list(folder.glob(f"*-{kind}"))) == len(TAKEN) + 1
