"""Ranking over several tasks: interquartile means, and what a bootstrap over seeds may claim."""

import json
from dataclasses import replace
from pathlib import Path

import comparisons
import numpy as np
import pytest
from scipy import stats

from zoo.cli import main
from zoo.comparison.overall import FILES, average_middle, rank_over_tasks, rank_scores
from zoo.errors import DataError

NAMES = [f"v{number}" for number in range(8)]


def draw_tasks(generator, levels, tasks=6, seeds=3):
    """Scores of tasks, with an effect of each seed that all variants share."""
    return [
        np.array(levels)[:, None]
        + generator.normal(0, 0.1, (1, seeds))
        + generator.normal(0, 0.03, (len(levels), seeds))
        for _ in range(tasks)
    ]


def test_the_interquartile_mean_is_that_of_scipy():
    scores = np.random.default_rng(0).normal(size=(3, 18))
    assert average_middle(scores) == pytest.approx(stats.trim_mean(scores, 0.25, axis=1))


def test_of_equal_variants_none_is_called_worse_in_95_of_100_experiments():
    wrong = 0
    for number in range(100):
        tasks = draw_tasks(np.random.default_rng(number), [0.5] * 8)
        wrong += any(not one.may_be_best for one in rank_scores(tasks, NAMES, resamples=400))
    assert wrong <= 9  # 5 are expected; 10 or more have a probability of 3 %


def test_intervals_hold_the_true_mean():
    held = 0
    for number in range(100):
        generator = np.random.default_rng([1, number])
        tasks = [0.5 + generator.normal(0, 0.05, (2, 3)) for _ in range(6)]
        found = rank_scores(tasks, NAMES[:2], resamples=400)
        held += found[0].interval[0] <= 0.5 <= found[0].interval[1]
    assert held >= 88


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
    (folder / "results.json").write_text(json.dumps(comparison.plain()))
    return str(folder)


def test_folders_are_ranked_with_table_json_page_and_figure(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tuned = replace(with_baseline(0.8), tuning={"budget": 8})
    paths = [write(tmp_path / "a", with_baseline(0.9)), write(tmp_path / "b", tuned)]
    beaten = write(tmp_path / "c", with_baseline(0.9999))
    code = main(["compare", f"rank=[{','.join([*paths, beaten])}]", "to=overall"])
    out = capsys.readouterr().out
    assert code == 0
    assert "# Over 2 tasks" in out
    assert "c: no model beats the baseline regression" in out
    assert "Untuned: a. A verdict may follow from settings" in out
    assert [
        one["is_tuned"] for one in json.loads(Path("overall/overall.json").read_text())["tasks"]
    ] == [False, True]
    assert "liere: lacks values in" in out  # a seed of it failed
    for name in FILES:
        assert (tmp_path / "overall" / name).stat().st_size > 500
    found = json.loads(Path("overall/overall.json").read_text())
    assert found["standings"][0]["variant"] == "comrope_ld"
    assert [one["is_tuned"] for one in found["tasks"]] == [False, True]
    assert found["tasks"][0]["scores"]["comrope_ld"][0] == pytest.approx(1, abs=0.2)
    assert "Interquartile means" in Path("overall/overall.html").read_text()
    assert main(["compare", f"rank=[{','.join([*paths, beaten])}]", "to=again"]) == 0
    assert Path("again/overall.md").read_text().split("Repeat")[0] == out.split("Repeat")[0]


def test_what_cannot_be_ranked_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"holds no results\.json"):
        rank_over_tasks([str(tmp_path)], "")
    one = write(tmp_path / "a", with_baseline(0.9))
    with pytest.raises(DataError, match="needs two comparisons"):
        rank_over_tasks([one], "")
