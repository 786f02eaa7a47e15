"""Intervals and corrected comparisons against scipy, and by simulation with fixed seeds."""

import numpy as np
import pytest
from scipy.stats import studentized_range

from zoo.comparison.statistics import (
    adjust_by_holm,
    compare_all,
    compare_named,
    excludes_zero,
    find_range,
    find_smallest_difference,
    measure_noise,
)


def simulate(rng, *, variants=20, seeds=3, gap=0.0, deviations=1.0):
    """Normal noise, seeds that shift all variants, and a first variant that is better by `gap`."""
    noise = rng.normal(size=(variants, seeds)) * np.broadcast_to(deviations, (variants,))[:, None]
    table = noise + 3 * rng.normal(size=seeds)
    table[0] += gap
    return {f"v{number}": dict(enumerate(row.tolist())) for number, row in enumerate(table)}


def compare(values):
    """Return the best variant, and those that are called worse."""
    first = max(values, key=lambda name: sum(values[name].values()))
    found = compare_all(values, first, measure_noise(values))
    return first, [name for name, one in found.items() if excludes_zero(one.estimate)]


@pytest.mark.parametrize(("count", "freedom"), [(2, 1), (3, 2), (20, 38)])
def test_the_studentized_range_is_that_of_scipy(count, freedom):
    expected = studentized_range.ppf(0.95, count, freedom)
    assert find_range(count, freedom) == pytest.approx(expected, rel=1e-3)


def test_of_equal_variants_none_is_called_worse_in_95_of_100_experiments():
    rng = np.random.default_rng(0)
    assert sum(not compare(simulate(rng))[1] for _ in range(100)) >= 95


def test_naive_intervals_would_call_equal_variants_worse():
    # what the correction is for: the same experiments, each pair by Student's t alone
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(100):
        values = simulate(rng)
        first = max(values, key=lambda name: sum(values[name].values()))
        noise = measure_noise(values)
        pairs = [(name, first) for name in values if name != first]
        alone = [compare_named(values, [pair], noise)[pair] for pair in pairs]
        wrong += any(one.p_value < 0.05 for one in alone)
    assert wrong > 50


def test_equal_variants_with_other_noise_are_not_called_worse_either():
    rng = np.random.default_rng(1)
    deviations = np.array([5.0] * 3 + [0.5] * 17)
    assert sum(not compare(simulate(rng, deviations=deviations))[1] for _ in range(20)) >= 19


def test_a_better_variant_is_found():
    rng = np.random.default_rng(2)
    found = [compare(simulate(rng, gap=5)) for _ in range(40)]
    worse = [len(names) / 19 for first, names in found if first == "v0"]
    assert len(worse) == 40
    assert np.mean(worse) > 0.9


def test_the_difference_that_can_be_seen_is_found_in_80_of_100_experiments():
    rng = np.random.default_rng(3)
    seen, power = [], 0
    for _ in range(60):
        values = simulate(rng, variants=6, seeds=4)
        seen.append(find_smallest_difference(values, measure_noise(values)))
    gap = float(np.mean(seen))
    for _ in range(100):
        power += "v1" in compare(simulate(rng, variants=6, seeds=4, gap=gap))[1]
    assert 65 <= power <= 92


def test_a_variant_at_its_ceiling_is_named_and_nothing_is_pooled():
    rng = np.random.default_rng(4)
    values = simulate(rng, variants=5) | {"full": dict.fromkeys(range(3), 1.0)}
    noise = measure_noise(values)
    assert noise.warning == "full is alike in all seeds, others are not"
    assert not noise.is_pooled


def test_pairs_by_themselves_are_corrected_for_all_pairs():
    values = {
        "a": {0: 1.0, 1: 1.0, 2: 1.0},
        "b": {0: 0.5, 1: 0.501, 2: 0.499},
        "c": {0: 0.7, 1: 1.0, 2: 0.9},
    }
    found = compare_all(values, "a", measure_noise(values))
    assert excludes_zero(found["b"].estimate)
    assert found["b"].p_value < 0.05
    assert not excludes_zero(found["c"].estimate)
    assert found["c"].p_value > 0.05


def test_seeds_that_are_missing_leave_the_others_paired():
    rng = np.random.default_rng(5)
    values = simulate(rng, variants=4, seeds=4, gap=12)
    del values["v1"][2]
    noise = measure_noise(values)
    found = compare_all(values, "v0", noise)
    assert found["v1"].estimate.count == 3
    expected = np.mean([values["v1"][seed] - values["v0"][seed] for seed in (0, 1, 3)])
    assert found["v1"].estimate.mean == pytest.approx(expected)
    assert noise.freedom <= 8


def test_holm_multiplies_by_what_is_left_and_never_decreases():
    assert adjust_by_holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert adjust_by_holm([0.01], family=4) == pytest.approx([0.04])
    assert adjust_by_holm([0.5, 0.6]) == [1.0, 1.0]


def test_two_variants_are_compared_as_by_the_paired_t_test():
    values = {"a": {0: 1.0, 1: 1.3, 2: 1.1}, "b": {0: 0.8, 1: 1.2, 2: 1.0}}
    noise = measure_noise(values)
    everything = compare_all(values, "a", noise)["b"]
    named = compare_named(values, [("b", "a")], noise)["b", "a"]
    assert everything.p_value == pytest.approx(named.p_value, rel=1e-2)
    assert everything.estimate.low == pytest.approx(named.estimate.low, rel=1e-3)
    assert named.p_value == pytest.approx(0.05719, rel=1e-3)  # scipy.stats.ttest_rel
