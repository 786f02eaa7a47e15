"""Looks at a running comparison: which variants are trained no further, and which claims are decided."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from comparisons import images, plant_cells, read_lasting
from tiny import TINY

from zoo.comparison.claims import judge_comparison
from zoo.comparison.looks import LOOKS
from zoo.comparison.plan import ComparisonPlan, StudyDesign, list_plan_differences
from zoo.comparison.race_text import explain_stopped
from zoo.comparison.racing import Claim, RacedClaim, find_race, judge_claims, race
from zoo.comparison.ranking import find_level, rank_variants
from zoo.comparison.results import Comparison, RecordedHypothesis
from zoo.comparison.text import format_comparison


def draw(rng, levels, studies, deviation=0.02):
    """Values of variants that share the effect of each study."""
    shared = rng.normal(0, 0.1, studies)
    return {
        name: dict(enumerate((level + shared + rng.normal(0, deviation, studies)).tolist()))
        for name, level in levels.items()
    }


def list_dropped(values, better="high"):
    """Return {variant: look} of what all looks dropped."""
    return {one.variant: one.look for each in race(values, better=better) for one in each.stopped}


def test_a_beaten_variant_is_dropped_and_the_others_run_on():
    values = draw(np.random.default_rng(0), {"a": 0.9, "b": 0.89, "c": 0.9, "d": 0.4}, 4)
    [decision] = race(values, better="high")  # between looks nothing is decided
    [gone] = decision.stopped
    assert (decision.look, gone.look, gone.variant) == (3, 3, "d")
    assert gone.other == decision.best
    assert gone.difference == pytest.approx(-0.5, abs=0.1)
    assert gone.high < 0
    assert gone.p_value < 0.01
    assert {*decision.running} == {"a", "b", "c"}
    assert not decision.is_over
    assert explain_stopped(gone).startswith(
        f"stopped after 3 studies: worse than `{gone.other}` by 0."
    )


def test_of_losses_the_higher_is_dropped():
    values = draw(np.random.default_rng(0), {"a": 1.0, "b": 1.0, "c": 1.0, "d": 3.0}, 5)
    assert list_dropped(values, better="low") == {"d": 3}


def test_a_look_needs_all_studies_of_what_runs_and_none_of_what_was_dropped():
    values = draw(np.random.default_rng(0), {"a": 0.9, "b": 0.88, "c": 0.4}, 5)
    values["c"] = {study: values["c"][study] for study in range(3)}
    looks = race(values, better="high")
    assert [one.look for one in looks] == [3, 5]
    assert {*looks[-1].running} == {"a", "b"}
    # a study that ended without a value counts as ended, one that has not ended does not
    del values["b"][1]
    assert race(values, better="high") == []
    ended = {name: range(5) for name in values}
    assert [one.look for one in race(values, better="high", finished=ended)] == [3, 5]


def test_later_studies_change_no_decision():
    values = draw(np.random.default_rng(5), {"a": 0.9, "b": 0.88, "c": 0.85, "d": 0.8}, 18)
    every = race(values, better="high")
    for look in LOOKS:
        early = {name: {s: v for s, v in own.items() if s < look} for name, own in values.items()}
        assert race(early, better="high") == [one for one in every if one.look <= look]


@pytest.mark.parametrize(
    ("experiments", "most"), [(100, 11), pytest.param(300, 25, marks=pytest.mark.nightly)]
)
def test_equal_variants_are_seldom_dropped_over_all_looks(experiments, most):
    rng = np.random.default_rng(1)
    levels = dict.fromkeys("abcdef", 0.5)
    wrong = sum(bool(list_dropped(draw(rng, levels, LOOKS[-1]))) for _ in range(experiments))
    # 5 of 100 are expected at most; more than these have a probability of 1 %
    assert wrong <= most


@pytest.mark.parametrize("experiments", [100, pytest.param(300, marks=pytest.mark.nightly)])
def test_the_best_is_hardly_ever_dropped(experiments):
    rng = np.random.default_rng(2)
    levels = dict.fromkeys("abcdef", 0.5) | {"best": 0.53}
    lost = sum("best" in list_dropped(draw(rng, levels, LOOKS[-1])) for _ in range(experiments))
    assert lost <= 0.03 * experiments


def claim(values, *claims):
    return [RacedClaim(one, values, "high") for one in claims]


def test_what_falls_short_of_its_claim_stops_after_the_look_that_saw_it():
    values = draw(np.random.default_rng(3), {"a": 0.51, "b": 0.5, "c": 0.505}, 8, 0.005)
    stated = Claim("a", "b", 0.3, "a > b by 0.3")
    first, *_ = race(values, better="high", claims=claim(values, stated))
    [gone] = first.stopped
    assert (gone.variant, gone.look, gone.other, gone.claim) == ("a", 3, "b", "a > b by 0.3")
    assert gone.high < 0.3
    assert gone.p_value < 0.01
    assert first.running == ("b", "c")
    assert "stopped after 3 studies: smaller than claimed (a > b by 0.3)" in explain_stopped(gone)
    # not while another claim about it is open
    both = claim(values, stated, Claim("a", "c", 0.006, "a > c by 0.006"))
    first, *_ = race(values, better="high", claims=both)
    assert first.stopped == ()
    # and what is as large as claimed runs on
    assert all(
        not one.stopped
        for one in race(values, better="high", claims=claim(values, Claim("a", "b", 0.01)))
    )


@pytest.mark.parametrize(
    ("gap", "effect", "verdict"),
    [
        (0.2, 0.0, "held"),
        (0.2, 0.2, "held"),
        (0.05, 0.3, "smaller than claimed"),
        (0.0, 0.3, "smaller than claimed"),
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


BASE = [
    "vit_comrope",
    *(word for word in TINY if "encoding" not in word),
    "trainer.num_threads=1",
    "diagnostics.every_n_steps=null",
    "trainer.max_steps=2",
    "encodings=[none,learned,sinusoidal]",
    "tune.optim.lr=[1e-3,1e-1,log]",
    "budget=1",
]
RACED = [*BASE, "studies=4", "racing=true"]
LEVELS = {"none": 0.8, "learned": 0.2, "sinusoidal": 0.79}


def test_a_race_trains_on_only_what_may_be_best_wherever_it_continues(compared):
    assert compared(*RACED, "to=here", "minutes=1e-6")[0] == 0
    plant_cells("here", LEVELS, 3)
    shutil.copytree("here", "there")
    code, out, message = compared(*RACED, "to=here")
    assert code == 0, message
    assert "`learned` stopped after 3 studies: worse than `none` by" in message
    assert "look after 3 studies: 2 of 3 variants run on" in message
    trained = {path.parent.name for path in Path("here/cells").glob("*/train.log")}
    assert trained == {"none-3-0", "sinusoidal-3-0"}
    found = Comparison.read(Path("here/results.json"))
    (stopped,) = found.race.stopped
    assert (stopped.variant, stopped.look, found.race.is_over) == ("learned", 3, True)
    assert [len(one.cells) for one in found.variants] == [4, 3, 4]
    assert all(cell.state == "done" for cell in found.cells)
    assert found.findings == ()
    row = next(line for line in out.splitlines() if line.startswith("| learned "))
    assert "worse, stopped after 3 studies, p < 0.001" in row
    assert "## Racing" in out
    assert "worse, stopped after 3 studies" in Path("here/index.html").read_text()

    # the cells alone tell another machine what to train
    code, _, message = compared(*RACED, "to=there")
    assert code == 0, message
    assert read_lasting("there") == read_lasting("here")
    # and the race stays that by accuracy where the report is by another metric
    assert compared("rebuild", "there", "measure=loss")[0] == 0
    assert Comparison.read(Path("there/results.json")).race == found.race

    # what is trained nevertheless is left out, and named
    plant_cells("there", LEVELS, 4)
    code, out, _ = compared("rebuild", "there")
    assert "- trained on: learned: trained in studies 3, though a look had stopped it" in out

    # a race is not another one later, and no part of one
    for word, problem in (
        ("racing=false", "racing is true there, false here"),
        ("encodings=[none,learned,sinusoidal,rope_mixed]", "a race keeps its variants"),
        ("measure=loss", "measure is test/accuracy there, test/loss here"),
        ("part=1/2", "part: a look needs all studies before it"),
    ):
        code, _, message = compared(*RACED, "to=here", word)
        assert code == 2
        assert problem in message


@pytest.mark.parametrize("words", [["studies=2"], ["studies=19"], []])
def test_a_race_has_as_many_studies_as_there_are_looks_for(words, compared):
    code, _, message = compared(*BASE, "encodings=[none]", *words, "racing=true")
    assert code == 2
    assert "racing: a race has 3 to 18 studies, with looks after 3, 5, 8, 12 and 18" in message


def make_studies(levels, hypotheses=()):
    """A comparison of five studies with small noise around some levels."""
    found = images(seeds=range(5), levels=levels)
    recorded = (
        RecordedHypothesis(text=text, written="now", runs_ended=ended) for text, ended in hypotheses
    )
    return replace(found, hypotheses=tuple(recorded))


def test_a_refuted_claim_stops_its_variant_and_its_verdict_stays():
    written = [("a > b by 0.5", 0), ("a > c by 0.5", 7), ("c < d by 0.5 on loss at 32", 0)]
    found = make_studies({"a": 0.46, "b": 0.455, "c": 0.457, "d": 0.45}, written)
    raced = find_race(found)
    # a later hypothesis stops nothing, since it may have seen the studies
    assert {one.variant: one.claim for one in raced.stopped} == {
        "a": "a > b by 0.5",
        "c": "c < d by 0.5 on loss at 32",
    }
    assert [one.studies for one in raced.looks] == [3, 5]
    judged = judge_comparison(replace(found, race=raced))
    assert judged[0].verdict == judged[2].verdict == "smaller than claimed"
    assert judged[0].reason == "decided after 3 seeds"
    assert judged[0].estimate.count == 3


def test_a_stopped_variant_stands_below_those_that_ran_on():
    found = make_studies({"a": 0.96, "b": 0.957, "c": 0.7, "d": 0.96})
    raced = find_race(found)
    assert [one.variant for one in raced.stopped] == ["c"]
    # the first studies were easy: its mean of three is the highest
    lucky = [
        replace(one, cells=one.cells[:3]) if one.name == "c" else one for one in found.variants
    ]
    lucky[2] = replace(
        lucky[2],
        cells=tuple(
            replace(
                cell,
                measurements=tuple(
                    replace(one, metrics={"test/accuracy": 0.99}) for one in cell.measurements
                ),
            )
            for cell in lucky[2].cells
        ),
    )
    shown = replace(found, race=raced, variants=tuple(lucky))
    standings = rank_variants(shown, shown.trained)
    assert standings[-1].variant.name == "c"
    assert standings[-1].verdict == "worse"
    assert standings[-1].p_value == raced.stopped[0].p_value
    text = format_comparison(shown)
    assert "worse, stopped after 3 studies, p < 0.001" in text
    # intervals of a race are those of its last look; other conditions share as many false alarms
    others = len(shown.conditions) - 1
    assert find_level(shown, shown.trained) == pytest.approx(0.99)
    assert find_level(shown, shown.conditions[-1]) == pytest.approx(1 - 0.01 / others)


def test_merging_refuses_what_was_not_raced_alike(tmp_path):
    plan = ComparisonPlan.read(make_plan(tmp_path))
    other = replace(plan, design=replace(plan.design, is_raced=False))
    assert [*list_plan_differences(plan, other)] == ["racing is true there, false here"]
    fewer = replace(plan, variants={"a": {}})
    assert [*list_plan_differences(plan, fewer)] == [
        "a race keeps its variants, and b would be another"
    ]
    assert [*list_plan_differences(plan, plan)] == []


def make_plan(folder):
    """Write the plan of a race without cells."""
    ComparisonPlan(
        zoo_version="",
        created="",
        command="",
        recipe="r",
        base={},
        machine={},
        axes=(),
        seeds=(0, 1, 2),
        measure="test/loss",
        better="low",
        training_size=None,
        windows="",
        automatic_threads=False,
        variants={"a": {}, "b": {}},
        cells=(),
        design=StudyDesign(budget=1, keys=(), effective={}, is_raced=True),
    ).write(folder)
    return folder
