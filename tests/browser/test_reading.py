"""A report in Chromium, from a file: what a reader sees and does, by mouse, by keys, in the dark and on a telephone."""

import re

import pytest
import reports

from zoo.diagnosis.page.diagnosis_page import render

pytestmark = pytest.mark.browser
PIXELS = "canvas => canvas.toDataURL()"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    made = reports.every() | {"large": reports.large(), "written": reports.make_long_sample()}
    with reports.draw_panels_once():
        for name, report in made.items():
            (folder / f"{name}.html").write_text(render(report))
    return folder


def viewer_text(tab):
    tab.evaluate(reports.SETTLED)
    words = tab.locator("#looks-says").inner_text()
    return re.sub("[\u2068\u2069]", "", words)  # what keeps a token's letters together


def heat(tab):
    tab.evaluate(reports.SETTLED)
    return tab.locator(".stage canvas:not([data-plain])").first.evaluate(PIXELS)


def choose(tab, *names):
    return [tab.locator(f"select[name={name}]").input_value() for name in names]


@pytest.mark.parametrize("name", ["image", "text", "clip", "pair", "hostile"])
def test_a_page_opens_from_a_file_alone(visit, name):
    tab = visit(name)
    assert viewer_text(tab).startswith("query ")
    assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("name", ["image", "large"])
def test_a_page_is_ready_within_a_second(visit, name):
    times = [
        float(visit(name).evaluate("document.documentElement.dataset.ready")) for _ in range(2)
    ]
    assert min(times) < 1000  # the first visit also starts the browser's processes


def test_layer_and_head_are_picked_by_name(visit):
    tab = visit("image")
    seen = [heat(tab)]
    for picker, label in (
        ("layer", "layer 2"),
        ("head", "head 2"),
        ("head", "rollout, all layers"),
        ("sample", "a ring, 1"),
    ):
        tab.locator(f"select[name={picker}]").select_option(label=label)
        seen.append(heat(tab))
    assert len(set(seen)) == 5


def test_layer_and_head_are_picked_from_the_small_maps(visit):
    tab = visit("image")
    before = heat(tab)
    tab.get_by_role("gridcell", name="layer 1, head 3").click()
    assert heat(tab) != before
    assert choose(tab, "head") == ["2"]
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    assert choose(tab, "layer") == ["2"]


def test_the_pointer_asks_and_a_click_holds(visit):
    tab = visit("image")
    canvas = tab.locator(".stage canvas:not([data-plain])")
    side = canvas.bounding_box()["width"] / 8

    def at(row, column):
        return {"x": (column + 0.5) * side, "y": (row + 0.5) * side}

    canvas.hover(position=at(1, 2))
    before, first = heat(tab), viewer_text(tab)
    assert first.startswith("query row 1, column 2: looks most at ")
    canvas.hover(position=at(7, 7))
    assert heat(tab) != before
    canvas.click(position=at(5, 1))
    canvas.hover(position=at(2, 3))
    assert viewer_text(tab).startswith("query row 5, column 1:")
    assert "; at row 2, column 3 with " in viewer_text(tab)


def test_arrow_keys_move_the_query(visit):
    tab = visit("image")
    stage = tab.locator(".stage")
    stage.focus()
    before, start = heat(tab), viewer_text(tab)
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowDown")
    assert start.startswith("query row 3, column 3:")
    assert viewer_text(tab).startswith("query row 4, column 4:")
    assert heat(tab) != before
    tab.keyboard.press("Home")
    assert viewer_text(tab).startswith("query class:")


def test_arrow_keys_go_through_a_text_line_by_line(visit):
    tab = visit("text")
    tab.locator('[data-slot="0"]').click()
    tab.locator(".stage").focus()
    tab.keyboard.press("ArrowRight")
    assert viewer_text(tab).startswith("query token 1 “e”:")
    tab.keyboard.press("ArrowDown")
    assert viewer_text(tab).startswith("query token 19 ")  # that under it
    assert tab.locator(".chip.query").count() == 1
    assert "↵" in tab.locator(".words").inner_text()


def test_a_text_from_right_to_left_stands_in_the_order_of_its_tokens(visit):
    tab = visit("written")
    chips = [tab.locator(f'[data-slot="{slot}"]') for slot in range(4)]
    places = [chip.bounding_box()["x"] for chip in chips]
    assert places == sorted(places)
    chips[0].click()
    tab.locator(".stage").focus()
    tab.keyboard.press("ArrowRight")
    assert viewer_text(tab).startswith("query token 1 “ל”:")
    assert tab.locator('[data-slot="4"]').inner_text() == "U+0301"
    assert tab.locator('[data-slot="5"]').inner_text() == "U+200B"


