"""Sentences that answer a comparison, from numbers made by hand."""

from dataclasses import replace

import comparisons
import pytest

from zoo.comparison.curves import find_side
from zoo.comparison.number_text import count_decimals
from zoo.comparison.ranking import rank_variants
from zoo.comparison.results import ComparisonCell, Flag
from zoo.comparison.text import (
    describe_conditions,
    describe_result,
    describe_unfinished,
    format_comparison,
    format_question,
    join_names,
    summarize,
)
from zoo.reporting.numbers import format_fixed
from zoo.run.conditions import TRAINED, Condition

IMAGE = comparisons.IMAGE


def compare(better="high", **values):
    """A comparison of {variant: {condition: values by seed}}, or of values by seed at the training size."""
    base = comparisons.images()
    by_name = {
        name: found if isinstance(found, dict) else {TRAINED: found}
        for name, found in values.items()
    }
    names = dict.fromkeys(one for found in by_name.values() for one in found)
    conditions = (IMAGE, *comparisons.make_sizes(*(int(one) for one in names if one != TRAINED)))
    variants = tuple(
        replace(base.variants[0], name=name, flags=(), cells=tuple(list_cells(found, conditions)))
        for name, found in by_name.items()
    )
    return replace(base, better=better, conditions=conditions, variants=variants)


def list_cells(found, conditions):
    for seed in range(max(map(len, found.values()))):
        metrics = {
            name: {"test/accuracy": numbers[seed]}
            for name, numbers in found.items()
            if seed < len(numbers)
        }
        measurements = comparisons.measure(metrics, conditions)
        yield ComparisonCell(
            seed=seed, run_dir=f"cells/{seed}", state="done", measurements=measurements
        )


def test_the_best_is_named_with_its_interval_and_who_else_may_be_best():
    # means 0.90, 0.89, 0.60; differences of b to a: -0.03, 0.01, -0.01, whose interval holds 0
    found = compare(a=[0.89, 0.90, 0.91], b=[0.86, 0.91, 0.90], c=[0.58, 0.61, 0.61])
    assert describe_result(found, IMAGE) == (
        "At 16 pixels `a` has the highest mean: test accuracy 0.900 (0.875 to 0.925); "
        "`b` may be best too; `c` is worse. "
        "With 3 seeds a difference below 0.31 cannot be seen (power 80 %). Verdicts are by t alone: "
        "the smallest p of an exact permutation test of so few seeds is 0.1."
    )
    assert (
        summarize(found)
        == "At 16 pixels `a` has the highest mean; `b` may be best too; `c` is worse."
    )


def test_differences_are_those_of_seeds_and_not_of_means():
    # the intervals of the means overlap widely; each seed tells the same difference but for little
    found = compare(a=[0.5, 0.7, 0.9], b=[0.49, 0.691, 0.891])
    (_, second) = rank_variants(found, IMAGE)
    assert second.verdict == "worse"
    assert summarize(found) == "At 16 pixels `a` has the highest mean; `b` is worse."


def test_a_lower_loss_is_better():
    found = compare("low", a=[2.0, 2.1], b=[1.0, 1.1], c=[3.0, 3.1])
    assert [one.variant.name for one in rank_variants(found, IMAGE)] == ["b", "a", "c"]
    assert "`b` has the lowest mean: test accuracy 1.050 (1.000 and 1.100)" in describe_result(
        found, IMAGE
    )


def test_who_is_equal_in_every_seed_is_as_good_and_of_one_mean_others_may_be_best():
    found = compare(a=[0.5, 0.6, 0.55], b=[0.6, 0.5, 0.55], c=[0.5, 0.6, 0.55])
    assert [(one.variant.name, one.verdict) for one in rank_variants(found, IMAGE)] == [
        ("a", "best"),
        ("c", "best"),
        ("b", "possible"),
    ]
    assert summarize(found) == (
        "At 16 pixels `a` and `c` share the highest mean; no difference is established."
    )
    assert "`a` and `c` share the highest mean: test accuracy 0.55" in describe_result(found, IMAGE)


def test_of_equal_variants_none_is_named_above_another():
    found = compare(a=[1.0] * 3, b=[1.0] * 3, c=[0.40, 0.41, 0.40])
    assert summarize(found) == "At 16 pixels `a` and `b` share the highest mean; `c` is worse."
    both = compare(a=[1.0] * 3, b=[1.0] * 3)
    assert summarize(both) == (
        "At 16 pixels `a` and `b` share the highest mean; their seeds are equal."
    )
    assert describe_result(both, IMAGE) == (
        "At 16 pixels `a` and `b` share the highest mean: test accuracy 1.000 (1.000 to 1.000); their seeds are equal."
    )


