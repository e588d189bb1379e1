"""Open the built site in a headless Chromium: `make site-check`.

It looks at some pages as files, without a server, on a wide screen and on a phone. A message in the
console, a request to another host, a page that is wider than its screen, or a search that finds
nothing is a fault. Chromium is that of the system (`CHROMIUM=` names another one).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SITE = Path(__file__).resolve().parents[2] / "site"
PAGES = (
    "index.html",
    "quickstart.html",
    "guide/from-stable-baselines3.html",
    "guide/from-cleanrl.html",
    "guide/scaling.html",
    "reference/command-line.html",
    "api/ding_lite.rl.html",
    "api/ding_lite.middleware.html",
)
SCREENS = {"wide": (1300, 900), "phone": (390, 844)}


def faults_of(page: Any, name: str, width: int) -> Iterator[str]:
    """Open a page, and yield what is wrong with it."""
    output: list[str] = []
    page.on("console", lambda message: output.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: output.append(f"error: {error}"))
    page.on("request", lambda request: output.extend(elsewhere(request.url)))
    page.goto(SITE.joinpath(name).as_uri(), wait_until="load")
    page.wait_for_function("document.querySelector('.md-content') !== null")
    yield from output
    needed = page.evaluate("document.documentElement.scrollWidth")
    if needed > width:
        yield f"it is {needed} pixels wide"
    size = page.evaluate(
        "parseFloat(getComputedStyle(document.querySelector('article p')).fontSize)"
    )
    if size < 14:
        yield f"its text is {size} pixels high"


def elsewhere(url: str) -> list[str]:
    """Return what a request to another host is told as."""
    return [] if url.startswith(("file:", "data:", "blob:", "about:")) else [f"asks for {url}"]


def finds(page: Any, words: str, entry: str) -> bool:
    """Search the site, and tell whether an entry is among what is found."""
    page.goto(SITE.joinpath("index.html").as_uri())
    page.locator(".md-search__input").press_sequentially(words)
    page.wait_for_selector(".md-search-result__link", state="attached", timeout=20_000)
    links = page.eval_on_selector_all(".md-search-result__link", "all => all.map(a => a.href)")
    return any(entry in link for link in links)


def main() -> int:
    from playwright.sync_api import sync_playwright

    chromium = sys.argv[1] if len(sys.argv) > 1 else shutil.which("chromium")
    if chromium is None:
        sys.stderr.write("There is no chromium; install it, or name one: CHROMIUM=<path>.\n")
        return 1
    found = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for screen, (width, height) in SCREENS.items():
            for name in PAGES:
                page = browser.new_page(viewport={"width": width, "height": height})
                found += [f"{name}, {screen}: {fault}" for fault in faults_of(page, name, width)]
                page.close()
        if not finds(browser.new_page(), "fetch_weights", "#ding_lite.middleware.fetch_weights"):
            found.append("The search does not find ding_lite.middleware.fetch_weights.")
        browser.close()
    sys.stdout.write(
        "\n".join(found or [f"{len(PAGES)} pages on {len(SCREENS)} screens: no fault"])
    )
    sys.stdout.write("\n")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
