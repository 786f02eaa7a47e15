"""A page in Chromium, from a file, without a network."""

import shutil

import pytest
import reports

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        path = next(
            filter(None, map(shutil.which, BROWSERS)), None
        )  # else the one that playwright has fetched
        browser = playwright.chromium.launch(executable_path=path)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, files):
    """Open a page of `files`; in the end nothing was asked for but the page, and nothing was complained of."""
    faults, contexts = [], []

    def go(name, address="", **options):
        context = chromium.new_context(
            **{"viewport": {"width": 1280, "height": 800}, "offline": True, **options}
        )
        contexts.append(context)
        tab = context.new_page()
        file = (files / f"{name}.html").as_uri()
        tab.on("console", lambda said: faults.append(said.text))
        tab.on("pageerror", lambda error: faults.append(str(error)))
        tab.on("dialog", lambda dialog: faults.append(dialog.message))
        tab.on(
            "request",
            lambda asked: (
                faults.append(asked.url) if not asked.url.startswith((file, "data:")) else None
            ),
        )
        tab.goto(file + address)
        if options.get("java_script_enabled", True):
            tab.evaluate(reports.SETTLED)
        return tab

    yield go
    for context in contexts:
        context.close()
    assert faults == []