def test_a_variant_called_none_is_no_word_of_the_verdict():
    found = compare(a=[0.89, 0.90, 0.91], none=[0.58, 0.59, 0.61])
    assert summarize(found) == "At 16 pixels `a` has the highest mean; `none` is worse."
    found = compare(a=[0.89, 0.90, 0.91], b=[0.86, 0.91, 0.90])
    assert "none" not in describe_result(found, IMAGE)


def test_fewer_than_three_seeds_have_values_and_no_interval():
    found = compare(a=[0.9], b=[0.5])
    assert describe_result(found, IMAGE) == (
        "At 16 pixels `a` has the highest value: test accuracy 0.900; fewer than three seeds cannot tell a difference from chance."
    )
    assert summarize(found) == (
        "At 16 pixels `a` has the highest value; fewer than three seeds cannot tell a difference from chance."
    )
    found = replace(compare(a=[0.549, 0.549], b=[0.5, 0.51]), seeds=(0, 1))
    assert describe_result(found, IMAGE) == (
        "At 16 pixels `a` has the highest mean: test accuracy 0.549 (0.549 and 0.549); fewer than three seeds cannot tell a difference from chance."
    )
    assert "test accuracy: values of seeds 0 and 1; fewer than three seeds have no interval." in (
        format_comparison(found)
    )


def test_who_shares_one_seed_with_the_best_is_told_apart_from_nobody():
    found = compare(a=[0.9, 0.91, 0.92], b=[0.3], c=[0.4, 0.42, 0.42])
    assert "; too few seeds to judge `b`." in describe_result(found, IMAGE)
    assert [one.verdict for one in rank_variants(found, IMAGE)] == ["best", "worse", "unsure"]


def test_who_is_better_on_all_seeds_that_both_have_is_not_told_worse():
    # a lacks the hard seed 3, without which b would be the best
    found = compare(a=[0.70, 0.71, 0.71], b=[0.92, 0.93, 0.94, 0.0])
    assert [one.verdict for one in rank_variants(found, IMAGE)] == ["best", "unsure"]
    assert "on the seeds that both have, `b` is better" in describe_result(found, IMAGE)
    assert "worse" not in format_comparison(found)


def test_neighbouring_places_with_one_answer_share_a_sentence():
    near, far = [0.9, 0.91, 0.92], [0.2, 0.21, 0.23]
    found = compare(
        a={TRAINED: near, "24": near, "32": far}, b={TRAINED: far, "24": far, "32": near}
    )
    assert summarize(found) == (
        "At 16 and 24 pixels `a` has the highest mean; `b` is worse. "
        "At 32 pixels `b` has the highest mean; `a` is worse."
    )
    assert [one.variant.name for one in rank_variants(found, found.find_condition("32"))] == [
        "b",
        "a",
    ]


