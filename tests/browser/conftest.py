"""A real service and a real browser: each test has a page of its own that tolerates no fault.

The package ends both before other tests begin, since Playwright keeps an event loop running.
PLANNER_TESTS_SCREENSHOTS names a folder in which every test leaves pictures of what it saw.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    expect,
    sync_playwright,
)

from planner.data_folder import VARIABLE

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # A request to anywhere else fails, which is a fault; to ask here about each costs a third of
    # the time that a page takes to load.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
DESKTOP = {"width": 1280, "height": 900}
_ADDRESS = re.compile(r"http://\S+:\d+")
_START_S, _STOP_S = 300, 20
# A machine that runs other tests besides is slow to answer; what is there is not waited for.
PATIENCE_MS = 300_000
expect.set_options(timeout=PATIENCE_MS)
# The browser reports every answer of 400 and more as an error of the console; a problem document is
# an answer that the page shows.
_PROBLEM = re.compile(r"Failed to load resource: the server responded with a status of 4\d\d")


@dataclass
class Service:
    """A running `planner serve` with a data folder of its own."""

    process: subprocess.Popen[bytes]
    url: str
    folder: Path
    log: Path


@dataclass
class Faults:
    """What went wrong on a page, whatever the test was looking at."""

    found: list[str] = field(default_factory=list)

    def watch(self, page: Page) -> None:
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.found.append(f"exception: {error}"))
        page.on("requestfailed", self._failed)

    def _said(self, message: ConsoleMessage) -> None:
        asked = urlsplit(message.location.get("url", "")).path
        if message.type in ("error", "warning", "assert") and not (
            _PROBLEM.match(message.text) and asked.startswith("/v1/")
        ):
            self.found.append(f"{message.type} on the console: {message.text} ({asked})")

    def _failed(self, request: Request) -> None:
        # A request that the page itself gave up is none of its faults.
        if request.failure != "net::ERR_ABORTED":
            self.found.append(f"{request.method} {request.url}: {request.failure}")


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The service, as its user starts it."""
    folder = tmp_path_factory.mktemp("service")
    log = folder / "log.txt"
    command = [sys.executable, "-m", "planner.cli", "serve", "--port", "0"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            # Runs that give way would wait for every other test, and every other test for searches
            # that nobody asks.
            env=os.environ | {
                VARIABLE: str(folder / "data"), "PLANNER_RUN_NICE": "0", "PLANNER_WARM_UP": "0",
            },
        )  # fmt: skip
    try:
        yield Service(process, _address(process, log), folder, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Where it says that it is."""
    ends = time.monotonic() + _START_S
    while time.monotonic() < ends and process.poll() is None:
        if found := _ADDRESS.search(log.read_text(errors="replace")):
            return found[0]
        time.sleep(0.05)
    pytest.fail(f"the service did not start:\n{log.read_text(errors='replace')}")


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Debian's chromium, without a window; without what draws windows, where it is installed."""
    chromium = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if chromium is None:
        pytest.skip("chromium is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, service: Service) -> Iterator[Callable[..., Page]]:
    """Opens a new visitor's page, with options of Playwright's new_context.

    Afterwards the test fails for any fault of any of its pages.
    """
    contexts: list[BrowserContext] = []
    faults = Faults()

    def opened(**options: object) -> Page:
        settings = {"base_url": service.url, "viewport": DESKTOP, **options}
        context = browser.new_context(**settings)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        faults.watch(page)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert not faults.found, "\n".join(faults.found)


@pytest.fixture
def page(open_page: Callable[..., Page]) -> Page:
    """A page at 1280 x 900, in light."""
    return open_page(color_scheme="light")


@pytest.fixture
def shot(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Takes a picture of a page, where somebody asked for pictures."""
    folder = os.environ.get("PLANNER_TESTS_SCREENSHOTS")

    def take(page: Page, name: str, whole: bool = False) -> None:
        if folder:
            where = Path(folder) / f"{request.node.name}-{name}.png"
            page.screenshot(path=where, full_page=whole)

    return take
