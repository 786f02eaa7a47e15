"""The page to play with, in Chromium: every encoding, by mouse, by keys, in the dark and on a telephone."""

import re
import shutil
from pathlib import Path

import pytest

import zoo

pytestmark = pytest.mark.browser
PAGE = Path(__file__).parent.parent.parent / "docs" / "play.html"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    shutil.copy(PAGE, folder / "play.html")
    return folder


def filled(tab):
    tab.wait_for_timeout(80)
    return tab.locator("#filled").inner_text()


def test_every_encoding_is_drawn(visit):
    tab = visit("play")
    for name in zoo.encoding_names():
        tab.locator("#encoding").select_option(name)
        assert re.search(r"= \u2212?[\d.]+$|\u2212\u221e$", filled(tab)), name
        assert tab.locator("#curve path").count(), name
        assert tab.locator("#map .cell").count(), name
        assert tab.locator("#lengths tbody tr").count() >= 2
        assert tab.evaluate("location.hash").startswith(f"#{name}")


def test_the_address_holds_what_was_moved(visit):
    tab = visit("play", "#alibi&slope=2&H=4&d=3")
    assert filled(tab).endswith("= 0.500000")  # 2 - 2 / 4 * 3
    tab.locator("#knob-slope").focus()
    tab.keyboard.press("ArrowRight")
    assert filled(tab).endswith("= 0.492500")
    assert "slope=2.01" in tab.evaluate("location.hash")


def test_a_cell_is_chosen_by_a_click(visit):
    tab = visit("play", "#kerple&grid")
    tab.locator("#map .cell").nth(5).click()
    assert "Key: row 0, column 5." in tab.locator("#pair").inner_text()


def test_every_knob_has_a_label_and_a_place_in_the_order_of_tabs(visit):
    tab = visit("play", "#rope")
    unlabelled = "() => [...document.querySelectorAll('input, select, button')].filter(one => !one.labels?.length && !one.textContent).length"
    assert tab.evaluate(unlabelled) == 0
    assert tab.locator("[role=img]:not([aria-label])").count() == 0
    reached = set()
    tab.locator("#encoding").focus()
    for _ in range(30):
        tab.keyboard.press("Tab")
        reached.add(tab.evaluate("document.activeElement.id"))
    knobs = "[...document.querySelectorAll('.knob input, .knob select')].map(one => one.id)"
    assert {*tab.evaluate(knobs)} <= reached


@pytest.mark.parametrize("name", ["rope", "alibi&grid", "cope"])
def test_it_fits_a_telephone(visit, name):
    tab = visit("play", f"#{name}", viewport={"width": 360, "height": 740})
    filled(tab)
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_it_is_dark_where_the_system_is(visit):
    tab = visit("play", color_scheme="dark")
    assert (
        tab.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        == "rgb(22, 24, 28)"
    )
