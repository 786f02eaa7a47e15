"""Claims are judged by what the task can show: room, drops, training to the end, equality."""

import math
from dataclasses import replace

import pytest
from comparisons import images, replace_metrics

from zoo.comparison.claims import count_family, judge_claim, judge_comparison
from zoo.comparison.results import RecordedHypothesis, StepsToSolve
from zoo.comparison.solving import SolvedCount
from zoo.comparison.statistics import Pair, compare_equality, measure_noise
from zoo.comparison.text import format_comparison
from zoo.comparison.training_end import list_steep

TRAINED, LARGER = "trained", "32"
NOISE = (0.002, -0.001, 0.0015, -0.002, -0.0005)


def write(text, runs_ended=0):
    return RecordedHypothesis(text=text, written="2026-01-01 00:00 UTC", runs_ended=runs_ended)


def make(levels, *texts, larger=None, baseline=None, solvable=False, late=False):
    """Five seeds of variants at these levels, {variant: level or values}, with small noise."""
    found = images(seeds=range(5), levels=dict.fromkeys(levels, 0.5))
    variants = []
    for number, variant in enumerate(found.variants):
        cells = []
        for seed, cell in enumerate(variant.cells):
            turn = seed * (number + 1) + number
            values = {
                where: own[seed] if isinstance(own, tuple) else own + NOISE[(turn + place) % 5]
                for place, (where, own) in enumerate(
                    ((TRAINED, levels[variant.name]), (LARGER, (larger or levels)[variant.name]))
                )
            }
            metrics = {where: {"test/accuracy": value} for where, value in values.items()}
            cell = replace_metrics(cell, metrics)
            if solvable:
                cell = replace(cell, steps_to_solve=StepsToSolve(10, True))
            if baseline is not None:
                cell = replace(cell, baselines={"test/accuracy": {"guess": baseline}})
            cells.append(cell)
        variants.append(replace(variant, cells=tuple(cells), flags=()))
    return replace(
        found,
        variants=tuple(variants),
        conditions=(found.trained, found.find_condition(LARGER)),
        hypotheses=tuple(write(text, 9 * late) for text in texts),
        looks=((3, 0.995), (5, 0.955)),
    )


def judge(comparison):
    (judged,) = judge_comparison(comparison)
    return judged


def test_a_variant_that_is_better_everywhere_by_the_same_holds_nothing_at_larger_sizes():
    levels = {"a": 0.8, "b": 0.6}
    same = judge(make(levels, "a > b at 32", larger={"a": 0.5, "b": 0.3}))
    assert same.verdict == "undecided"
    assert "`a` is better there, but the drops from 16 pixels do not differ so" in same.reason
    # it falls more, and is still better
    more = judge(make(levels, "a > b at 32", larger={"a": 0.5, "b": 0.4}))
    assert more.verdict == "undecided"
    assert more.estimate.low > 0 > more.drop.high
    assert judge(make(levels, "a > b at 32", larger={"a": 0.7, "b": 0.3})).verdict == "held"
    equal = make({"a": 0.8, "b": 0.8}, "a > b at 32", larger={"a": 0.7, "b": 0.3})
    assert judge(equal).verdict == "held"
    assert judge(make(levels, "a > b")).verdict == "held"


def test_an_effect_without_room_cannot_be_asked():
    found = make({"a": 0.99, "b": 0.985}, "a > b by 0.1")
    judged = judge(found)
    assert judged.verdict == "our task cannot ask this"
    assert 0.015 <= judged.room.headroom < 0.02  # the upper end of what b's interval allows
    # with room for it, the interval leaves the effect out
    assert judge(make({"a": 0.7, "b": 0.695}, "a > b by 0.1")).verdict == "smaller than claimed"
    full = make({"a": (1.0,) * 5, "b": (1.0,) * 5}, "a > b")
    assert judge(full).verdict == "our task cannot ask this"


def test_two_models_at_chance_are_no_evidence():
    found = make({"a": 0.4, "b": 0.3, "c": 0.9}, "a > b", "c > b", baseline=0.5)
    chance, one_learns = judge_comparison(found)
    assert chance.verdict == "no evidence yet"
    assert chance.reason == "neither variant beats the baseline: guess"
    assert one_learns.verdict == "held"


