"""The page of an audit: its verdict, figures and notes."""

import json
import re
from dataclasses import replace

import planted
import pytest

import zoo
from zoo.auditing.audit_page import describe_report


@pytest.fixture(scope="module")
def broken():
    return zoo.audit(
        planted.FAULTS["table_ends"][0](), laws=["future", "packing", "shift", "rotary"]
    )


def test_a_page_shows_laws_and_figures(broken, tmp_path):
    broken = replace(broken, notes=("<b>a note</b>",))
    broken.save(tmp_path / "audit.html")
    page = (tmp_path / "audit.html").read_text()
    assert "LlamaForCausalLM breaks 2 laws: shift, rotary" in page
    assert "positions from 1,000 have the angles of position 999" in page
    assert "&lt;b&gt;a note" in page
    assert page.count("<svg viewBox") == 4  # a curve, two maps, the turns of a module
    assert not re.search(r"(src|href)=\"(?!#|data:)", page)


def test_figures_show_where_a_table_ends(broken):
    curve = broken.figures.shift
    ratios = {s: e / b for s, e, b in zip(curve.shifts, curve.errors, curve.bounds, strict=True)}
    assert max(ratio for shift, ratio in ratios.items() if shift < 900) < 1
    assert min(ratio for shift, ratio in ratios.items() if shift > 1000) > 1
    (turns,) = broken.figures.turns
    assert turns.measured[0] != pytest.approx(1.0) or turns.expected[0] == pytest.approx(1.0)


def test_maps_show_a_leak_between_packed_texts():
    def measure(model):
        text, packed = zoo.audit(model, laws=["future", "packing"]).figures.influence
        start = packed.starts[1]
        assert text.errors[20][0] > text.bound  # a later token sees the first one
        assert max(text.errors[0][1:]) <= text.bound
        return max(error for row in packed.errors[start:] for error in row[:start]) / packed.bound

    assert measure(planted.build_decoder()) <= 1
    assert measure(planted.add_mask_of_ones()) > 100


def test_json_has_the_figures(broken, tmp_path):
    broken.save(tmp_path / "audit.json")
    figures = json.loads((tmp_path / "audit.json").read_text())["figures"]
    assert len(figures["influence"][1]["errors"]) == 24
    assert figures["turns"][0]["module"] == "model.rotary_emb"


def test_a_page_without_figures_has_the_laws_only():
    report = zoo.audit(planted.build_gpt2(), laws=["batch"])
    assert [section.key for section in describe_report(report).sections] == ["laws"]
