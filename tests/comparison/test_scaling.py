"""Slopes of the loss over sizes of the model."""

from dataclasses import replace

import pytest
from comparisons import TEXT, make_axis, measure, texts

from zoo.comparison.outputs import describe_comparison
from zoo.comparison.page.comparison_page import render
from zoo.comparison.results import ComparisonCell, Variant
from zoo.comparison.scaling import fit_scaling
from zoo.comparison.text import format_comparison
from zoo.run.conditions import TRAINED

DIMS = (32, 64, 128)
SLOPES = {"rope": -0.10, "none": -0.04}


def make_ladder(dims=DIMS, seeds=(0, 1, 2)):
    """Losses that are exact powers of the number of parameters, with a factor for each seed."""

    def make_cell(encoding, dim, seed):
        parameters = 12 * dim**2
        loss = (2 + 0.1 * seed) * parameters ** (SLOPES[encoding] + 0.002 * seed)
        return ComparisonCell(
            seed=seed,
            run_dir=f"cells/{encoding}-{dim}-{seed}",
            state="done",
            measurements=measure({TRAINED: {"test/loss": loss}}, [TEXT]),
            parameters=parameters,
        )

    return replace(
        texts(seeds),
        axes=(
            make_axis("model.encoding", "encoding", SLOPES),
            replace(make_axis("model.dim", "dim", map(str, dims)), settings=tuple(dims)),
        ),
        seeds=seeds,
        conditions=(TEXT,),
        variants=tuple(
            Variant(
                name=f"{encoding} {dim}",
                values={"model.encoding": encoding, "model.dim": str(dim)},
                cells=tuple(make_cell(encoding, dim, seed) for seed in seeds),
            )
            for encoding in SLOPES
            for dim in dims
        ),
    )


def test_the_slope_of_a_power_law_is_its_exponent():
    steep, flat = fit_scaling(make_ladder())
    assert (steep.name, flat.name) == ("rope", "none")
    assert steep.slope.mean == pytest.approx(-0.10 + 0.002)
    assert flat.slope.mean == pytest.approx(-0.04 + 0.002)
    # Student's interval of -0.1, -0.098 and -0.096
    half = 4.302653 * 0.002 / 3**0.5
    assert steep.slope.low == pytest.approx(-0.098 - half)
    assert steep.slope.high == pytest.approx(-0.098 + half)
    assert [*steep.losses] == [12 * dim**2 for dim in DIMS]


def test_one_seed_has_no_interval():
    (steep, _) = fit_scaling(make_ladder(seeds=(0,)))
    assert steep.slope.mean == pytest.approx(-0.1)
    assert steep.slope.low is None


@pytest.mark.parametrize("spoil", ["two sizes", "accuracy", "no number"])
def test_other_comparisons_have_no_slope(spoil):
    found = make_ladder(DIMS[:2] if spoil == "two sizes" else DIMS)
    if spoil == "accuracy":
        found = replace(found, better="high")
    if spoil == "no number":
        found = replace(found, axes=(found.axes[0], replace(found.axes[1], settings=("a",) * 3)))
    assert fit_scaling(found) == []
    assert "## Scaling" not in format_comparison(found)


def test_slopes_stand_in_the_report_the_page_and_the_numbers():
    found = make_ladder()
    assert "| rope " in format_comparison(found).partition("## Scaling")[2]
    assert ">Scaling<" in render(found)
    assert describe_comparison(found)["scaling"]["rope"]["slope"]["mean"] == pytest.approx(-0.098)
