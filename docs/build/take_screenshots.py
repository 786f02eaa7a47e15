"""Take screenshots of a diagnosis page: light, dark, and on a phone.

    make browser
    python docs/build/take_screenshots.py PAGE [#VIEW]

PAGE is what `zoo diagnose` wrote; VIEW selects a sample and head, as in the page's address bar.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parents[1] / "images"
VIEWS = {
    "diagnosis-light": {"viewport": {"width": 1280, "height": 1100}, "color_scheme": "light"},
    "diagnosis-dark": {"viewport": {"width": 1280, "height": 1100}, "color_scheme": "dark"},
    "diagnosis-narrow": {"viewport": {"width": 360, "height": 1100}, "color_scheme": "light"},
}
SECTION = "#looks"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def take_screenshots(page: str, view: str = "") -> None:
    with sync_playwright() as playwright:
        installed = next(filter(None, map(shutil.which, BROWSERS)), None)
        browser = playwright.chromium.launch(executable_path=installed)
        for name, options in VIEWS.items():
            tab = browser.new_context(**options).new_page()
            tab.goto(Path(page).resolve().as_uri() + view)
            tab.wait_for_timeout(500)
            tab.locator(SECTION).scroll_into_view_if_needed()
            tab.evaluate("section => document.querySelector(section).scrollIntoView()", SECTION)
            tab.wait_for_timeout(500)
            tab.screenshot(path=IMAGES / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    take_screenshots(*sys.argv[1:])
