"""When a task was solved: steps, censored where training ended before."""

from dataclasses import replace

import numpy as np
import pytest
from comparisons import texts

from zoo.comparison.outputs import describe_comparison
from zoo.comparison.page.comparison_page import render
from zoo.comparison.results import StepsToSolve
from zoo.comparison.solving import compare_steps, find_steps_to_solve, rank_speeds
from zoo.comparison.text import format_comparison


def test_a_task_is_solved_at_the_first_validation_that_reaches_the_threshold():
    curve = [(100, 0.5), (200, float("nan")), (300, 0.95), (400, 0.9)]
    assert find_steps_to_solve(curve) == StepsToSolve(300, True)
    assert find_steps_to_solve(curve, threshold=0.99) == StepsToSolve(400, False)
    assert find_steps_to_solve([]) is None


def test_steps_are_compared_with_what_was_never_solved():
    fast = {study: StepsToSolve(100 + 10 * study, True) for study in range(8)}
    slow = {study: StepsToSolve(1000, False) for study in range(8)}
    assert compare_steps(fast, slow) < 0.001
    assert compare_steps(fast, fast) == pytest.approx(1)
    at_once = {study: StepsToSolve(100, True) for study in range(8)}
    assert compare_steps(at_once, at_once) == 1
    assert compare_steps(slow, slow) is None
    assert compare_steps(fast, {0: slow[0], 1: slow[1]}) is None


def test_equal_speeds_are_told_apart_in_5_of_100_experiments():
    rng = np.random.default_rng(4)
    wrong = 0
    for _ in range(400):
        both = []
        for _ in range(2):
            steps = rng.exponential(500, 12).astype(int) + 1
            both.append(
                {
                    study: StepsToSolve(min(int(step), 900), step <= 900)
                    for study, step in enumerate(steps)
                }
            )
        p_value = compare_steps(*both)
        wrong += p_value is not None and p_value < 0.05
    # 20 are expected; fewer than 7 or more than 35 have a probability of 0.1 %
    assert 7 <= wrong <= 35


# weeks of remission of 42 patients with leukaemia (Freireich et al. 1963); + is censored
PLACEBO = "1 1 2 2 3 4 4 5 5 8 8 8 8 11 11 12 12 15 17 22 23"
TREATED = "6 6 6 6+ 7 9+ 10 10+ 11+ 13 16 17+ 19+ 20+ 22 23 25+ 32+ 32+ 34+ 35+"


def read_weeks(text):
    return {
        number: StepsToSolve(int(word.rstrip("+")), not word.endswith("+"))
        for number, word in enumerate(text.split())
    }


def test_the_test_gives_what_textbooks_have_of_a_clinical_trial():
    # chi-squared is 16.79 with one degree of freedom, as R's survdiff has it
    p_value = compare_steps(read_weeks(PLACEBO), read_weeks(TREATED))
    assert p_value == pytest.approx(4.17e-5, rel=0.01)


def solve(comparison, steps):
    """A comparison whose variants need these steps, of which those from 3000 on are censored."""
    variants = []
    for one in comparison.variants:
        own = steps.get(one.name, ())
        cells = [
            replace(cell, steps_to_solve=StepsToSolve(min(step, 3000), step < 3000))
            for cell, step in zip(one.cells, own, strict=False)
        ]
        variants.append(replace(one, cells=tuple(cells) or one.cells))
    return replace(comparison, variants=tuple(variants))


def test_a_table_shows_who_solved_the_task_when_and_what_is_censored():
    steps = {
        "alibi": [300, 400, 350, 500, 450, 300],
        "rope": [2900, 3000, 3000, 2800, 3000, 3000],
        "learned": [3000] * 6,
    }
    found = solve(texts(seeds=range(6)), steps)
    fastest, *others = rank_speeds(found)
    assert (fastest.variant, fastest.median, fastest.p_value) == ("alibi", 350, None)
    assert [(one.variant, one.solved, one.median) for one in others] == [
        ("rope", 2, None),
        ("learned", 0, None),
    ]
    alone = compare_steps(fastest.steps, others[0].steps)
    assert others[0].p_value == pytest.approx(3 * alone)  # three pairs
    text = format_comparison(found)
    assert "## Steps to solve" in text
    row = next(line for line in text.splitlines() if "2900" in line)
    assert "2 of 6" in row
    assert "2900, > 3000, > 3000, 2800, > 3000, > 3000" in row
    assert describe_comparison(found)["steps_to_solve"]["learned"]["solved"] == 0
    assert "Steps to solve" in render(found)
    assert "## Steps to solve" not in format_comparison(texts())


def test_a_target_ranks_variants_by_steps_and_minutes():
    steps = {"alibi": [300, 400, 350], "rope": [600, 3000, 500], "learned": [3000] * 3}
    found = solve(texts(seeds=range(3)), steps)
    variants = tuple(
        replace(one, cells=tuple(replace(cell, steps=3000, minutes=6.0) for cell in one.cells))
        for one in found.variants
    )
    found = replace(found, variants=variants, target=1.5)
    text = format_comparison(found)
    assert "## Time to target" in text
    row = next(line for line in text.splitlines() if "> 3000, 500" in line)
    assert [one.strip() for one in row.strip("|").split("|")][:4] == [
        "rope",
        "2 of 3",
        "600",
        "1.1",
    ]
    assert "reached 1.5" in text
    assert describe_comparison(found)["steps_to_solve"]["alibi"]["minutes"] == pytest.approx(0.7)
    assert "Time to target" not in format_comparison(replace(found, target=None))


def test_a_low_target_is_reached_from_above():
    curve = [(100, 2.0), (200, float("nan")), (300, 1.4), (400, 1.6)]
    assert find_steps_to_solve(curve, 1.5, "low") == StepsToSolve(300, True)
    assert find_steps_to_solve(curve, 1.3, "low") == StepsToSolve(400, False)
