"""A small task as a user meets it: trained, then measured at sizes that it was not trained at."""

import json

import pytest
from tiny import LANGUAGE
from training import fit

TINY = [option for option in LANGUAGE if not option.startswith("data.length")]
FEW = [*TINY, "data.train=32", "data.val=16", "data.test=16"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tasks")
    options = {
        "addition_fire": ["data.digits=3"],
        "addition_tape": ["data.digits=3", "model.encoding=learned"],
    }
    return {name: fit(name, [*FEW, *own], folder / name, "never") for name, own in options.items()}


def test_answers_are_measured_as_a_whole_and_past_training(runs, zoo):
    run = runs["addition_fire"]["run"]
    assert 0 <= runs["addition_fire"]["metrics"]["test/exact"] <= 1
    code, out, message = zoo("eval", str(run), "data.digits=6", "data.least=4", "--json")
    assert code == 0, message
    found = json.loads(out)
    assert found["count"] == 16
    assert {"test/loss", "test/accuracy", "test/exact"} <= found["metrics"].keys()


def test_a_table_is_refused_past_its_size(runs, zoo):
    code, out, message = zoo(
        "eval", str(runs["addition_tape"]["run"]), "data.digits=6", "data.least=6"
    )
    assert (code, out) == (2, "")
    assert "12" in message
    assert "Traceback" not in message


def test_sizes_that_cross_are_told_where_they_stand(zoo):
    code, _, message = zoo("fit", "copying_none", "data.order=backwards")
    assert code == 2
    assert "data.order: expected one of 'same', 'reversed', 'sorted'" in message
    code, _, message = zoo("fit", "copying_none", "data.least=30", "data.symbols=8")
    assert code == 2
    assert "data.least" in message
    assert "30 symbols are more than the maximum of 8" in message


def test_a_length_is_no_option_of_sums(zoo):
    code, _, message = zoo("fit", "addition_fire", "evaluate.lengths=[8]")
    assert code == 2
    assert "data addition has no option length" in message
