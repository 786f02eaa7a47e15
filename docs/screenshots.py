"""Pictures of pages for the documentation: a diagnosis in the light, in the dark and on a telephone, and a comparison.

    make browser
    python docs/screenshots.py diagnosis PAGE [#ADDRESS]
    python docs/screenshots.py comparison PAGE

PAGE is what `zoo diagnose` or `zoo compare` has written, ADDRESS a view of it, as the page's own address bar tells it.
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
    "comparison": {"viewport": {"width": 1280, "height": 960}, "color_scheme": "light"},
}
SHOWN = {"diagnosis": "#looks", "comparison": "body"}


def main(kind: str, page: str, address: str = "") -> None:
    with sync_playwright() as playwright:
        found = filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome")))
        browser = playwright.chromium.launch(executable_path=next(found, None))
        for name, options in (
            (name, options) for name, options in VIEWS.items() if name.startswith(kind)
        ):
            tab = browser.new_context(**options).new_page()
            tab.goto(Path(page).resolve().as_uri() + address)
            tab.wait_for_timeout(500)
            tab.locator(SHOWN[kind]).scroll_into_view_if_needed()
            tab.evaluate("shown => document.querySelector(shown).scrollIntoView()", SHOWN[kind])
            tab.wait_for_timeout(500)
            tab.screenshot(path=IMAGES / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
