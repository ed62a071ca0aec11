"""Screenshots of the gateway's page: a paced cluster, a gateway, a chat, and a headless Chromium that looks.

Run: python -m testbed.tools.screenshots --out docs/images
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

import flowedge_testbed
from flowedge.client.assembly import PipelineSpec, assemble
from flowedge.core.errors import BadRequestError, DeadlineError
from flowedge.gateway.config import GatewaySettings
from flowedge.gateway.pipelines.opening import DeviceProgress
from flowedge.gateway.pipelines.served import PipelineEntry
from flowedge.gateway.process import run_gateway
from flowedge.gateway.state import Gateway
from flowedge_testbed.paced.cluster import PacedCluster
from flowedge_testbed.plan import cases
from flowedge_testbed.scenario import read_scenario

SCENARIO = Path(flowedge_testbed.__file__).parent / "scenarios" / "flowspec-table1.yaml"
STAGES = 4
QUESTION = "Write a Python function that counts the vowels in a text."
# One conversation at temperature 0, so that the pictures show the same answer each time.
CONVERSATIONS = (
    "flowedge.conversations",
    '[{"id": "1", "title": "", "messages": [], "settings": {"system": "", "temperature": "0", "top_p": "", '
    '"max_tokens": "", "seed": "", "model": ""}}]',
)
WAIT_S = 120.0
LIVELY_S, LIVELY_NODES = 8.0, 8  # for how long a tree with so many sent nodes is waited for
DESK, PHONE = (1320, 860), (360, 740)
STRIP = (1320, 464)  # without the other devices that happen to be on the network


class PageCamera:
    """A headless Chromium that uses the page and takes pictures of it."""

    def __init__(self, url: str, directory: Path, size: tuple[int, int], *, dark: bool) -> None:
        self._directory = directory
        options = webdriver.ChromeOptions()
        for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
            options.add_argument(f"--{argument}")
        options.add_argument("--hide-scrollbars")
        options.binary_location = _program("chromium")
        self._driver = webdriver.Chrome(options=options, service=Service(_program("chromedriver")))
        self.resize(size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self._driver.get(url)
        self._driver.execute_script("localStorage.setItem(...arguments)", *CONVERSATIONS)
        self._driver.refresh()
        self.wait(lambda: "ready" in self._driver.find_element(By.CSS_SELECTOR, ".speed").text)

    def __enter__(self) -> PageCamera:
        return self

    def __exit__(self, *error: object) -> None:
        self._driver.quit()

    def resize(self, size: tuple[int, int]) -> None:
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def ask(self, question: str) -> None:
        self._driver.find_element(By.ID, "question").send_keys(question, Keys.ENTER)

    def answered(self) -> None:
        self.wait(lambda: self._driver.find_elements(By.ID, "send"))

    def show(self, view: str) -> None:
        self._driver.find_element(By.CSS_SELECTOR, f"header nav a[href='#{view}']").click()

    def lively(self) -> None:
        """Wait for a draft tree that shows something, for a while."""
        until = time.monotonic() + LIVELY_S
        while time.monotonic() < until:
            if len(self._driver.find_elements(By.CSS_SELECTOR, ".node-sent")) >= LIVELY_NODES:
                return
            time.sleep(0.05)

    def shoot(self, name: str, after_s: float = 0.0) -> None:
        time.sleep(after_s)
        path = self._directory / f"page-{name}.png"
        self._driver.save_screenshot(str(path))
        print(f"{path}: {path.stat().st_size / 1000:.0f} kB")

    def wait(self, condition: Callable[[], Any]) -> None:
        """Wait until a condition is true. Raises DeadlineError when it does not come true."""
        deadline = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > deadline:
                raise DeadlineError(f"the page did not get ready within {WAIT_S:g} s")
            time.sleep(0.1)


def _program(name: str) -> str:
    """Return the path of a program. Raises BadRequestError when it is not installed."""
    found = shutil.which(name)
    if found is None:
        raise BadRequestError(f"{name} is not installed: apt-get install chromium chromium-driver")
    return found


def shoot(url: str, directory: Path) -> None:
    """Take all pictures of the page at `url`."""
    with PageCamera(url, directory, DESK, dark=False) as camera:
        camera.ask(QUESTION)
        camera.show("cluster")
        camera.resize(STRIP)
        camera.shoot("cluster", after_s=3.5)
        camera.resize(DESK)
        camera.show("live")
        time.sleep(0.5)
        camera.lively()
        camera.shoot("live")
        camera.show("chat")
        camera.answered()
        camera.shoot("chat", after_s=0.5)
    with PageCamera(url, directory, DESK, dark=True) as camera:
        camera.ask(QUESTION)
        camera.show("live")
        time.sleep(4.0)
        camera.lively()
        camera.shoot("live-dark")
    with PageCamera(url, directory, PHONE, dark=True) as camera:
        camera.ask(QUESTION)
        camera.shoot("chat-phone", after_s=5.0)
        camera.show("live")
        camera.shoot("live-phone", after_s=2.0)


def main() -> None:
    """Start everything, take the pictures, and stop everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory for the pictures")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    failed: list[BaseException] = []

    def look(url: str) -> None:
        try:
            shoot(url, arguments.out)
        except BaseException as error:  # noqa: BLE001 (raised in the main thread)
            failed.append(error)
        os.kill(os.getpid(), signal.SIGTERM)

    urls: list[str] = []

    def on_serving(_: Gateway) -> None:
        threading.Thread(target=look, args=urls, daemon=True).start()

    with PacedCluster(STAGES, namespaces=False) as cluster:
        cluster.emulate(cases(read_scenario(SCENARIO), SCENARIO)[0].emulation, seed=0)
        stages = tuple(agent.address for agent in cluster.stages)
        spec = PipelineSpec(
            draft_node=cluster.draft_node.address, stages=stages, drafter=("bundled",), dtype="float32"
        )
        assemble(spec, lambda device, text: print(f"{device}: {text}"))
        settings = GatewaySettings.model_validate({"http": {"listen": "127.0.0.1:0"}})
        entries = nullcontext([PipelineEntry(spec.draft_node, spec)])
        asyncio.run(run_gateway(settings, entries, DeviceProgress(), urls.append, on_serving))
    if failed:
        raise failed[0]


if __name__ == "__main__":
    main()
