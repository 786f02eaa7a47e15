"""The page of a comparison as text: well formed, with the numbers of the data, and safe from hostile words."""

import json
import math
from dataclasses import replace

import comparisons
import pytest
from elements import Reader

from zoo.comparison.page.comparison_page import render
from zoo.comparison.page.number_tables import build_costs_table
from zoo.comparison.page.ranking_table import choose_ticks
from zoo.comparison.ranking import choose_scale, rank_variants
from zoo.reporting.panel import Scale


def every():
    return {
        "images": comparisons.images(),
        "texts": comparisons.texts(),
        "one": comparisons.images(seeds=(0,)),
        "many": comparisons.images(levels={f"variant_{n}": 0.8 + n / 200 for n in range(30)}),
        "grid": comparisons.grid(),
        "hostile": comparisons.hostile(),
        "empty": comparisons.empty(),
        "alone": comparisons.alone(),
        "lengths": comparisons.lengths(),
    }


@pytest.fixture(scope="module")
def pages():
    return {name: render(made) for name, made in every().items()}


@pytest.mark.parametrize("name", every())
def test_a_comparison_is_a_well_formed_page(pages, name):
    read = Reader(pages[name])
    assert read.faults == []
    names = [
        element["attributes"]["id"] for element in read.elements if "id" in element["attributes"]
    ]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", every())
def test_nothing_is_asked_for_and_nothing_that_is_shown_is_run(pages, name):
    read = Reader(pages[name])
    addresses = [
        v
        for e in read.elements
        for key, v in e["attributes"].items()
        if key in ("href", "src", "srcset")
    ]
    assert all(address.startswith("#") for address in addresses)
    assert len(read.find_named("script")) == 2
    assert not {e["name"] for e in read.elements} & {
        "link",
        "iframe",
        "object",
        "embed",
        "base",
        "form",
        "img",
    }
    assert not [key for e in read.elements for key in e["attributes"] if key.startswith("on")]


def rows(page, table, number=1):
    """Texts of the cells of the rows of a table, by its class and its number among those."""
    part = page.split(f'<table class="{table}">')[number].split("</table>")[0]
    return [
        [e["text"] for e in Reader(f"<tr>{row}").elements if e["name"] in ("td", "th")]
        for row in part.split("<tr>")[1:]
    ]


def test_the_table_has_the_numbers_of_the_cells(pages):
    head, *found = rows(pages["images"], "sortable")
    assert head[:2] == ["encoding", "test accuracy, 16 pixels"]
    by_name = {row[0]: row for row in found}
    for variant in comparisons.images().variants:
        values = [
            cell.measurements[0].metrics["test/accuracy"]
            for cell in variant.cells
            if cell.measurements
        ]
        row = by_name[variant.name + ", ".join(variant.flag_kinds)]
        mean = f"{math.fsum(values) / len(values):.3f}"
        # two seeds have no interval
        both = " and ".join(f"{value:.3f}" for value in values)
        assert row[1].startswith(f"{mean} (" if len(values) > 2 else f"{mean} ({both})")


def test_costs_stand_in_a_table_of_their_own(pages):
    head, *found = rows(pages["images"], "sortable", 2)
    assert head[3] == "step, ms"
    crowded = replace(comparisons.images(), machine={"jobs": 2})
    assert build_costs_table(crowded).heads[3] == "step, ms (2 at once)"
    by_name = {row[0]: row[1:] for row in found}
    for variant in comparisons.images().variants:
        done = sum(cell.state == "done" for cell in variant.cells)
        assert by_name[variant.name][-1] == f"{done} of 3"
    assert by_name["none"][:5] == ["678\u202f010", "21.9", "50", "700", "sdpa"]


def test_every_cell_has_its_state_its_run_and_its_fault(pages):
    text = Reader(pages["images"]).find_named("section")
    (cells,) = [one["text"] for one in text if one["attributes"]["id"] == "cells"]
    for variant in comparisons.images().variants:
        assert all(f"{variant.name}-{seed}" in cells for seed in range(3))
    assert "exit code 3: the loss became nan at step 40" in cells


def test_what_is_flagged_is_told_in_words_and_under_the_pointer(pages):
    read = Reader(pages["images"])
    (flags,) = [e["text"] for e in read.find_named("div") if e["attributes"].get("id") == "flags"]
    assert "liere: 512 more parameters than the others; seed 2 failed: exit code 3" in flags
    ranked, listed = [e for e in read.find_named("a") if "flag" in e["attributes"].get("class", "")]
    assert ranked == listed
    assert ranked["text"] == "parameters, failed seeds"
    assert "512 more parameters" in ranked["attributes"]["data-tip"]
    assert "refused: the table has 128 places" in pages["texts"]


def test_who_may_be_best_is_told_in_words(pages):
    read = Reader(pages["images"])
    looks = [
        (e["attributes"]["class"].split()[0], e["text"])
        for e in read.find_named("td")
        if "data-tip" in e["attributes"]
    ]
    assert len(looks) == 18
    assert all(("may be best" in text) == (look == "possible") for look, text in looks)
    assert sum("highest mean" in text for _, text in looks) == 3


