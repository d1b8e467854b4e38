"""A real headless Chromium for tests of the web page: one at a time, with a profile of its own that is removed."""

from __future__ import annotations

import base64
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

T = TypeVar("T")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--lang=en-GB",
)  # fmt: skip
MISFITS = """
const page = document.documentElement, right = page.clientWidth;
const shown = [...document.querySelectorAll("body *")].filter((each) => !each.closest(".unseen, .cards thead"));
const past = shown.filter((each) => each.getBoundingClientRect().right > right + 1);
const isBar = page.scrollHeight > innerHeight || getComputedStyle(page).overflowY === "scroll";
const isShort = document.querySelector(".top").getBoundingClientRect().right < (isBar ? right : innerWidth);
return [...past.map((each) => each.outerHTML.slice(0, 200)), ...(isShort ? ["the header ends before the edge"] : [])];
"""


class Browser:
    """The page as somebody sees it who looks and types."""

    def __init__(self, driver: Chrome) -> None:
        self.driver = driver

    def size(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """The window's inside in CSS pixels, and which theme the system has."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def find(self, css: str) -> WebElement:
        """The first that is there, at once. Raises NoSuchElementException."""
        return self.driver.find_element(By.CSS_SELECTOR, css)

    def all(self, css: str) -> list[WebElement]:
        """All that are there now."""
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def text(self, css: str = "body") -> str:
        """What can be read there; empty where nothing is."""
        return self.until(lambda: "\n".join(each.text for each in self.all(css)) or " ", f"text of {css}").strip()

    def script(self, source: str, *arguments: Any) -> Any:
        """Run a function's body in the page."""
        return self.driver.execute_script(source, *arguments)

    def button(self, words: str) -> WebElement:
        """The button or link that is shown with these words."""
        path = f"//*[self::button or self::a][normalize-space()='{words}']"

        def shown() -> WebElement | None:
            return next((each for each in self.driver.find_elements(By.XPATH, path) if each.is_displayed()), None)

        return self.until(shown, f"button {words!r}")

    def field(self, label: str) -> WebElement:
        """The field that has this label."""
        path = f"//*[@id=//label[normalize-space()='{label}']/@for]"
        return self.until(lambda: self.driver.find_element(By.XPATH, path), f"field {label!r}")

    def paste(self, place: WebElement, text: str) -> None:
        """Put a whole text into a field at once."""
        place.click()
        self.driver.execute_cdp_cmd("Input.insertText", {"text": text})

    def until(self, look: Callable[[], T | None], what: str, limit_s: float = 10.0) -> T:
        """What `look` gives once that is something. Fails with the page's text where it never is."""
        limit = time.monotonic() + limit_s
        while True:
            try:
                if found := look():
                    return found
            except (NoSuchElementException, StaleElementReferenceException):
                pass  # the page is just changing
            if time.monotonic() > limit:
                raise AssertionError(f"not seen within {limit_s} s: {what}\n{self.find('body').text}")
            time.sleep(0.05)

    def reads(self, words: str, css: str = "body", limit_s: float = 10.0) -> None:
        """Wait until words can be read."""
        self.until(lambda: any(words in each.text for each in self.all(css)), f"{words!r} in {css}", limit_s)

    def misfits(self) -> list[str]:
        """What is wider than the page; and the header, where it is not as wide."""
        found: list[str] = self.script(MISFITS)
        return found

    def errors(self) -> list[str]:
        """What the page complained about since the last call: scripts, refused policies, failed requests."""
        logs = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in logs if entry["level"] == "SEVERE"]

    def picture(self, path: str) -> None:
        """The whole page as a PNG."""
        height = self.script("return document.documentElement.scrollHeight")
        width = self.script("return innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        png = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        Path(path).write_bytes(base64.b64decode(png["data"]))


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start one, and end it."""
    options = ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = Chrome(options, ChromeService("/usr/bin/chromedriver"))
        try:
            yield Browser(driver)
        finally:
            driver.quit()
