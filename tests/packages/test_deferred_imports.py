"""torchmetrics and Lightning start without scipy, torchvision and transformers."""

import subprocess
import sys
from fractions import Fraction

import pytest
from tiny import ROOT

from zoo.deferred_imports import DEFERRED, DeferredName

START = """
import sys
import zoo, lightning, torchmetrics
print(*{"scipy", "torchvision", "transformers"} & set(sys.modules))
print(torchmetrics.__spec__.loader.__class__.__name__)
print(torchmetrics.text.BERTScore.__name__)
"""
USE = """
import zoo, torchmetrics
from torchmetrics.functional.text import bert
print(callable(bert.AutoTokenizer.from_pretrained))
import scipy, transformers
print(transformers.AutoTokenizer is bert.AutoTokenizer._import(), scipy.__version__ > "1")
"""


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


def test_lightning_starts_without_packages_that_only_metrics_need():
    assert set(DEFERRED) == {"scipy", "torchvision", "transformers"}
    assert run(START) == ["", "SourceFileLoader", "BERTScore"]


def test_metrics_import_their_packages_when_they_are_used():
    assert run(USE) == ["True", "True True"]


def test_a_deferred_name_can_be_called_read_tested_and_derived_from():
    deferred = DeferredName("fractions", "Fraction")
    assert deferred(1, 2) == Fraction(1, 2)
    assert deferred.from_float(0.5) == Fraction(1, 2)
    assert isinstance(Fraction(1, 2), deferred)
    assert issubclass(Fraction, deferred)

    class Mine(deferred):
        pass

    assert Mine.__mro__[1] is Fraction


@pytest.mark.parametrize(("module", "name"), [("fractions", "Fractoin"), ("fractoins", "Fraction")])
def test_a_deferred_name_that_does_not_exist_fails_when_it_is_used(module, name):
    deferred = DeferredName(module, name)
    with pytest.raises((AttributeError, ModuleNotFoundError), match=r"[Ff]ractoin"):
        deferred()