def test_a_comparison_that_was_not_trained_to_the_end_gives_no_verdict():
    found = make({"a": 0.8, "b": 0.6, "c": 0.5}, "a > b")
    assert judge(found).verdict == "held"
    assert "worse" in format_comparison(found).partition("## ")[0]
    for curve in (((10, 0.9), (20, 0.8)), ((40, 0.8),)):
        *others, last = found.variants
        last = replace(last, cells=tuple(replace(cell, curve=curve) for cell in last.cells))
        steep = replace(found, variants=(*others, last))
        assert list_steep(steep) == ["c"]
        assert judge(steep).verdict == "not trained to the end"
        text = format_comparison(steep)
        assert text.splitlines()[2].startswith("**No verdict: `c` was not trained to the end.")
        assert "worse" not in text


def test_equality_is_found_within_a_margin_that_was_written_before():
    text = "a = b within 0.02 because seven samples of 360 are 0.02"
    assert judge(make({"a": 0.7, "b": 0.7}, text)).verdict == "equal within"
    assert judge(make({"a": 0.8, "b": 0.7}, text)).verdict == "not equal"
    assert judge(make({"a": 0.6, "b": 0.7}, text)).verdict == "not equal"
    assert judge(make({"a": 0.7, "b": 0.682}, text)).verdict == "undecided"
    late = judge(make({"a": 0.7, "b": 0.7}, text, late=True))
    assert late.verdict == "undecided"
    assert "its margin was written after the result" in late.reason
    assert judge(make({"a": 0.99, "b": 0.99}, text)).verdict == "our task cannot ask this"


def test_two_one_sided_tests_agree_with_the_interval_of_twice_the_level():
    """Schuirmann: both reject at 5 % exactly where the 90 % interval lies within the margin."""
    differences = (0.01, 0.03, 0.02, 0.05, 0.015)
    values = {"a": dict(enumerate(differences)), "b": dict.fromkeys(range(5), 0.0)}
    noise = measure_noise(values)
    found = compare_equality(values, Pair("a", "b", 0.5), noise, family=1)
    reached = found.estimate.high
    for margin, is_equal in ((1.01 * reached, True), (0.99 * reached, False)):
        assert (
            compare_equality(values, Pair("a", "b", margin), noise, family=1).is_equal == is_equal
        )
    mean = sum(differences) / 5
    deviation = math.sqrt(sum((one - mean) ** 2 for one in differences) / 4)
    assert reached == pytest.approx(mean + 2.131847 * deviation / math.sqrt(5), rel=1e-5)


def test_absence_on_a_task_that_is_solved_or_not_states_the_excluded_rate():
    found = make({"a": 0.99, "b": 0.985}, "a > b by 0.1", solvable=True)
    judged = judge(found)
    assert "`b` solved 5 of 5, which excludes a failure rate of 0.45 or more" in judged.reason
    # n >= ln 0.05 / ln(1 - q)
    for count, rate in ((3, 0.63), (9, 0.28), (14, 0.19)):
        excluded = SolvedCount(count, count).excluded_rate
        assert excluded == pytest.approx(rate, abs=0.005)
        assert count == pytest.approx(math.log(0.05) / math.log(1 - excluded))
    assert SolvedCount(2, 3).excluded_rate > SolvedCount(3, 3).excluded_rate


def test_split_seeds_have_no_interval_but_a_count():
    split = {"a": (1.0, 0.99, 0.2, 1.0, 0.25), "b": 0.6}
    text = format_comparison(make(split, solvable=True))
    assert "0.688 (solved 3 of 5)" in text
    assert "0.688 (solved" not in format_comparison(make(split))
    # graded values are not split
    graded = {"a": (1.0, 0.97, 0.94, 0.99, 0.9), "b": 0.6}
    assert "solved" not in format_comparison(make(graded, solvable=True)).partition("##")[0]


def test_a_later_hypothesis_does_not_widen_earlier_ones():
    found = make({"a": 0.8, "b": 0.6}, "a > b", "b < a")
    grown = replace(found, hypotheses=(*found.hypotheses, write("a > b at 32", 8)))
    assert [count_family(grown, one.text) for one in grown.hypotheses] == [2, 2, 3]
    assert count_family(grown, "b > a") == 4
    late = judge_claim("a > b at 32", grown, family=3)
    assert "written after the result: after 8 runs had ended" in late.reason
    assert judge_claim("b > a", grown).reason == "after 5 seeds, written after the result"


def test_power_stands_with_every_verdict_that_decides_nothing():
    undecided = judge(make({"a": 0.7, "b": 0.6995}, "a > b"))
    assert undecided.verdict == "undecided"
    assert f"80 % power for a difference of {undecided.power}" in undecided.explanation
    assert "power" not in judge(make({"a": 0.8, "b": 0.6}, "a > b")).explanation
