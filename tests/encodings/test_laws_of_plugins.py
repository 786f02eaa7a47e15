"""The encoding of the example of a plug-in is lawful."""

from functools import partial

import pytest
import torch
from tiny import ROOT

import zoo
from zoo import registry
from zoo.laws import LAWS, Case


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_the_example_keeps_the_laws(axes, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs" / "plugin")
    monkeypatch.setenv(registry.PLUGINS, "zoo_example")
    member = Case("gaussian", axes, partial(zoo.encoding, "gaussian"))
    kept = [law for law in LAWS if not law.exempt(member)]
    for law in kept:
        torch.manual_seed(0)
        law(member)
    assert len(kept) > 20
