"""When a task was solved: steps, censored where training ended before."""

import numpy as np
import pytest

from zoo.comparison.results import StepsToSolve
from zoo.comparison.solving import compare_steps, find_steps_to_solve


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
