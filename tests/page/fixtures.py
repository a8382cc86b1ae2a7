"""A Chromium for each module, and a tab for each test that fails it on an error of a script or of the Content-Security-Policy.

If the program is missing, the test is skipped with the reason; with `POLICYSCHED_REQUIRE=browser` it fails.
"""

import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.missing_programs import leave_out
from tests.serve.served import PATIENCE_S

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--force-color-profile=srgb"]
"""Chromium's own sandbox does not work for root; the tests open our page alone."""


def chromium() -> str | None:
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Not for the session: while Playwright runs, its event loop does, and no other test could run one in this thread."""
    program = chromium()
    if program is None:
        leave_out("browser", "no browser: chromium is not on the PATH (apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=program, args=ARGUMENTS, timeout=1000 * PATIENCE_S
        )
        yield running
        running.close()


@dataclass
class Tab:
    """`problems`: messages of the console and errors of scripts. `servers` end after the tab, which would else report them as
    lost, now and then."""

    page: Any
    servers: ExitStack
    problems: list[str] = field(default_factory=list)

    def open(self, url: str) -> None:
        self.page.goto("about:blank")  # another fragment alone would not load the page again
        self.page.goto(url)
        self.until("globalThis.policyschedUpdates?.length > 0")

    def until(self, expression: str, patience_s: float = PATIENCE_S) -> None:
        """Polls from outside: the page's own policy refuses the `eval` of Playwright's `wait_for_function`."""
        ends_s = time.monotonic() + patience_s
        while not self.page.evaluate(expression):
            assert time.monotonic() < ends_s, f"waited for {expression}"
            time.sleep(0.05)


@pytest.fixture
def tab(browser: Any) -> Iterator[Tab]:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.set_default_timeout(1000 * PATIENCE_S)
    with ExitStack() as servers:
        opened = Tab(page, servers)
        page.on("pageerror", lambda error: opened.problems.append(str(error)))
        page.on("console", lambda message: message.type == "error" and opened.problems.append(message.text))
        yield opened
        page.close()
    assert opened.problems == []
