"""A comparison in Chromium, from a file: the answer on the first screen, the switch, the tables, by mouse and by keys."""

import comparisons
import pytest

from zoo.comparison.page.comparison_page import render

pytestmark = pytest.mark.browser
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 360, "height": 740}
NAMES = ("images", "texts", "one", "many", "grid", "hostile", "empty", "lengths")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("comparisons")
    levels = {f"variant_{number}": 0.8 + number / 200 for number in range(30)}
    made = {
        name: getattr(comparisons, name)()
        for name in ("images", "texts", "grid", "hostile", "empty", "lengths", "alone")
    }
    made |= {"one": comparisons.images(seeds=(0,)), "many": comparisons.images(levels=levels)}
    for name, comparison in made.items():
        (folder / f"{name}.html").write_text(render(comparison))
    return folder


def names(tab):
    return tab.locator(".ranks .variant").all_inner_texts()


def bottom(tab, selector):
    box = tab.locator(selector).first.bounding_box()
    return box["y"] + box["height"]


@pytest.mark.parametrize("name", [*NAMES, "alone"])
def test_a_comparison_opens_without_a_network(visit, name):
    tab = visit(name)
    assert tab.evaluate("document.documentElement.dataset.ready") is not None
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("name", ["images", "texts", "one"])
def test_the_first_screen_holds_the_answer_and_the_figure(visit, name):
    tab = visit(name)
    assert tab.locator("h1").inner_text().startswith("Which encoding, on ")
    assert "has the" in tab.locator(".answer").inner_text()
    assert bottom(tab, ".ranks") < WIDE["height"]
    assert bottom(tab, ".told-at:not([hidden])") < WIDE["height"]
    assert tab.locator("#flags").bounding_box()["y"] < WIDE["height"]


@pytest.mark.parametrize(("name", "width"), [("images", 120), ("many", 80)])
def test_strips_lie_side_by_side_in_line(visit, name, width):
    tab = visit(name)
    lines = tab.locator(".ranks td[data-column='1'] .strip:not(.axis)")
    sides = {
        (round(box["x"]), round(box["width"])) for one in lines.all() if (box := one.bounding_box())
    }
    assert len(sides) == 1
    assert sides.pop()[1] > width


def test_the_switch_ranks_anew_by_mouse(visit):
    tab = visit("texts")
    assert names(tab) == ["sinusoidal", "rope", "learned", "alibi"]
    tab.get_by_label("at 1024 tokens").check()
    assert names(tab) == ["alibi", "rope", "sinusoidal", "learned"]
    assert tab.locator(".ranks .rank").all_inner_texts() == ["1", "2", "3", "\u2013"]
    assert (
        tab.locator(".told-at:not([hidden])")
        .inner_text()
        .startswith("At 1024 tokens alibi has the lowest mean")
    )
    assert tab.locator(".ranks thead .chosen").inner_text() == "1024 tokens"


def test_the_switch_ranks_anew_by_keys(visit):
    tab = visit("texts")
    tab.get_by_label("at 128 tokens").focus()
    tab.keyboard.press("ArrowRight")
    assert names(tab)[0] == "alibi"
    tab.keyboard.press("ArrowLeft")
    assert names(tab)[0] == "sinusoidal"


def test_groups_move_with_their_best(visit):
    tab = visit("grid")
    assert tab.locator(".ranks .group").all_inner_texts() == ["rope", "alibi", "none"]
    assert names(tab)[:3] == ["rope, 8", "rope, 4", "alibi, 8"]
    tab.get_by_label("at 32 pixels").check()
    assert tab.locator(".ranks .group").all_inner_texts() == ["alibi", "rope", "none"]
    assert names(tab)[:3] == ["alibi, 8", "alibi, 4", "rope, 8"]
    heads = [tab.locator("tbody").nth(place).locator("tr").first.inner_text() for place in range(3)]
    assert heads == ["alibi", "rope", "none"]


def test_a_heading_sorts_its_table_and_turns_it_round(visit):
    tab = visit("images")
    table = tab.locator("#numbers table")
    first = table.locator("tbody tr:first-child th")
    heading = table.get_by_role("button", name="test accuracy, 32 pixels")
    heading.click()
    assert first.inner_text() == "comrope_ld"
    heading.press("Enter")
    assert first.inner_text() == "none"
    assert table.locator("[aria-sort]").get_attribute("aria-sort") == "ascending"
    table.get_by_role("button", name="encoding").click()
    assert first.inner_text() == "comrope_ld"
    assert table.locator("[aria-sort]").count() == 1


def test_what_has_no_value_stays_last_however_it_is_sorted(visit):
    tab = visit("texts")
    heading = tab.locator("#numbers").get_by_role("button", name="test loss, 512 tokens")
    for first in ("alibi", "sinusoidal"):
        heading.click()
        order = tab.locator("#numbers tbody th").all_inner_texts()
        assert (order[0], order[-1]) == (first, "learned")


def test_what_is_flagged_says_why_under_the_pointer_and_leads_to_the_words(visit):
    tab = visit("images")
    flag = tab.locator(".ranks .flag")
    flag.hover()
    assert "512 more parameters than the others" in tab.locator("#tip").inner_text()
    flag.press("Enter")
    assert tab.evaluate("location.hash") == "#flags"
    tab.locator(".ranks td.best").first.hover()
    assert tab.locator("#tip").inner_text().startswith("comrope_ld, 16 pixels\n0.99")


def test_a_comparison_in_the_dark(visit):
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    tab = visit("images", color_scheme="dark")
    assert tab.evaluate(paper) == "rgb(22, 24, 28)"
    tab.get_by_role("button", name="Light").click()
    assert tab.evaluate(paper) == "rgb(255, 254, 251)"


@pytest.mark.parametrize("name", NAMES)
def test_a_narrow_comparison_does_not_scroll_sideways(visit, name):
    tab = visit(name, viewport=NARROW, has_touch=True)
    assert tab.evaluate("document.documentElement.scrollWidth") == NARROW["width"]
    assert tab.locator(".ranks thead [data-column]:visible").count() == 1
    place = "1024 tokens" if name in ("texts", "lengths") else "32 pixels"
    tab.get_by_label(f"at {place}").check()
    assert tab.locator(".ranks thead [data-column]:visible").all_inner_texts() == [place]


def test_of_many_places_the_chosen_one_is_seen(visit):
    tab = visit("lengths")
    tab.get_by_label("at 8192 tokens").check()
    assert tab.locator(".ranks thead [data-column]:visible").all_inner_texts() == ["8192 tokens"]
    assert tab.locator(".ranks tbody td:visible").count() == 4


def test_without_a_script_the_page_still_answers(visit):
    tab = visit("images", java_script_enabled=False)
    assert "comrope_ld" in tab.locator(".answer").inner_text()
    assert names(tab)[0] == "comrope_ld"
    assert tab.locator(".ranks td.best").count() == 3
