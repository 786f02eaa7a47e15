"""Ranking over several tasks, and what the differences of seeds may claim.

Of 2,000 experiments 5 % are expected to be wrong; more than 6.5 % have a probability of 0.2 %.
"""

import json
from dataclasses import replace
from pathlib import Path

import comparisons
import numpy as np
import pandas
import pytest
from latex import read_table

import zoo
from zoo.cli import main
from zoo.comparison.overall import (
    build_report,
    build_result_table,
    rank_over_tasks,
    rank_scores,
    rank_tasks,
)
from zoo.comparison.results import RaceResult, StoppedVariant, StudiesResult
from zoo.errors import DataError
from zoo.reporting.sections import format_report

NAMES = [f"v{number}" for number in range(8)]


def draw_tasks(generator, levels, tasks=6, seeds=3):
    """Scores of tasks, with an effect of each seed that all variants share."""
    return [
        np.array(levels)[:, None]
        + generator.normal(0, 0.1, (1, seeds))
        + generator.normal(0, 0.03, (len(levels), seeds))
        for _ in range(tasks)
    ]


def normalize(scores):
    """Give the best variant the score 1 and the last the score 0, as without baselines."""
    means = scores.mean(1)
    return (scores - means.min()) / np.ptp(means)


@pytest.mark.parametrize(
    ("variants", "seeds", "tasks", "scales"),
    [
        (2, 3, 7, 1),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in ((10, 5, 3, 10), (10, 3, 2, 1), (10, 3, 7, 1), (2, 3, 4, 10), (5, 3, 4, 10))
        ),
    ],
)
def test_equal_variants_are_called_worse_in_5_of_100_experiments_at_most(
    variants, seeds, tasks, scales
):
    # scales: how many times as large the noise of the first task is, where scores span it
    generator = np.random.default_rng(0)
    names = [f"v{number}" for number in range(variants)]
    wrong = 0
    for _ in range(2000):
        drawn = draw_tasks(generator, [0.5] * variants, tasks, seeds)
        drawn = [normalize(one) for one in drawn] if scales == 1 else drawn
        drawn[0] = scales * drawn[0]
        wrong += any(not one.may_be_best for one in rank_scores(drawn, names))
    assert wrong <= 130


def test_intervals_hold_the_true_mean():
    held = 0
    generator = np.random.default_rng(1)
    for _ in range(2000):
        tasks = [0.5 + generator.normal(0, 0.05, (2, 3)) for _ in range(6)]
        found = {one.variant: one for one in rank_scores(tasks, NAMES[:2])}
        held += found["v0"].interval[0] <= 0.5 <= found["v0"].interval[1]
    assert held >= 1870


def test_a_better_variant_is_found_and_first_in_rank():
    tasks = draw_tasks(np.random.default_rng(0), [0.5] * 7 + [0.7])
    first, *others = rank_scores(tasks, NAMES)
    assert (first.variant, first.mean_rank) == ("v7", 1.0)
    assert not any(one.may_be_best for one in others)
    assert all(one.difference_interval[1] < 0 for one in others)


def with_baseline(value):
    made = comparisons.images()
    baselines = {"test/accuracy": {"regression": value}}
    variants = [
        replace(one, cells=tuple(replace(cell, baselines=baselines) for cell in one.cells))
        for one in made.variants
    ]
    return replace(made, variants=tuple(variants))


def write(folder, comparison):
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps(comparison.to_dict()))
    return str(folder)


