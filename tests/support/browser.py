"""A headless Chromium that looks at pages, and what it noticed of them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

T = TypeVar("T")
WAIT_S = 60.0
AXE = Path(__file__).parents[1] / "gateway" / "page" / "vendor" / "axe.min.js"


class Browser:
    """A window of its own.

    Attributes:
        driver: selenium's.
    """

    def __init__(self, width: int = 1280, height: int = 860, *, dark: bool = False) -> None:
        options = webdriver.ChromeOptions()
        for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
            options.add_argument(f"--{argument}")
        options.add_argument("--no-proxy-server")
        options.binary_location = chromium()
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        self.driver.set_script_timeout(WAIT_S)
        self.resize(width, height)
        self.scheme(dark=dark)

    def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def scheme(self, *, dark: bool, motion: bool = False) -> None:
        """Prefer colours, and motion or none: 60 pictures a second take a processor."""
        wanted = {
            "prefers-color-scheme": "dark" if dark else "light",
            "prefers-reduced-motion": "no-preference" if motion else "reduce",
        }
        features = [{"name": name, "value": value} for name, value in wanted.items()]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def open(self, url: str) -> None:
        self.driver.get(url)
        self.wait(lambda: self.one("main"))

    def forget(self, url: str) -> None:
        """Leave the page of an address, if it is shown, with nothing kept of it."""
        if self.driver.current_url.startswith(url):
            self.driver.execute_script("localStorage.clear(); sessionStorage.clear()")
        self.driver.get("about:blank")
        self.complaints(), self.hosts()

    def show(self, view: str) -> None:
        """Go to a view of the page by its link."""
        self.one(f"header nav a[href='#{view}']").click()
        self.wait(lambda: self.one(f"main[data-view='{view}']"))

    def one(self, selector: str) -> WebElement | None:
        """Return the first element of a CSS selector; None if there is none."""
        found = self.driver.find_elements(By.CSS_SELECTOR, selector)
        return found[0] if found else None

    def text(self, selector: str) -> str:
        """Return the text of all elements of a selector, as it is in the page."""
        script = "return [...document.querySelectorAll(arguments[0])].map((e) => e.textContent).join('\\n')"
        return str(self.driver.execute_script(script, selector))

    def button(self, text: str) -> WebElement:
        """Return the button with a text that is in sight."""

        def find() -> WebElement | None:
            buttons = self.driver.find_elements(By.XPATH, f"//button[normalize-space()='{text}']")
            return next((button for button in buttons if button.is_displayed()), None)

        return self.wait(find)

    def wait(self, condition: Callable[[], T], what: str = "") -> T:
        """Return the first true value of a condition."""
        deadline = time.monotonic() + WAIT_S
        while not (value := condition()):
            assert time.monotonic() < deadline, (
                f"{what or 'a condition'} did not come true: {self.text('body')}"
            )
            time.sleep(0.05)
        return value

    def run(self, script: str, *arguments: Any) -> Any:
        """Return the result of a function body that may await."""
        wrapped = (
            "const done = arguments[arguments.length - 1];"
            f"(async (...arguments_) => {{ {script} }})(...arguments)"
            ".then((value) => done({value}), (error) => done({error: `${error.stack}`}));"
        )
        result = self.driver.execute_async_script(wrapped, *arguments)
        assert "error" not in result, result["error"]
        return result.get("value")

    def overflows(self) -> bool:
        """Return whether the page is wider than the window."""
        widths = "document.documentElement.scrollWidth, document.getElementById('main').scrollWidth"
        return self.driver.execute_script(f"return Math.max({widths}) > innerWidth") is True

    def violations(self) -> list[str]:
        """Return what axe-core finds to be serious or critical in what is shown."""
        if not self.driver.execute_script("return 'axe' in window"):
            self.driver.execute_script(AXE.read_text(encoding="utf-8"))
        found = self.run("return (await axe.run(document, {resultTypes: ['violations']})).violations")
        return [
            f"{each['id']}: {each['help']}: {[node['html'][:200] for node in each['nodes']]}"
            for each in found
            if each["impact"] in ("serious", "critical")
        ]

    def complaints(self) -> list[str]:
        """Return the lines of the console since the last call that are warnings or errors."""
        levels = {"WARNING", "SEVERE"}
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in levels]

    def hosts(self) -> set[str]:
        """Return the hosts that were asked for anything since the last call."""
        asked = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                url = urlsplit(message["params"]["request"]["url"])
                if url.scheme not in ("data", "blob", "about"):
                    asked.add(url.netloc)
        return asked


def chromium() -> str:
    """Return the browser's program; skip the test where there is none, unless it is required."""
    found = shutil.which("chromium")
    if found is None or shutil.which("chromedriver") is None:
        reason = "no chromium or chromedriver here: apt-get install chromium chromium-driver"
        if os.environ.get("FLOWEDGE_TEST_BROWSER") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@contextlib.contextmanager
def browsing(width: int = 1280, height: int = 860, *, dark: bool = False) -> Iterator[Browser]:
    """A browser that has ended when the context ends."""
    browser = Browser(width, height, dark=dark)
    try:
        yield browser
    finally:
        browser.driver.quit()