def test_a_long_text_scrolls_beside_what_is_told_of_it(visit):
    tab = visit("written")
    tab.locator(".words").scroll_into_view_if_needed()
    seen = "['.words', '#looks-says'].map((one) => innerHeight - document.querySelector(one).getBoundingClientRect().bottom)"
    for key, slot in (("End", 1199), ("Home", 0)):
        tab.locator(".stage").focus()
        tab.keyboard.press(key)
        query, around = (
            tab.locator(one).bounding_box() for one in (f'[data-slot="{slot}"]', ".words")
        )
        assert around["y"] <= query["y"] <= around["y"] + around["height"]
        assert min(tab.evaluate(seen)) > 0


def test_frames_of_a_clip_stand_in_a_row(visit):
    tab = visit("clip")
    tops = {canvas.bounding_box()["y"] for canvas in tab.locator(".stage canvas[data-plain]").all()}
    assert len(tops) == 1
    tab.locator('[data-slot="1"]').click()
    assert viewer_text(tab).startswith("query register:")


def test_a_view_has_an_address(visit):
    tab = visit("image", "#looks?sample=2&layer=2&head=2&query=10")
    assert viewer_text(tab).startswith("query row 1, column 1:")
    assert choose(tab, "sample", "layer", "head") == ["1", "2", "1"]
    tab.locator("select[name=head]").select_option("mean")
    tab.wait_for_url("**/*#looks?run=1&sample=2&layer=2&head=mean&query=10")


@pytest.mark.parametrize(
    "address",
    ["#looks?layer=99&head=-3&query=x&run=7&sample=zz", "#looks?head=constructor", "#looks?"],
)
def test_an_address_that_is_wrong_shows_something(visit, address):
    assert viewer_text(visit("image", address)).startswith("query row 3, column 3:")


def test_a_table_of_heads_is_read_by_keys_and_leads_to_the_viewer(visit):
    tab = visit("pair")
    table = tab.get_by_role("grid", name="Entropy").nth(1)
    table.locator("td[tabindex='0']").focus()
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("ArrowDown")
    assert (
        "vit_learned, layer 1, head 2: 2 nats" in tab.locator("#measures .told").first.inner_text()
    )
    tab.keyboard.press("Enter")
    assert choose(tab, "run", "layer", "head") == ["1", "1", "1"]


def test_numbers_under_the_pointer(visit):
    tab = visit("image")
    tab.locator("#training .drawing svg").first.hover()
    assert "train: " in tab.locator("#tip").inner_text()
    tab.locator("#encoding svg image").first.hover()
    tab.evaluate(reports.SETTLED)
    assert tab.locator("#tip").inner_text() == "0, 0: 1"


def test_dark_is_chosen_by_the_system_or_by_hand(visit):
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    assert visit("image", color_scheme="dark").evaluate(paper) == "rgb(22, 24, 28)"
    tab = visit("image", color_scheme="light")
    assert tab.evaluate(paper) == "rgb(255, 254, 251)"
    tab.get_by_role("button", name="Dark").click()
    assert tab.evaluate(paper) == "rgb(22, 24, 28)"
    tab.emulate_media(media="print")
    assert tab.evaluate(paper) == "rgb(255, 255, 255)"


@pytest.mark.parametrize("name", ["image", "text", "clip", "pair", "hostile", "large"])
def test_a_narrow_page_does_not_scroll_sideways(visit, name):
    tab = visit(name, viewport={"width": 360, "height": 740}, has_touch=True)
    assert tab.evaluate("document.documentElement.scrollWidth") == 360
    tab.locator(".stage canvas, .stage .chip.pick").last.tap()
    assert viewer_text(tab).startswith("query ")


def test_queries_that_the_page_has_no_room_for_are_told_of(visit):
    tab = visit("large")
    assert "13 of 197 tokens can be the query" in tab.locator(".some").inner_text()
    canvas = tab.locator(".stage canvas:not([data-plain])")
    canvas.click(position={"x": 3, "y": 3})
    assert viewer_text(tab).startswith("query row 1, column 2:")  # the nearest


def test_printing_opens_what_is_folded_and_keeps_what_is_seen(visit):
    tab = visit("image")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.locator("details[open]").count() == 1
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert tab.locator("details[open]").count() == 0