def test_folders_are_ranked_with_table_json_page_and_figure(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    studies = StudiesResult(budget=8, criterion="val/loss", better="low", keys=(), variants={})
    tuned = replace(with_baseline(0.8), studies=studies)
    paths = [write(tmp_path / "a", with_baseline(0.9)), write(tmp_path / "b", tuned)]
    beaten = write(tmp_path / "c", with_baseline(0.9999))
    code = main(["compare", "rank", *paths, beaten, "to=overall"])
    out = capsys.readouterr().out
    assert code == 0
    assert out.startswith("# Which variant, over 2 tasks?\n")
    assert "c: no model beats the baseline regression" in out
    assert "Untuned: a. A verdict may follow from settings" in out
    assert [
        one["is_tuned"] for one in json.loads(Path("overall/overall.json").read_text())["tasks"]
    ] == [False, True]
    assert "liere: lacks values in" in out  # a seed of it failed
    for suffix in ("json", "md", "html", "png", "svg", "pdf"):
        assert (tmp_path / f"overall/overall.{suffix}").stat().st_size > 500
    _, _, rows = read_table(Path("overall/table.tex").read_text())
    # another variant may be best
    assert rows[0][:2] == ["comrope\\_ld", ("1.000", "", "")]
    exact = pandas.read_csv("overall/table.csv")
    assert exact["variant"][0] == "comrope_ld"
    assert exact["mean score low"][0] < 1
    found = json.loads(Path("overall/overall.json").read_text())
    assert found["standings"][0]["variant"] == "comrope_ld"
    assert [one["is_tuned"] for one in found["tasks"]] == [False, True]
    assert found["tasks"][0]["scores"]["comrope_ld"][0] == pytest.approx(1, abs=0.2)
    assert "Mean scores" in Path("overall/overall.html").read_text()
    assert out.endswith(f"Repeat it with: zoo compare rank {' '.join(paths)} {beaten} to=overall\n")
    again = zoo.rank_comparisons([*paths, beaten], to="again", verbose=False)
    assert again.to_dict()["standings"] == found["standings"]
    (bars, means) = again.chart().to_dict(validate=False)["layer"]
    assert (bars["mark"]["type"], means["mark"]["type"]) == ("rule", "circle")
    assert Path("again/overall.md").read_text().split("Repeat")[0] == out.split("Repeat")[0]
    with pytest.raises(zoo.RecipeError, match="too: unknown key; did you mean to"):
        zoo.rank_comparisons(paths, too="again", verbose=False)


def test_a_task_that_was_not_trained_to_the_end_leaves_no_verdict(tmp_path):
    trained = with_baseline(0.5)
    steep = [
        replace(one, cells=tuple(replace(cell, curve=((10, 0.9), (20, 0.8))) for cell in one.cells))
        for one in trained.variants[:1]
    ]
    unfinished = replace(trained, variants=(*steep, *trained.variants[1:]))
    ended = rank_tasks({"a": trained, "b": trained}, "")
    text = format_report(build_report(ended))
    assert "worse" in text
    assert "No verdict" not in text
    open_still = rank_tasks({"a": trained, "b": unfinished}, "")
    text = format_report(build_report(open_still))
    assert text.splitlines()[2] == "**No verdict: b: `none` was not trained to the end.**"
    assert "| worse" not in text
    assert [row.values[0].mark for row in build_result_table(open_still).rows] == [""] * 5
    assert "worse" in [row.values[0].mark for row in build_result_table(ended).rows]


def test_a_variant_that_a_race_stopped_is_left_out_as_such(tmp_path):
    stopped = StoppedVariant(
        variant="liere",
        look=3,
        other="comrope_ld",
        difference=-0.1,
        low=-0.2,
        high=0.0,
        p_value=0.01,
    )
    raced = replace(
        with_baseline(0.9), race=RaceResult(measure="accuracy", level=0.99, stopped=(stopped,))
    )
    paths = [write(tmp_path / "a", with_baseline(0.9)), write(tmp_path / "b", raced)]
    found = rank_over_tasks(paths, "")
    assert found.left_out == (
        f"liere: was stopped by the race in {paths[1]} and lacks values in {paths[0]}",
    )


def test_what_cannot_be_ranked_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"holds no results\.json"):
        rank_over_tasks([str(tmp_path)], "")
    one = write(tmp_path / "a", with_baseline(0.9))
    with pytest.raises(DataError, match="needs two comparisons"):
        rank_over_tasks([one], "")
