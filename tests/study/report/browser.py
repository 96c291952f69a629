"""A headless Chromium for tests, where one is at hand; else the tests that need it are skipped."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--window-size=1280,900",
)


class Browser:
    """A page in Chromium, and what went wrong in it."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, path: Path, *, width: int = 1280, dark: bool = False) -> None:
        """Load a report and wait until its run is shown."""
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        self.cdp("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.cdp("Emulation.setEmulatedMedia", media="screen", features=[scheme])
        self.cdp("Network.enable")
        self.driver.get_log("performance")
        self.driver.get_log("browser")
        self.driver.get(path.as_uri())
        self.until(
            "const c = document.getElementById('closely');"
            "return !c || !!c.dataset.run || c.querySelector('.failed').textContent.startsWith('This run')"
        )

    def until(self, code: str, limit_s: float = 20.0) -> Any:
        """The value of `code` once it is true. Raises AssertionError when it stays false."""
        end_s = time.monotonic() + limit_s
        while time.monotonic() < end_s:
            value = self.js(code)
            if value:
                return value
            time.sleep(0.02)
        raise AssertionError(f"never true: {code}")

    def js(self, code: str, *arguments: Any) -> Any:
        """The value that a function with this body returns."""
        return self.driver.execute_script(code, *arguments)

    def cdp(self, command: str, **parameters: Any) -> Any:
        """A command of the developer tools."""
        return self.driver.execute_cdp_cmd(command, parameters)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """A mouse event at a place of the view."""
        self.cdp("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, x0: float, y0: float, x1: float, y1: float) -> None:
        """Press, move, let go."""
        self.mouse("mousePressed", x0, y0, button="left", clickCount=1)
        self.mouse("mouseMoved", (x0 + x1) / 2, (y0 + y1) / 2, button="left")
        self.mouse("mouseMoved", x1, y1, button="left")
        self.mouse("mouseReleased", x1, y1, button="left", clickCount=1)

    def key(self, name: str, modifiers: int = 0) -> None:
        """Press and release a key on what has the focus."""
        text = {"text": name} if len(name) == 1 else {}
        self.cdp("Input.dispatchKeyEvent", type="keyDown", key=name, modifiers=modifiers, **text)
        self.cdp("Input.dispatchKeyEvent", type="keyUp", key=name, modifiers=modifiers)

    def place(self, selector: str) -> dict[str, float]:
        """Where an element is in the view, after scrolling to it: x, y, width, height."""
        code = (
            "const e = document.querySelector(arguments[0]);"
            "e.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const b = e.getBoundingClientRect();"
            "return {x: b.x, y: b.y, width: b.width, height: b.height}"
        )
        return self.js(code, selector)  # type: ignore[no-any-return]

    def complaints(self) -> list[str]:
        """What the console shows as warning or error since the page was opened."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]

    def requests(self) -> list[str]:
        """Addresses that were asked for since the page was opened, the page itself left out."""
        found = []
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.append(message["params"]["request"]["url"])
        return [address for address in found if not address.startswith(("file:", "blob:", "data:"))]


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser of its own. Skips the test where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    steering = shutil.which("chromedriver")
    if program is None or steering is None:
        pytest.skip("needs Chromium and chromedriver (apt install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(steering)
    driver = webdriver.Chrome(options=options, service=service)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
