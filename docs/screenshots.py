"""Pictures of a diagnosis for the documentation: light, dark, and on a telephone.

    make browser
    python docs/screenshots.py PAGE [#ADDRESS]

PAGE is what `zoo diagnose` has written, ADDRESS a view of it, as the page's own address bar tells it.
"""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

IMAGES = Path(__file__).parent / "images"
VIEWS = {
    "diagnosis-light": {"viewport": {"width": 1280, "height": 1100}, "color_scheme": "light"},
    "diagnosis-dark": {"viewport": {"width": 1280, "height": 1100}, "color_scheme": "dark"},
    "diagnosis-narrow": {"viewport": {"width": 360, "height": 1100}, "color_scheme": "light"},
}
SHOWN = "#looks"


def main(page: str, address: str = "") -> None:
    with sync_playwright() as playwright:
        found = filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
        browser = playwright.chromium.launch(executable_path=next(found, None))
        for name, options in VIEWS.items():
            tab = browser.new_context(**options).new_page()
            tab.goto(Path(page).resolve().as_uri() + address)
            tab.wait_for_timeout(500)
            tab.locator(SHOWN).scroll_into_view_if_needed()
            tab.evaluate("shown => document.querySelector(shown).scrollIntoView()", SHOWN)
            tab.wait_for_timeout(500)
            tab.screenshot(path=IMAGES / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
