"""Programs of counting, run by Python itself."""

from collections import Counter

import numpy as np
import pytest
from generated import read_answers

from zoo.data.synthetic.counting import Counting
from zoo.errors import OptionError


def statements(program):
    *steps, last = program.replace("print", "; print").split(" ;")
    return [step.strip() for step in steps if step.strip()], last.strip()


@pytest.mark.parametrize("variables", [1, 3, 5])
def test_what_is_printed_is_what_the_program_computes(variables):
    names = "xyzvw"[:variables]
    for program, answer in read_answers(Counting(0, steps=60, variables=variables, test=100)):
        steps, last = statements(program)
        known = dict.fromkeys(names, 0)
        for step in steps:
            exec(step.replace("++", "+= 1"), {}, known)
        assert answer == str(known[last.removeprefix("print ")])
        assert max(known.values()) <= 10
        assert 3 <= len(steps) <= 60


def test_as_many_steps_as_any_other_number():
    lengths = [
        len(statements(program)[0]) for program, _ in read_answers(Counting(0, steps=12, test=1000))
    ]
    counts = np.bincount(lengths, minlength=13)
    assert counts[:3].sum() == 0
    assert np.abs(counts[3:] - 100).max() < 5 * (1000 * 0.1 * 0.9) ** 0.5


@pytest.mark.parametrize("variables", [1, 3])
def test_steps_have_their_weights(variables):
    kinds = Counter()
    for program, _ in read_answers(
        Counting(0, steps=20, least=20, variables=variables, test=400)
    ):  # hardly any goes past 10
        kinds.update(statements(program)[0])
    total, weight = kinds.total(), 50 + 8 * variables
    assert total == 8_000
    for kind, count in kinds.items():
        share = {"p": 50, "=": 1, "+": 7}[kind[0] if kind == "pass" else kind[2]] / weight
        assert abs(count - share * total) < 5 * (total * share * (1 - share)) ** 0.5, kind


@pytest.mark.parametrize("variables", [1, 3, 5])
def test_the_commonest_answer_is_as_often_wrong_as_the_paper_says(variables):
    answers = Counter(
        answer for _, answer in read_answers(Counting(0, variables=variables, test=500))
    )
    assert set(answers) == {str(number) for number in range(11)}
    assert (
        0.73 < 1 - max(answers.values()) / 500 < 0.85
    )  # 78 to 80 %, and less than three standard deviations


def test_the_paper_has_so_many_programs():
    assert Counting(0).sizes == {"train": 10_000, "val": 1_000, "test": 1_000}


def test_no_steps_between_are_refused():
    with pytest.raises(OptionError, match="9 steps are more than the maximum of 8") as caught:
        Counting(0, steps=8, least=9)
    assert caught.value.key == "least"
