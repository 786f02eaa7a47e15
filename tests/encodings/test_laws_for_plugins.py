"""`zoo.testing.laws`: the laws as a test of a plug-in's own suite."""

import pytest

from zoo.laws import LAWS
from zoo.testing import laws

test_alibi = laws("alibi")


def test_it_has_a_case_for_each_law_and_number_of_axes():
    tried = {mark.args[0]: mark.args[1] for mark in laws("none").pytestmark}
    assert tried["law"] == LAWS
    assert [case.axes for case in tried["case"]] == [1, 2, 3]


def test_an_unknown_encoding_is_refused():
    with pytest.raises(Exception, match="did you mean rope"):
        laws("ropee")
