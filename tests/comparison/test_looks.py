"""Looks share the false alarms, and continuing a finished comparison is a look."""

from __future__ import annotations

from dataclasses import replace

import comparisons
import pytest
from test_plan import make_request, plan

from zoo.comparison.looks import FIVE_LOOKS, LOOKS, find_look, plan_looks
from zoo.comparison.plan import ComparisonPlan, extend_plan, join_existing, write_plan
from zoo.comparison.race_text import explain_race
from zoo.comparison.racing import find_race
from zoo.comparison.ranking import describe_levels, find_level
from zoo.comparison.request import CompareOptions
from zoo.comparison.results import Comparison
from zoo.errors import RecipeError


def count_alarms(looks):
    return sum(1 - level for level in looks.values())


@pytest.mark.parametrize("studies", [3, 4, 5, 8, 12, 18, 20])
def test_planned_looks_share_five_percent(studies):
    looks = plan_looks((studies,))
    assert max(looks) == studies
    assert {*looks} <= {*LOOKS, studies}
    assert count_alarms(looks) == pytest.approx(0.05)


def test_the_first_of_two_looks_has_a_tenth():
    assert plan_looks((5,)) == pytest.approx({3: 0.995, 5: 0.955})
    assert plan_looks((3,)) == pytest.approx({3: 0.95})
    assert plan_looks((2,)) == {}


def test_a_continuation_has_half_of_the_false_alarms_before():
    looks = plan_looks((5, 8, 10))
    assert {look: looks[look] for look in (3, 5)} == plan_looks((5,))
    assert 1 - looks[8] == pytest.approx(0.025)
    assert 1 - looks[10] == pytest.approx(0.0125)
    assert count_alarms(plan_looks(tuple(range(3, 60)))) < 0.1


def test_a_look_is_the_last_one_that_the_finished_studies_allow():
    looks = plan_looks((5,))
    assert find_look(looks, 2) is None
    assert find_look(looks, 4) == (3, looks[3])
    assert find_look(looks, 5) == (5, looks[5])


def plan_seeds(count):
    """Return the plan of two small variants with so many seeds."""
    request = replace(
        make_request("vit_comrope", words=("encodings=[none,learned]",)),
        options=CompareOptions(seeds=count),
    )
    return plan(request)


def test_a_folder_that_grows_counts_its_looks():
    old, new = plan_seeds(3), plan_seeds(10)
    grown = extend_plan(old, new)
    assert (old.earlier, grown.earlier) == ((), (3,))
    assert grown.looks == tuple(plan_looks((3, 10)).items())
    # repeating the same command is none, and fewer than three seeds have no interval
    assert extend_plan(grown, grown).earlier == (3,)
    two = plan_seeds(2)
    assert extend_plan(two, new).earlier == ()


def test_conditions_share_the_false_alarms_unless_one_is_the_question():
    found = comparisons.images(seeds=range(5))
    count = len(found.conditions)
    assert find_level(found, found.trained) == pytest.approx(1 - 0.05 / count)
    assert f"corrects for {count} conditions" in describe_levels(found)
    asked = replace(found, question="24")
    assert find_level(asked, asked.find_condition("24")) == pytest.approx(0.95)
    assert find_level(asked, asked.trained) == pytest.approx(1 - 0.05 / (count - 1))
    assert "95 % for the question (24)" in describe_levels(asked)
    grown = replace(asked, earlier=(3,))
    assert find_level(grown, grown.find_condition("24")) == pytest.approx(0.975)


def test_a_race_of_version_0_3_keeps_its_looks():
    found = comparisons.images(seeds=range(5))
    assert Comparison.look_levels.fget(found) == FIVE_LOOKS
    text = explain_race(replace(found, race=find_race(found)))
    assert "they have 1 %, 1 %, 1 %, 1 % and 1 % of false alarms" in text
    planned = replace(found, looks=tuple(plan_looks((5,)).items()))
    text = explain_race(replace(planned, race=find_race(planned)))
    assert "Looks after 3 and 5 studies" in text
    assert "0.5 % and 4.5 % of false alarms" in text
    grown = replace(
        planned, earlier=(3,), looks=tuple(plan_looks((3, 5)).items()), race=find_race(planned)
    )
    assert "7.5 % together as 3 and 5 were planned one after another" in explain_race(grown)


def test_the_plan_states_its_looks(tmp_path):
    planned = plan_seeds(5)
    assert planned.look_levels == pytest.approx(plan_looks((5,)))
    planned.write(tmp_path)
    assert ComparisonPlan.read(tmp_path).looks == planned.looks


def test_growing_a_folder_says_that_it_was_looked_at(tmp_path, caplog):
    caplog.set_level("INFO", "zoo")
    folder = tmp_path / "grown"
    folder.mkdir()
    write_plan(plan_seeds(3), folder)
    assert join_existing(plan_seeds(5), folder).earlier == (3,)
    assert "3 seeds were looked at before; verdicts on 5 have 2.5 % of false alarms left" in (
        caplog.text
    )


def test_a_question_is_declared_before_results_are_seen(tmp_path):
    folder = tmp_path / "asked"
    folder.mkdir()
    write_plan(plan_seeds(3), folder)
    with pytest.raises(RecipeError, match="question is none there, 24 here"):
        join_existing(replace(plan_seeds(5), question="24"), folder)


def test_a_race_asks_about_the_trained_condition(compared):
    words = ["encodings=[none,learned]", "tune.optim.lr=[1e-3,1e-2,log]", "studies=3", "budget=1"]
    code, _, message = compared("vit_comrope", *words, "racing=true", "question=24")
    assert code == 2
    assert "question: a race asks about the condition trained" in message
