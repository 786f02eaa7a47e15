"""`zoo.compare` in Python: the numbers of the command."""

import json

import pytest
from tiny import TINY

import zoo
from zoo.cli.edge import COMMAND_LINE
from zoo.comparison.design import Range
from zoo.config.command_line import parse_overrides

ENCODINGS = ["rope_axial", {"name": "learned"}]
VARIED = [word for word in TINY if not word.startswith("model.encoding")]


@pytest.mark.nightly
def test_a_comparison_has_the_numbers_of_the_command(compared, forked):
    words = ["seeds=1", "evaluate.resolutions=[24]", *VARIED]
    code, out, _ = compared(
        "vit_comrope", "encodings=[rope_axial,learned]", "to=one", *words, "--json"
    )
    assert code == 0
    expected = json.loads(out)

    changes = parse_overrides(["evaluate.resolutions=[24]", *VARIED])
    found = zoo.compare(
        "vit_comrope", changes, encodings=ENCODINGS, seeds=1, to="two", verbose=False
    )
    assert found.problem is None
    assert list_measurements(found.to_dict()) == list_measurements(expected)
    assert found.comparison.command.startswith("zoo.compare('vit_comrope', {'evaluate.resol")

    rows = found.rows()
    assert [row["variant"] for row in rows] == ["rope_axial", "rope_axial", "learned", "learned"]
    assert [row["condition"] for row in rows] == 2 * ["16 pixels", "24 pixels"]
    metrics = list_measurements(expected)[0][0]["metrics"]
    assert rows[0]["test/loss"] == metrics["test/loss"]
    assert found.frame()["test/loss"].tolist() == [row["test/loss"] for row in rows]
    assert found.table() in (found.path / "comparison.md").read_text()
    assert "rope_axial" in found._repr_html_()
    assert found.figure("sizes").path == found.path / "sizes.png"
    with pytest.raises(zoo.DataError, match="no figure 'size', but costs, ranking"):
        found.figure("size")
    # with the settings of the figure, and as altair's own object
    chart = found.chart("sizes")
    assert chart.properties(background="#eee").to_dict(validate=False)["config"]["font"]
    with pytest.raises(zoo.DataError, match="no figure 'size', but costs, ranking"):
        found.chart("size")

    again = zoo.rebuild_comparison("two", verbose=False)
    assert again.rows() == rows
    timed = zoo.rebuild_comparison("two", target=0.05, verbose=False)
    assert "Time to target" in (timed.path / "comparison.md").read_text()
    assert timed.rows() == rows
    with pytest.raises(zoo.RecipeError, match=r"measure: .* got 'speed'"):
        zoo.rebuild_comparison("two", measure="speed", verbose=False)


def list_measurements(plain):
    return [variant["cells"][0]["measurements"] for variant in plain["variants"]]


def test_wrong_arguments_are_those_of_the_command(compared, forked):
    _, _, told = compared("vit_comrope", "encodings=[rope_axail]", "sedes=2", "model.depht=3")
    with pytest.raises(zoo.RecipeError) as caught:
        zoo.compare("vit_comrope", {"model.depht": 3}, encodings=["rope_axail"], sedes=2)
    # the command line names what it knows without torch, in the same words
    text = caught.value.spell(COMMAND_LINE)
    lines = [line.strip() for line in told.splitlines()[1:]]
    assert lines
    assert all(line in text for line in lines)


def test_wrong_arguments_are_explained_in_the_words_of_python():
    with pytest.raises(zoo.RecipeError) as caught:
        zoo.compare("vit_none", encodings=["none"], seedz=2, tune={"optim.lr": [1, "log"]})
    text = str(caught.value)
    assert "argument: seedz: unknown key; did you mean seeds?" in text
    assert 'write tune={"optim.lr": [0.0003, 0.01, "log"]}' in text
    assert "budget: tuning needs budget; write budget=4" in text
    assert "studies: tuning needs studies; write studies=5" in text
    with pytest.raises(zoo.RecipeError, match="unknown key; did you mean encodings"):
        zoo.compare("vit_none", encoding=["none"])


def test_a_range_to_tune_is_a_list_with_its_scale(monkeypatch):
    checked = []
    monkeypatch.setattr("zoo.api.comparison.run_comparison", checked.append)
    with pytest.raises(AttributeError):
        zoo.compare(
            "vit_none",
            {"trainer.max_steps": 2},
            encodings=["none"],
            tune={"optim.lr": [3e-4, 1e-2, "log"]},
            studies=2,
            budget=4,
            verbose=False,
        )
    (request,) = (one.request for one in checked)
    assert request.tuning.keys == (Range("optim.lr", 3e-4, 1e-2, "log"),)
    assert len(checked[0].trials) == 8
