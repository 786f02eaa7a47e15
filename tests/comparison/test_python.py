"""`zoo.compare` in Python: the numbers of the command, whatever was imported first."""

import json
import subprocess
import sys

import pytest
from tiny import TINY

import zoo
from zoo.cli.edge import COMMAND_LINE
from zoo.config.command_line import parse_overrides

ENCODINGS = ["rope_axial", {"name": "learned"}]
VARIED = [word for word in TINY if not word.startswith("model.encoding")]


def test_a_comparison_has_the_numbers_of_the_command(compared, forked):
    words = ["seeds=1", "evaluate.resolutions=[24]", *VARIED]
    code, out, _ = compared(
        "vit_comrope", "encodings=[rope_axial,learned]", "to=one", *words, "--json"
    )
    assert code == 0
    expected = json.loads(out)

    changes = ["evaluate.resolutions=[24]", *VARIED]
    found = zoo.compare(
        "vit_comrope",
        parse_overrides(changes),
        encodings=ENCODINGS,
        seeds=1,
        to="two",
        verbose=False,
    )
    assert not found.stopped
    metrics = [variant["cells"][0]["metrics"] for variant in expected["variants"]]
    assert [variant.cells[0].metrics for variant in found.comparison.variants] == metrics

    rows = found.rows()
    assert [row["variant"] for row in rows] == ["rope_axial", "rope_axial", "learned", "learned"]
    assert [row["condition"] for row in rows] == 2 * ["16 pixels", "24 pixels"]
    assert rows[0]["test/loss"] == metrics[0][""]["test/loss"]
    assert found.frame()["test/loss"].tolist() == [row["test/loss"] for row in rows]
    assert found.table() in (found.path / "comparison.md").read_text()
    assert "rope_axial" in found._repr_html_()
    assert found.figure("sizes").path == found.path / "sizes.png"
    with pytest.raises(zoo.DataError, match="no figure 'size', but costs, ranking"):
        found.figure("size")

    again = zoo.compare(rebuild="two", verbose=False)
    assert again.rows() == rows


def test_wrong_arguments_are_those_of_the_command(compared, forked):
    _, _, told = compared("vit_comrope", "encodings=[rope_axail]", "sedes=2", "model.depht=3")
    with pytest.raises(zoo.RecipeError) as caught:
        zoo.compare("vit_comrope", {"model.depht": 3}, encodings=["rope_axail"], sedes=2)
    assert caught.value.spell(COMMAND_LINE) in told
    with pytest.raises(zoo.RecipeError, match="no recipe"):
        zoo.compare(encodings=["rope_axial"])


@pytest.mark.parametrize(
    "first",
    [
        "import zoo",
        "import zoo.comparison.results",
        "from zoo import compare",
        "import zoo; zoo.compare",
        "import zoo; zoo.ComparisonResult",
    ],
)
def test_the_package_can_be_called_whatever_was_imported_first(first):
    lines = [
        first,
        "import zoo",
        "assert callable(zoo.compare)",
        "import zoo.comparison.results as r",
    ]
    lines += [
        "assert zoo.comparison.results is r",
        "from zoo import compare",
        "assert callable(compare)",
    ]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True)
