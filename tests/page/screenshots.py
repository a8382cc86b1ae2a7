"""`python -m tests.page.screenshots`: the pictures of docs/page.md, of the page of a running `policysched demo --keep`."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.page.fixtures import ARGUMENTS, chromium

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "images"
PICTURES = {"health": "light", "pending": "light", "policy": "light", "pod": "dark", "try": "light"}
PATIENCE_S = 120.0
EDIT = """
# node-1 is going to be repaired.
filter repair reject node.name == "node-1" says "in repair"
"""


def main() -> None:
    program = chromium()
    assert program is not None, "apt-get install chromium"
    FOLDER.mkdir(exist_ok=True)
    command = (sys.executable, "-m", "policysched", "demo", "--keep")
    demo = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert demo.stdout is not None
    url = next(match[0] for line in demo.stdout if (match := re.findall(r"http://127\.0\.0\.1:\d+/", line)))
    try:
        with sync_playwright() as playwright:
            running = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
            for view, scheme in PICTURES.items():
                page = running.new_page(viewport={"width": 1280, "height": 720}, color_scheme=scheme)
                page.goto(f"{url}#{'pending' if view == 'pod' else view}")
                page.wait_for_selector("main table:visible, main article, main .gutter b, .cm-line span")
                if view == "pod":
                    page.click("article.cause a")
                    page.wait_for_selector("text=Filters that reject nodes")
                if view == "health":
                    time.sleep(20)  # so that the charts have something to show
                if view == "try":
                    page.click(".cm-content")
                    page.keyboard.press("Control+End")
                    page.keyboard.insert_text(EDIT)
                    page.check("#placed-again")
                    page.wait_for_selector(".diagnostics > *")
                    page.click("text=Simulate")
                    page.wait_for_selector("section table:not([hidden]) tbody tr")
                    page.evaluate("document.activeElement.blur()")
                page.screenshot(path=FOLDER / f"page-{view}.png")
                page.close()
            running.close()
    finally:
        demo.send_signal(signal.SIGINT)
        demo.wait(timeout=PATIENCE_S)


if __name__ == "__main__":
    main()
