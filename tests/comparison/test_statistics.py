"""Intervals and corrected comparisons against scipy, and by simulation with fixed seeds.

Of 2,000 experiments 5 % are expected to be wrong; more than 6.5 % have a probability of 0.2 %.
"""

import numpy as np
import pytest
from scipy.stats import permutation_test, studentized_range

from zoo.comparison import statistics
from zoo.comparison.statistics import (
    Pair,
    Permutation,
    compare_all,
    compare_named,
    estimate_mean,
    excludes_zero,
    explain_no_interval,
    find_range,
    find_samples,
    find_smallest_difference,
    measure_noise,
    permute,
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


def count_wrong(seed, draws, **layout):
    rng = np.random.default_rng(seed)
    return sum(bool(compare(simulate(rng, **layout))[1]) for _ in range(draws))


@pytest.mark.parametrize(
    ("variants", "seeds", "deviations"), [(3, 3, 1.0), (10, 3, 1.0), (10, 3, [5.0] + [1.0] * 9)]
)
def test_equal_variants_are_called_worse_in_5_of_100_experiments_at_most(
    variants, seeds, deviations
):
    layout = {"variants": variants, "seeds": seeds, "deviations": deviations}
    assert count_wrong(0, 2000, **layout) <= 130


def test_naive_intervals_would_call_equal_variants_worse():
    # what the correction is for: the same experiments, each pair by Student's t alone
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(100):
        values = simulate(rng, seeds=5)
        first = max(values, key=lambda name: sum(values[name].values()))
        noise = measure_noise(values)
        pairs = [Pair(name, first) for name in values if name != first]
        alone = [compare_named(values, [pair], noise)[pair] for pair in pairs]
        wrong += any(one.p_value < 0.05 for one in alone)
    assert wrong > 30


def test_named_intervals_hold_all_true_differences_at_once():
    rng = np.random.default_rng(6)
    pairs = [Pair("v0", f"v{number}", margin=0.5) for number in range(1, 6)]
    held = 0
    for _ in range(2000):
        values = simulate(rng, variants=6, seeds=3, gap=1.0, deviations=[3.0] + [1.0] * 5)
        found = compare_named(values, pairs, measure_noise(values)).values()
        held += all(one.estimate.low <= 0.5 <= one.estimate.high for one in found)
    assert held >= 1870


def test_a_better_variant_is_found():
    rng = np.random.default_rng(2)
    found = [compare(simulate(rng, seeds=5, gap=6)) for _ in range(40)]
    worse = [len(names) / 19 for first, names in found if first == "v0"]
    assert len(worse) == 40
    assert np.mean(worse) > 0.9


def test_the_difference_that_can_be_seen_is_found_in_80_of_100_experiments():
    rng = np.random.default_rng(3)
    seen, power = [], 0
    for _ in range(60):
        values = simulate(rng, variants=6, seeds=5)
        seen.append(find_smallest_difference(values, measure_noise(values)))
    gap = float(np.mean(seen))
    for _ in range(100):
        power += "v1" in compare(simulate(rng, variants=6, seeds=5, gap=gap))[1]
    assert 65 <= power <= 92


def test_a_variant_at_its_ceiling_is_named():
    rng = np.random.default_rng(4)
    values = simulate(rng, variants=5) | {"full": dict.fromkeys(range(3), 1.0)}
    assert measure_noise(values).warning == "`full` has the same value for all seeds"
    values["capped"] = values["full"]
    assert (
        measure_noise(values).warning == "`full`, `capped` each have the same value for all seeds"
    )


def test_a_variant_that_varies_more_is_named():
    values = simulate(np.random.default_rng(4), seeds=5, deviations=[9.0] + [1.0] * 19)
    assert measure_noise(values).warning == "`v0` varies more from seed to seed than the others"


def test_pairs_of_three_variants_are_corrected_for_all_pairs():
    values = {
        "a": {0: 1.0, 1: 1.0, 2: 1.0},
        "b": {0: 0.1, 1: 0.1123, 2: 0.1045},
        "c": {0: 0.95, 1: 1.0, 2: 0.98},
    }
    found = compare_all(values, "a", measure_noise(values))
    assert excludes_zero(found["b"].estimate)
    assert found["b"].p_value < 0.05
    assert not excludes_zero(found["c"].estimate)
    assert found["c"].p_value > 0.05


def test_two_values_have_no_interval_even_if_they_agree():
    found = estimate_mean([0.549, 0.549])
    assert (found.mean, found.low, found.high, found.count) == (0.549, None, None, 2)
    values = {name: {0: 1.0, 1: 1.0} for name in "abcd"} | {"e": {0: 0.5, 1: 0.5, 2: 0.5}}
    differences = compare_all(values, "a", measure_noise(values)).values()
    assert all(one.estimate.low is None and one.p_value is None for one in differences)
    assert find_smallest_difference(values, measure_noise(values)) is None


def test_variances_are_those_of_each_variant():
    rng = np.random.default_rng(7)
    deviations = np.array([0.0, 1.0, 2.0, 4.0, 1.0])
    values = simulate(rng, variants=5, seeds=4000, deviations=deviations)
    found = [*measure_noise(values).variances.values()]
    assert found == pytest.approx(deviations**2, rel=0.1, abs=0.05)


def test_variances_without_some_values_are_close_to_those_with_all():
    values = simulate(np.random.default_rng(8), variants=5, seeds=60, deviations=[1, 2, 3, 1, 1])
    complete = measure_noise(values).variances
    del values["v1"][2], values["v3"][7]
    found = measure_noise(values)
    assert found.variances == pytest.approx(complete, rel=0.15)
    assert found.freedom == 4 * 59 - 2


def test_seeds_that_are_missing_leave_the_others_paired():
    rng = np.random.default_rng(5)
    values = simulate(rng, variants=4, seeds=4, gap=12)
    del values["v1"][2]
    noise = measure_noise(values)
    found = compare_all(values, "v0", noise)
    assert found["v1"].estimate.count == 3
    expected = np.mean([values["v1"][seed] - values["v0"][seed] for seed in (0, 1, 3)])
    assert found["v1"].estimate.mean == pytest.approx(expected)
    assert noise.freedom == 8


def test_named_pairs_are_corrected_for_their_family():
    values = simulate(np.random.default_rng(9), variants=4, gap=20)
    noise, pair = measure_noise(values), Pair("v0", "v1")
    alone = compare_named(values, [pair], noise)[pair]
    of_four = compare_named(values, [pair], noise, family=4)[pair]
    assert of_four.p_value == pytest.approx(4 * alone.p_value)
    assert of_four.estimate.low < alone.estimate.low


def test_two_variants_are_compared_as_by_the_paired_t_test():
    values = {"a": {0: 1.0, 1: 1.3, 2: 1.1}, "b": {0: 0.8, 1: 1.2, 2: 1.0}}
    noise = measure_noise(values)
    everything = compare_all(values, "a", noise)["b"]
    named = compare_named(values, [Pair("b", "a")], noise)[Pair("b", "a")]
    assert everything.p_value == pytest.approx(named.p_value, rel=1e-2)
    assert everything.estimate.low == pytest.approx(named.estimate.low, rel=1e-3)
    assert named.p_value == pytest.approx(0.05719, rel=1e-3)  # scipy.stats.ttest_rel


def test_permutations_are_those_of_scipy():
    rng = np.random.default_rng(11)
    first, second = rng.normal(size=(2, 4))
    expected = permutation_test(
        (first, second), lambda a, b: a.mean() - b.mean(), n_resamples=np.inf
    )
    found = permute(tuple(first), tuple(second))
    assert found.p_value == pytest.approx(expected.pvalue)
    assert (found.smallest, found.can_decide) == (pytest.approx(2 / 70), True)


@pytest.mark.parametrize(("count", "smallest"), [(3, 0.1), (5, 0.0079)])
def test_the_smallest_p_of_permutations(count, smallest):
    found = permute((0.0,) * count, (1.0,) * count)
    assert found.p_value == found.smallest == pytest.approx(smallest, abs=1e-4)


@pytest.mark.parametrize(
    ("p_value", "smallest", "is_decided"),
    [(0.01, 0.008, True), (0.2, 0.008, False), (0.1, 0.1, True)],
)
def test_permutations_must_confirm_what_t_finds_where_they_can(
    monkeypatch, p_value, smallest, is_decided
):
    monkeypatch.setattr(statistics, "permute", lambda *values: Permutation(p_value, smallest))
    values = {"a": {0: 9.1, 1: 8.0, 2: 7.2}, "b": {0: 1.0, 1: 0.1, 2: -0.8}}
    (found,) = compare_named(values, [Pair("a", "b")], measure_noise(values)).values()
    assert excludes_zero(found.estimate) is is_decided
    assert (found.p_value < 0.05) is is_decided
    assert found.permutation.smallest == smallest


def test_assignments_that_are_drawn_can_be_no_rarer_than_their_number():
    found = permute(tuple(map(float, range(18))), tuple(map(float, range(100, 118))))
    assert found.p_value == found.smallest == pytest.approx(1e-4)
    # of a thousand pairs such a p-value is not fine enough to be corrected for them
    assert not any(found.contradicts(family) for family in (1, 28, 1000))


@pytest.mark.parametrize(
    ("count", "reason"), [(2, "fewer than three seeds"), (3, "differ by the same in all 3 seeds")]
)
def test_a_pair_without_an_interval_is_explained(count, reason):
    assert reason in explain_no_interval(count, "seeds")


def test_equal_differences_have_no_interval_and_no_verdict():
    values = {"a": {0: 0.9, 1: 0.8, 2: 0.7}, "b": {0: 0.8, 1: 0.7, 2: 0.6}}
    estimate = compare_all(values, "a", measure_noise(values))["b"].estimate
    assert (estimate.low, estimate.high, estimate.count) == (None, None, 3)
    assert not excludes_zero(estimate)


@pytest.mark.parametrize(
    ("variants", "seeds", "is_judged"), [(5, 3, True), (6, 4, False), (6, 5, True)]
)
def test_six_variants_need_five_seeds(variants, seeds, is_judged):
    values = simulate(np.random.default_rng(12), variants=variants, seeds=seeds, gap=1000.0)
    found = compare_all(values, "v0", measure_noise(values)).values()
    assert {one.estimate.low is not None for one in found} == {is_judged}


@pytest.mark.parametrize(
    ("values", "samples"),
    [
        ([358 / 359, 1.0, 343 / 359], 359),
        ([float(np.float32(count / 10_000)) for count in (9911, 9923, 17)], 10_000),
        ([0.5, 1.0, 0.25], 4),
        ([0.693147, 0.512934, 0.918273], None),
        ([1.5, 0.5], None),
    ],
)
def test_the_number_of_test_samples_follows_from_shares(values, samples):
    assert find_samples(values) == samples


def test_one_sample_apart_at_the_ceiling_is_no_verdict():
    full, less = 1.0, 358 / 359
    values = {
        "a": dict.fromkeys(range(3), full),
        "b": {0: less, 1: less, 2: 357 / 359},
        "c": {0: full, 1: less, 2: full},
    }
    found = compare_all(values, "a", measure_noise(values))
    assert not any(excludes_zero(one.estimate) for one in found.values())


@pytest.mark.parametrize("share", [0.5, 0.7, 0.95])
@pytest.mark.parametrize("variants", [2, 4, 8])
def test_equal_variants_whose_seeds_split_are_seldom_called_worse(share, variants):
    rng = np.random.default_rng([13, variants])
    wrong = 0
    for _ in range(200):
        solved = rng.random((variants, 3)) < share
        table = np.where(solved, 0.98, 0.55) + 0.005 * rng.normal(size=solved.shape)
        values = {f"v{number}": dict(enumerate(row)) for number, row in enumerate(table.tolist())}
        wrong += bool(compare(values)[1])
    # 10 are expected at most; more than 20 have a probability of 0.1 %
    assert wrong <= 20
