"""The web page in a real browser before a real service: a job from the form to its end, seen all the way."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys

from tests.browser import Browser, chromium
from tests.cli.real_command import COMMAND
from tests.tiny_models import save_llama

pytestmark = pytest.mark.system

ACTIVE = ("queued", "starting", "running", "stopping")
TEXTS = "\n".join(f"text {number} of an advertisement for a good pair of shoes" for number in range(64))
SCRIPT = "<script>window.hacked = 1</script>"


@contextmanager
def serving(folder: Path, *settings: str) -> Iterator[str]:
    """A real `drumline serve` with one slot."""
    (folder / "service.yaml").write_text("files: {model_names: {tiny: model}}\nscheduling: {cpu_slots: 1}\n")
    command = [str(COMMAND), "serve", "--config", "service.yaml", "--set", "port=0", "--set", "data_dir=data"]
    for setting in settings:
        command += ["--set", setting]
    with (
        (folder / "serve.log").open("w") as log,
        subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            said = re.search(r"http://127\.0\.0\.1:\d+", line)
            assert said is not None, line + (folder / "serve.log").read_text()
            yield said[0]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


def ask(url: str, method: str = "GET") -> Any:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as answer:
        return json.load(answer)


@contextmanager
def ending_jobs(url: str) -> Iterator[None]:
    """Whatever happens, cancel at the end what goes on, and wait until it has ended: jobs outlive their service."""
    try:
        yield
    finally:
        end_jobs(url)


def end_jobs(url: str) -> None:
    """Cancel what goes on, and wait for its end."""
    limit = time.monotonic() + 60
    active = "&".join(f"state={each}" for each in ACTIVE)
    while found := ask(f"{url}/jobs?{active}")["items"]:
        assert time.monotonic() < limit, found
        for job in found:
            if job["state"] != "stopping":
                ask(f"{url}/jobs/{job['id']}/cancel", "POST")
        time.sleep(0.2)


def start_by_form(browser: Browser, url: str, name: str, epochs: int) -> str:
    """Fill the form in and send it; gives the job's id."""
    browser.driver.get("about:blank")
    browser.driver.get(f"{url}/#/new")
    browser.field("Model").send_keys("tiny")
    browser.field("Name").send_keys(name)
    browser.paste(browser.field("Texts"), f"{TEXTS}\n{SCRIPT}")
    browser.reads("65 texts")
    browser.field("Epochs").send_keys(Keys.CONTROL, "a")
    browser.field("Epochs").send_keys(str(epochs))
    browser.field("Learning rate").send_keys("1e-3")
    browser.field("Batch size").send_keys("8")
    browser.field("Devices").clear()
    browser.field("Devices").send_keys("1")
    browser.button("Start fine-tuning").click()
    return browser.until(lambda: re.search(r"#/jobs/(.+)$", browser.driver.current_url), "the job's page")[1]


def points(browser: Browser) -> int:
    return int(browser.find(".chart").get_attribute("data-points") or 0)


def test_a_job_is_started_seen_to_learn_cancelled_and_compared(tmp_path: Path) -> None:
    save_llama(tmp_path / "model")
    with serving(tmp_path) as url, ending_jobs(url), chromium() as browser:
        browser.size(1280)
        first = start_by_form(browser, url, SCRIPT, 100_000)
        browser.reads("Running", ".badge", limit_s=45)
        seen = browser.until(lambda: points(browser), "a first point", limit_s=45)
        browser.until(lambda: points(browser) > seen, "a chart that grows", limit_s=20)
        browser.until(lambda: browser.all(".chart .scatterlayer path"), "curves that are drawn")
        assert browser.text("#log pre")
        browser.driver.get(f"{url}/#/")
        browser.reads(first, "[aria-label='Slot 0']")

        # It has the only slot: a second one waits, and says for what.
        second = start_by_form(browser, url, "second", 2)
        browser.reads("Queued", ".badge")
        browser.until(lambda: first in browser.text(".note") or "free" in browser.text(".note"), "what it waits for")

        browser.driver.get(f"{url}/#/jobs/{first}")
        browser.button("Cancel").click()
        browser.button("Cancel the job").click()
        browser.reads("Cancelled", ".badge", limit_s=30)
        browser.reads("Complete", "#charts .stream-state")
        browser.button("Retry from checkpoint")

        browser.driver.get(f"{url}/#/jobs/{second}")
        browser.reads("Succeeded", ".badge", limit_s=150)
        assert "Model folder" in browser.text("[aria-label='About']")
        browser.driver.get(f"{url}/#/compare/{first},{second}")
        browser.reads("train.epochs", "#differences")
        browser.driver.get(f"{url}/#/history")
        browser.until(lambda: len(browser.all("tbody tr")) == 2, "both in the history")
        browser.driver.get(f"{url}/#/costs")
        browser.reads("local", "main table")

        assert browser.script("return window.hacked") is None and not browser.all("main script")
        assert ask(f"{url}/jobs/{first}")["state"] == "cancelled" and ask(f"{url}/jobs/{second}")["success"]


def test_a_refused_request_says_what_to_do(tmp_path: Path) -> None:
    with serving(tmp_path) as url, chromium() as browser:
        browser.size(390)
        browser.driver.get(f"{url}/#/new")
        browser.field("Model").send_keys("/etc")
        browser.field("Texts").send_keys("a text")
        browser.button("Start fine-tuning").click()
        problem = browser.until(lambda: browser.find(".problem:not([hidden])"), "a problem")
        assert "/etc" in problem.text and problem.find_element("css selector", ".problem-fix").text


def test_login_by_a_real_key(tmp_path: Path) -> None:
    with serving(tmp_path, "access.keys=required") as url, chromium() as browser:
        said = subprocess.run(
            [str(COMMAND), "tokens", "create", "ada", "--set", "data_dir=data"],
            cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        key = re.search(r"dl_\S+", said.stdout)
        assert key is not None, said.stdout + said.stderr
        browser.size(1280)
        browser.driver.get(f"{url}/#/jobs")
        browser.field("API key").send_keys(key[0], Keys.ENTER)
        browser.reads("Nothing runs and nothing waits.")
        cookie = browser.driver.get_cookie("drumline_session")
        assert cookie is not None and cookie["httpOnly"] and cookie["sameSite"] == "Strict"
        assert browser.script("return document.cookie + JSON.stringify({...localStorage})") == "{}"
        browser.button("Log out").click()
        browser.reads("API key")
        assert browser.driver.get_cookie("drumline_session") is None
        browser.driver.refresh()
        browser.field("API key")
