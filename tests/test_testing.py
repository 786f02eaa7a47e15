"""`zoo.testing.laws`: the laws as a test of a plug-in's own suite; the example keeps them."""

from functools import partial

import pytest
import torch
from tiny import ROOT

import zoo
from zoo import registry, testing
from zoo.laws import LAWS, Case
from zoo.testing import laws

# These take seconds: alibi keeps them in tests/laws, the example on two axes.
SLOW = {"a_compiler_captures_it", "exports_at_any_size"}

with pytest.MonkeyPatch.context() as patch:
    patch.setattr(testing, "LAWS", [law for law in LAWS if law.name not in SLOW])
    test_alibi = laws("alibi")


def test_it_has_a_case_for_each_law_and_number_of_axes():
    tried = {mark.args[0]: mark.args[1] for mark in laws("none").pytestmark}
    assert tried["law"] == LAWS
    assert [case.axes for case in tried["case"]] == [1, 2, 3]


def test_an_unknown_encoding_is_refused():
    with pytest.raises(Exception, match="did you mean rope"):
        laws("ropee")


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_the_example_keeps_the_laws(axes, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs" / "plugin")
    monkeypatch.setenv(registry.PLUGINS, "zoo_example")
    member = Case("gaussian", axes, partial(zoo.encoding, "gaussian"))
    kept = [law for law in LAWS if not law.exempt(member)]
    for law in kept if axes == 2 else (law for law in kept if law.name not in SLOW):
        torch.manual_seed(0)
        law(member)
    assert len(kept) > 20