def test_rows_know_their_order_at_each_place():
    made = comparisons.texts()
    read = Reader(render(made))
    found = {
        e["attributes"]["data-order"]
        for e in read.find_named("tr")
        if "data-order" in e["attributes"]
    }
    order = [[one.variant.name for one in rank_variants(made, place)] for place in made.conditions]
    assert found == {" ".join(str(one.index(v.name)) for one in order) for v in made.variants}


def test_what_is_not_finished_says_so_at_the_top(pages):
    assert (
        "Not finished: 11 of 12 cells are done, 1 waiting." in pages["texts"].split("<section")[0]
    )
    assert "Not finished" not in pages["images"]


def test_one_seed_has_no_interval_and_says_that_it_cannot_tell(pages):
    assert 'class="interval"' not in pages["one"]
    assert "one seed each, which cannot tell a difference from chance" in pages["one"]
    assert "may be best" not in Reader(pages["one"]).find_named("main")[0]["text"].lower()


def test_variants_of_two_axes_are_grouped_by_the_first(pages):
    heads = [
        e["text"]
        for e in Reader(pages["grid"]).find_named("th")
        if e["attributes"].get("scope") == "rowgroup"
    ]
    assert heads == ["rope", "alibi", "none"]


def test_a_comparison_at_one_place_has_nothing_to_switch(pages):
    read = Reader(pages["alone"])
    assert not read.find_named("fieldset")
    assert (
        "At the training size comrope_ld has the highest mean"
        in read.find_named("header")[0]["text"]
    )


def test_sections_without_anything_to_show_are_left_out(pages):
    def keys(name):
        return [e["attributes"]["id"] for e in Reader(pages[name]).find_named("section")]

    drawn = ["numbers", "sizes", "positions", "training", "cost_table"]
    assert keys("texts") == [*drawn, "cells", "made", "recipe"]
    drawn = ["numbers", "sizes", "training", "cost_table", "compute"]
    assert keys("images") == [*drawn, "cells", "made", "recipe"]
    assert keys("empty") == ["numbers", "cells", "made", "recipe"]


def test_how_it_was_made_is_told(pages):
    (made,) = [
        e["text"]
        for e in Reader(pages["images"]).find_named("section")
        if e["attributes"]["id"] == "made"
    ]
    assert "zoo compare vit_comrope 'encodings=[none,...]' seeds=3" in made
    assert "the initial values of the 104 weights that all variants have" in made
    assert "name: vit" in pages["images"].split('id="recipe"')[1]


def test_hostile_words_are_shown_as_they_are(pages):
    text = Reader(pages["hostile"]).find_named("main")[0]["text"]
    assert "</script><script>alert(1)</script><img src=x onerror=alert(2)>" in text
    (data,) = [
        e["text"]
        for e in Reader(pages["hostile"]).find_named("script")
        if "type" in e["attributes"]
    ]
    assert json.loads(data) == {}


def test_what_lies_far_off_does_not_press_the_others_together():
    made = comparisons.images(levels={"a": 0.9, "b": 0.91, "c": 0.92, "d": 0.1})
    seen = choose_scale(rank_variants(made, comparisons.IMAGE))
    assert 0.8 < seen.low < 0.9 < seen.high < 1.0
    near = comparisons.images(levels={"a": 0.9, "b": 0.8, "c": 0.7})
    assert choose_scale(rank_variants(near, comparisons.IMAGE)).low < 0.7


def test_equals_of_the_best_do_not_narrow_what_is_shown():
    made = comparisons.images(seeds=(0,), levels={"a": 0.9, "b": 0.9, "c": 0.7})
    same = [replace(one, cells=made.variants[0].cells) for one in made.variants[:2]]
    seen = choose_scale(
        rank_variants(replace(made, variants=(*same, made.variants[2])), comparisons.IMAGE)
    )
    assert seen.low < 0.7 + 0.01


@pytest.mark.parametrize("low", [0.0, 0.87, 0.9, 0.995])
@pytest.mark.parametrize("high", [0.9951, 1.0, 1.07, 4.3, 260.0])
def test_a_column_has_two_or_three_numbers_and_room_for_each(low, high):
    places = [place for place, _ in choose_ticks(Scale(low, high))]
    assert 2 <= len(places) <= 3
    assert min(places) > 6
    assert max(places) < 94


def test_a_second_axis_has_columns_of_its_own():
    made = comparisons.grid()
    assert [row[:3] for row in rows(render(made), "sortable")][:2] == [
        ["encoding \u00d7 depth", "encoding", "depth"],
        ["rope, 8", "rope", "8"],
    ]
    deep = replace(made, axes=(*made.axes, comparisons.make_axis("optim.lr", "lr", ("1e-3",))))
    assert Reader(render(deep)).faults == []