@pytest.mark.parametrize("odd", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_left_out_and_told(odd):
    found = compare(a=[0.9, odd, 0.92], b=[odd, odd], c=[0.5, 0.51, 0.52])
    first, *_, last = rank_variants(found, IMAGE)
    assert (first.variant.name, first.mean.count, first.missing_reasons) == (
        "a",
        2,
        (f"seed 1: no finite number ({odd})",),
    )
    assert (last.variant.name, last.verdict) == ("b", "missing")
    assert f"No value of `b` (no finite number ({odd}))." in describe_result(found, IMAGE)


def test_what_was_refused_is_told_with_its_reason():
    found = comparisons.texts()
    message = describe_result(found, found.find_condition("1024"))
    assert message.startswith("At 1024 tokens `alibi` has the lowest mean: test loss 1.2")
    assert message.endswith("No value of `learned` (refused: the table has 128 places).")


def test_refusals_that_differ_by_what_was_drawn_are_told_once():
    texts = comparisons.texts()
    learned = next(one for one in texts.variants if one.name == "learned")
    drawn = [
        replace(
            cell,
            measurements=comparisons.measure(
                {}, texts.conditions, {"256": f"place {141 + cell.seed} is past it"}
            ),
        )
        for cell in learned.cells
    ]
    found = replace(texts, variants=(texts.variants[0], replace(learned, cells=tuple(drawn))))
    assert describe_result(found, found.find_condition("256")).endswith(
        "No value of `learned` (refused: place 141 is past it)."
    )


def test_the_best_and_its_equals_are_named_with_what_is_unfair():
    found = compare(a=[0.9, 0.91, 0.9], b=[0.1, 0.11, 0.1])
    first, second = found.variants
    large, slow = Flag("parameters", "too large"), Flag("attention", "too slow")
    found = replace(
        found, variants=(replace(first, flags=(large, slow)), replace(second, flags=(large,)))
    )
    assert describe_result(found, IMAGE).endswith("Note that `a` is flagged: too large; too slow.")
    found = compare(a=[0.9, 0.91, 0.9], b=[0.9, 0.92, 0.9])
    first, second = found.variants
    found = replace(
        found, variants=(replace(first, flags=(large,)), replace(second, flags=(slow, large)))
    )
    assert describe_result(found, IMAGE).endswith(
        "Not as in most: attention of `b`; parameters of `b` and `a`."
    )


def test_what_is_too_little_is_told_and_marks_nobody():
    found = compare(a=[0.9, 0.91, 0.9], b=[0.9, 0.92, 0.9])
    little = Flag("parameters", "a bit larger", minor=True)
    found = replace(found, variants=tuple(replace(one, flags=(little,)) for one in found.variants))
    assert describe_result(found, IMAGE).endswith("cannot be seen (power 80 %).")
    assert "- a: a bit larger" in format_comparison(found)


def test_nothing_measured_is_said():
    found = compare(a=[], b=[])
    waiting = tuple(
        replace(
            one,
            cells=(
                ComparisonCell(seed=0, run_dir="x", state="waiting"),
                ComparisonCell(seed=1, run_dir="y", state="running"),
            ),
        )
        for one in found.variants
    )
    found = replace(found, variants=waiting, conditions=(IMAGE,))
    assert summarize(found) == "At 16 pixels nothing is measured yet."
    assert describe_result(found, IMAGE).startswith("At 16 pixels nothing is measured yet.")
    assert (
        describe_unfinished(found)
        == "Not finished: 0 of 4 cells are done, 2 running and 2 waiting."
    )


def test_what_is_finished_is_not_said_to_be_waited_for():
    assert describe_unfinished(comparisons.images()) == ""
    assert (
        describe_unfinished(comparisons.texts())
        == "Not finished: 11 of 12 cells are done, 1 waiting."
    )


def test_the_question_names_the_axes():
    found = comparisons.images()
    assert format_question(found) == "Which encoding, on vit_comrope?"
    depth = comparisons.make_axis("model.depth", "depth", ("4", "8"))
    assert (
        format_question(replace(found, axes=(*found.axes, depth)))
        == "Which encoding and depth, on vit_comrope?"
    )


def test_conditions_are_named_with_their_unit_once():
    sizes = comparisons.make_sizes(*range(1, 8), 24, 32)
    *small, first, second = sizes
    wide = Condition("24x32", "size", (24, 32))
    assert describe_conditions([IMAGE, first, second]) == "at 16, 24 and 32 pixels"
    assert describe_conditions([wide]) == "at 24x32 pixels"
    assert describe_conditions(small) == "at 1, 2, 3, 4, 5, 6 and 7 pixels"
    assert [find_side(one) for one in (IMAGE, first, wide)] == [16, 24, None]


def test_conditions_of_several_kinds_stand_in_one_sentence():
    sizes = comparisons.make_lengths(256, 512)
    sparse = Condition("sparse", "data_variant", data_variant="sparse")
    other = Condition("variant 64", "data_variant", data_variant="64")
    yarn = Condition("512 by yarn", "extrapolation", (512,), "yarn")
    assert (
        describe_conditions([comparisons.TEXT, sizes[0], sparse])
        == "at 128 and 256 tokens and on sparse"
    )
    assert describe_conditions([sparse, other]) == "on sparse and 64"
    assert describe_conditions([*sizes, yarn]) == "at 256 tokens, 512 tokens and 512 tokens by yarn"


def test_numbers_have_the_decimals_that_tell_them_apart():
    assert count_decimals(compare(a=[0.5], b=[0.9])) == 3
    assert count_decimals(compare(a=[0.9911], b=[0.9913])) == 4
    assert count_decimals(compare(a=[1234.5], b=[1300.0])) == 0
    assert count_decimals(compare(a=[0.00012], b=[0.0002])) == 6
    assert format_fixed(-0.0211, 3, sign=True) == "\u22120.021"
    assert format_fixed(0.0211, 3, sign=True) == "+0.021"
    assert format_fixed(float("nan"), 3) == format_fixed(None, 3) == "\u2013"


def test_of_many_names_the_rest_is_counted():
    assert join_names(["a"]) == "a"
    assert join_names(["a", "b", "c"]) == "a, b and c"
    assert join_names(list("abcdefg")) == "a, b, c, d and 3 others"
