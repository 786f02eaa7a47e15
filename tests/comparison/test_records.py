"""Finished cells of records are taken where all their settings are the same."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from comparisons import edit_cell, plant_cells, plant_records, read_cell
from tiny import TINY

from zoo.cli.compare import parse_words
from zoo.comparison.compare import plan_comparison
from zoo.comparison.plan import ComparisonPlan, join_existing
from zoo.comparison.record import hash_recipe
from zoo.comparison.record_file import CELLS_FILE, read_cells, write_cells
from zoo.comparison.records import find_recorded, read_records
from zoo.comparison.request import check_request
from zoo.comparison.suite_run import check_suite

BASE = [
    "vit_comrope",
    *(word for word in TINY if "encoding" not in word),
    "diagnostics.every_n_steps=null",
    "trainer.num_threads=1",
    "jobs=1",
]
TUNED = ["tune.optim.lr=[1e-3,1e-1,log]", "studies=3", "budget=1"]


@pytest.fixture
def recorded(compared):
    """A record of two encodings with two seeds, whose cells are made up."""
    words = ["encodings=[none,learned]", "seeds=2", "minutes=1e-6", "to=records/a"]
    code, _, message = compared(*BASE, *words)
    assert code == 0, message
    plant_records("records/a", minutes=3.0, steps=40)


def test_only_what_no_record_has_is_trained(compared, recorded):
    words = ["encodings=[sinusoidal,none]", "seeds=2", "to=c", "records=[records]"]
    code, out, message = compared(*BASE, *words, "--dry-run", "--json")
    assert code == 0, message
    found = json.loads(out)
    assert (found["cells"], found["done"]) == (4, 2)

    code, _, message = compared(*BASE, *words)
    assert code == 0, message
    assert "2 cells of 4 taken from records/a" in message
    assert read_cell("c", "none-1").minutes == 3.0
    assert not Path("c/cells/none-1").exists()
    assert Path("c/cells/sinusoidal-1").exists()
    # the file is that of the record, with the settings that differ from this base
    assert "2 cells" not in compared(*BASE, *words)[2]


@pytest.mark.parametrize("word", ["optim.lr=0.1", "seeds=[7]", "model.depth=3"])
def test_no_cell_of_other_settings_is_taken(compared, recorded, word):
    words = ["encodings=[none]", "seeds=[0]", "to=c", "records=[records/a]", word]
    words = [one for one in words if one != "seeds=[0]" or not word.startswith("seeds")]
    code, out, message = compared(*BASE, *words, "--dry-run", "--json")
    assert code == 0, message
    assert json.loads(out)["done"] == 0


def test_a_trial_is_taken_as_the_same_trial_judged_by_the_same_metric(compared):
    words = ["encodings=[none,learned]", *TUNED, "minutes=1e-6"]
    assert compared(*BASE, *words, "to=records/a")[0] == 0
    plant_cells("records/a", {"none": 0.5, "learned": 0.6}, studies=2)
    plan, records = ComparisonPlan.read(Path("records/a")), read_records(["records"])
    assert len(find_recorded(plan, records)) == 4
    code, out, message = compared(*BASE, *words, "to=c", "records=[records]", "--dry-run", "--json")
    assert code == 0, message
    assert json.loads(out)["done"] == 4
    other = ["to=c", "records=[records]", "measure=loss", "--dry-run", "--json"]
    assert json.loads(compared(*BASE, *words, *other)[1])["done"] == 0


def test_what_was_changed_by_hand_is_not_taken(compared, recorded):
    edit_cell("records/a", "none-0", minutes=2.0)
    words = ["encodings=[none]", "seeds=1", "records=[records]", "--dry-run"]
    code, out, message = compared(*BASE, *words)
    assert code == 0, message
    assert "records/a/cells.jsonl: none-0: its content" in message
    assert "it is not taken" in message
    assert "0 of them done" in out


def test_a_folder_that_is_not_there_is_refused(compared):
    code, _, message = compared(*BASE, "encodings=[none]", "records=[nowhere]")
    assert code == 2
    assert "records: nowhere: no such folder" in message


def write_as_before(folder):
    """Rewrite a comparison as one of a zoo without `evaluate.entropy`, and with another logger."""
    plan = ComparisonPlan.read(folder)

    def drop(recipe):
        evaluate = {key: one for key, one in recipe["evaluate"].items() if key != "entropy"}
        trainer = {**recipe["trainer"], "logger": [{"name": "csv"}]}
        return {**recipe, "evaluate": evaluate, "trainer": trainer}

    cells = tuple(replace(one, recipe=drop(one.recipe)) for one in plan.cells)
    before = replace(plan, base=drop(plan.base), cells=cells)
    before.write(folder)
    cells = read_cells(folder)
    changed = [
        replace(cells[planned.name], recipe=hash_recipe(before, planned))
        for planned in before.cells
    ]
    write_cells(folder, changed)


def test_options_that_zoo_has_gained_part_no_cells(compared, recorded):
    write_as_before(Path("records/a"))
    words = ["encodings=[none,learned]", "seeds=2", "minutes=1e-6"]

    # in place of training them again
    code, out, message = compared(*BASE, *words, "records=[records]", "--dry-run", "--json")
    assert code == 0, message
    assert json.loads(out)["done"] == 4
    # in the folder itself, whose settings stay as they were
    more = ["encodings=[none,learned,sinusoidal]", *words[1:]]
    code, _, message = compared(*BASE, *more, "to=records/a")
    assert code == 0, message
    assert "2 cells are added to its 4" in message
    assert "entropy" not in json.loads(Path("records/a/plan.json").read_text())["base"]["evaluate"]
    # and with cells of today
    assert compared(*BASE, "encodings=[sinusoidal,none]", "seeds=1", "to=b")[0] == 0
    plant_records("b", minutes=3.0, steps=40)
    code, _, message = compared("merge", "b", "records/a", "to=merged")
    assert code == 0, message
    assert len(Path("merged", CELLS_FILE).read_text().splitlines()) == 5


def test_an_option_that_is_not_at_its_default_parts_them(compared, recorded):
    write_as_before(Path("records/a"))
    words = ["encodings=[none,learned]", "seeds=2", "evaluate.entropy=true"]
    code, out, _ = compared(*BASE, *words, "records=[records]", "--dry-run", "--json")
    assert json.loads(out)["done"] == 0
    code, _, message = compared(*BASE, *words, "to=records/a")
    assert code == 2
    assert "evaluate.entropy is false there, true here" in message


RECORDS = Path(__file__).parents[2] / "docs/records"


def check_command(words):
    """Return {folder: checked request} of a command; only a suite has several."""
    recipe, *options = words if "=" not in words[0] else ["", *words]
    given = parse_words([one for one in options if not one.startswith("to=")])
    overrides, encodings = given.pop("overrides"), given.pop("encodings")
    if "suite" in given:
        suite = given.pop("suite")
        options = {key: one for key, one in given.items() if one}
        checked = check_suite(suite, overrides, encodings=encodings, given=options)
        return {part.name: part.checked for part in checked.parts}
    vary, tune = given.pop("vary"), given.pop("tune")
    named = {"encodings": encodings, "vary": vary, "tune": tune, "given": given}
    return {"": check_request(recipe, overrides, **named)}


@pytest.mark.parametrize(
    "name",
    [
        *(
            pytest.param(name, marks=() if name == "copying" else pytest.mark.nightly)
            for name in sorted(one.parent.name for one in RECORDS.glob("*/plan.json"))
        ),
        "suite_small",
    ],
)
def test_recorded_comparisons_go_on_by_their_commands(name):
    """With the options that zoo has today, every recorded cell is one of those planned."""
    plans = sorted((RECORDS / name).rglob("plan.json"))
    commands = {json.loads(path.read_text())["command"] for path in plans}
    assert len(commands) == 1
    words = shlex.split(commands.pop())[2:]
    requests = check_command(words)
    assert {RECORDS / name / one / "plan.json" for one in requests} == {*plans}
    for part, checked in requests.items():
        plan = join_existing(plan_comparison(checked)[0], RECORDS / name / part)
        planned = {one.name for one in plan.cells}
        assert {*read_cells(RECORDS / name / part)} <= planned
