"""Looks at a running comparison: who is dropped, which claims stop, and how fast a task is solved."""

import numpy as np
import pytest

from zoo.comparison.racing import (
    LOOKS,
    Claim,
    StepsToSolve,
    compare_steps,
    decide,
    find_steps_to_solve,
    judge_claims,
)


def draw(rng, levels, studies, deviation=0.02):
    """Values of variants that share the effect of each study."""
    shared = rng.normal(0, 0.1, studies)
    return {
        name: dict(enumerate((level + shared + rng.normal(0, deviation, studies)).tolist()))
        for name, level in levels.items()
    }


def race(values, better="high"):
    """Return the names that each look dropped, as a comparison would go through them."""
    running, dropped = [*values], {}
    for look in LOOKS:
        seen = {
            name: {study: value for study, value in own.items() if study < look}
            for name, own in values.items()
        }
        decision = decide(seen, running, better=better)
        assert decision.look == look
        dropped |= {one.variant: look for one in decision.dropped}
        running = [*decision.running]
        if decision.is_over:
            break
    return dropped


def test_a_beaten_variant_is_dropped_and_the_others_run_on():
    values = draw(np.random.default_rng(0), {"a": 0.9, "b": 0.89, "c": 0.9, "d": 0.4}, 3)
    decision = decide(values, [*values], better="high")
    [gone] = decision.dropped
    assert (decision.look, gone.variant) == (3, "d")
    assert gone.estimate.mean == pytest.approx(0.5, abs=0.1)
    assert gone.reason.startswith(f"worse than `{decision.best}` by 0.5")
    assert {*decision.running} == {"a", "b", "c"}
    assert not decision.is_over


def test_of_losses_the_higher_is_dropped():
    values = draw(np.random.default_rng(0), {"a": 1.0, "b": 1.0, "c": 1.0, "d": 3.0}, 5)
    assert [one.variant for one in decide(values, [*values], better="low").dropped] == ["d"]


def test_nothing_is_decided_between_looks():
    values = draw(np.random.default_rng(0), {"a": 0.9, "b": 0.1, "c": 0.9, "d": 0.4}, 4)
    decision = decide(values, [*values], better="high")
    assert (decision.look, decision.dropped) == (0, ())
    assert {*decision.running} == {*values}


def test_dropped_variants_do_not_hold_back_a_look():
    rng = np.random.default_rng(0)
    values = draw(rng, {"a": 0.9, "b": 0.88, "c": 0.4}, 5)
    values["c"] = {study: values["c"][study] for study in range(3)}
    decision = decide(values, ["a", "b"], better="high")
    assert decision.look == 5
    assert {*decision.running} == {"a", "b"}


def test_equal_variants_are_seldom_dropped_over_all_looks():
    rng = np.random.default_rng(1)
    levels = dict.fromkeys("abcdef", 0.5)
    wrong = sum(bool(race(draw(rng, levels, LOOKS[-1]))) for _ in range(300))
    # 15 are expected at most; more than 25 have a probability of 1 %
    assert wrong <= 25


def test_the_best_is_hardly_ever_dropped():
    rng = np.random.default_rng(2)
    levels = dict.fromkeys("abcdef", 0.5) | {"best": 0.53}
    lost = sum("best" in race(draw(rng, levels, LOOKS[-1])) for _ in range(300))
    assert lost <= 9  # 3 %


@pytest.mark.parametrize(
    ("gap", "effect", "verdict"),
    [
        (0.2, 0.0, "held"),
        (0.2, 0.2, "held"),
        (0.05, 0.3, "smaller than the paper's"),
        (0.0, 0.3, "smaller than the paper's"),
        (-0.2, 0.3, "reversed"),
        (0.0, 0.0, "undecided"),
    ],
)
@pytest.mark.parametrize("better", ["high", "low"])
def test_a_claim_is_judged_by_its_interval(gap, effect, verdict, better):
    sign = 1 if better == "high" else -1
    values = draw(np.random.default_rng(3), {"a": 0.5 + sign * gap, "b": 0.5}, 8)
    [found] = judge_claims(values, [Claim("a", "b", effect)], better=better)
    assert found.verdict == verdict
    assert found.estimate.mean == pytest.approx(gap, abs=0.03)


def test_a_claim_about_two_studies_or_an_absent_variant_is_undecided():
    values = draw(np.random.default_rng(3), {"a": 0.9, "b": 0.1}, 2)
    claims = [Claim("a", "b"), Claim("a", "absent")]
    found = judge_claims(values, claims, better="high")
    assert [(one.verdict, one.estimate) for one in found] == [("undecided", None)] * 2


def test_more_claims_have_wider_intervals():
    values = draw(np.random.default_rng(3), {"a": 0.6, "b": 0.5, "c": 0.5}, 8)
    [alone] = judge_claims(values, [Claim("a", "b")], better="high")
    first, _ = judge_claims(values, [Claim("a", "b"), Claim("a", "c")], better="high")
    assert first.estimate.low < alone.estimate.low
    [open_still] = judge_claims(values, [Claim("a", "b")], better="high", family=2)
    assert open_still.estimate == first.estimate


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
