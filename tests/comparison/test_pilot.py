"""A pilot says, before any cell is trained, which hypotheses the task can ask."""

import json
from pathlib import Path

import pytest
from comparisons import plant_results
from tiny import TINY

from zoo.comparison.claims import judge_comparison
from zoo.comparison.outputs import read_comparison

BASE = [
    "vit_comrope",
    *(word for word in TINY if "encoding" not in word),
    "trainer.num_threads=1",
    "encodings=[none,learned]",
    "minutes=1e-6",
]


@pytest.fixture
def pilot(compared):
    """A pilot of two variants near the ceiling, with other seeds than the comparison."""

    def make(levels, baseline=0.1):
        assert compared(*BASE, "seeds=[1001,1002,1003]", "to=pilot")[0] == 0
        plant_results("pilot", levels, baseline=baseline)

    return make


def ask(compared, *hypotheses, seeds="seeds=5"):
    return compared(*BASE, seeds, f"hypotheses=[{','.join(hypotheses)}]", "pilot=pilot", "to=c")


def test_what_a_pilot_leaves_no_room_for_is_not_asked_whatever_the_cells_show(compared, pilot):
    pilot({"none": 0.985, "learned": 0.6})
    code, _, message = ask(compared, "learned > none by 0.1", "none > learned by 0.1")
    assert code == 0, message
    assert "pilot: learned > none by 0.1: `none` has 0.98" in message
    assert "of the claimed 0.1" in message
    assert "pilot: none > learned by 0.1: `learned` has 0.60" in message
    assert "5 seeds find 0.1 with a power of 100 %" in message

    # cells that would decide the claim, had there been room
    plant_results("c", {"none": 0.5, "learned": 0.9}, baseline=0.1)
    without_room, with_room = judge_comparison(read_comparison(Path("c")))
    assert without_room.verdict == "our task cannot ask this"
    assert without_room.reason.startswith("by the pilot: `none` has 0.98")
    assert with_room.verdict == "reversed"

    # a pilot that is read after the cells is no forecast
    written = json.loads(Path("c/hypotheses.json").read_text())
    pilot({"none": 0.6, "learned": 0.985})
    code, _, message = ask(compared, "learned > none by 0.1", "none > learned by 0.1")
    assert code == 0, message
    assert "the pilot changes no verdict: 10 runs had ended before it" in message
    assert json.loads(Path("c/hypotheses.json").read_text()) == written


def test_nothing_is_started_where_a_pilot_leaves_no_room_at_all(compared, pilot):
    pilot({"none": 0.2, "learned": 0.25}, baseline=0.5)
    code, _, message = ask(compared, "learned > none")
    assert code == 2
    assert "hypotheses: the pilot leaves no room for any hypothesis; nothing was started" in message
    assert "no model beats the baseline: majority class" in message
    assert not Path("c").exists()


def test_a_pilot_has_seeds_of_its_own_and_the_recipe_of_the_comparison(compared, pilot):
    pilot({"none": 0.7, "learned": 0.75})
    code, _, message = ask(compared, "learned > none", seeds="seeds=[0,1002,4]")
    assert code == 2
    assert "pilot: pilot has the seed 1002 of this comparison too" in message
    code, _, message = compared(*BASE, "pilot=pilot", "to=c")
    assert code == 2
    assert "pilot: there is no hypothesis that a pilot could leave room for" in message
    code, _, message = compared(*BASE, "hypotheses=[learned > none]", "pilot=nowhere", "to=c")
    assert code == 4
    assert "nowhere: holds no comparison" in message
    assert not Path("c").exists()
