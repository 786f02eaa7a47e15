"""torchmetrics and Lightning start without scipy, torchvision and transformers."""

import os
import subprocess
import sys
from fractions import Fraction

import pytest
from tiny import ROOT

from zoo.deferred_imports import DeferredName

START = """
import sys
import zoo, lightning, torchmetrics
print(*{"scipy", "torchvision", "transformers"} & set(sys.modules))
print(type(torchmetrics.__spec__.loader).__name__, torchmetrics.text.BERTScore.__name__)

from torchmetrics.functional.text import bert
print(callable(bert.AutoTokenizer.from_pretrained))
import scipy, transformers
print(transformers.AutoTokenizer is bert.AutoTokenizer._import(), scipy.__version__ > "1")
"""


def test_metrics_import_their_packages_when_they_are_used(tmp_path):
    """A torchvision that was built for another torch stops nothing that does without it."""
    (tmp_path / "torchvision.py").write_text("raise RuntimeError('built for another torch')")
    about = tmp_path / "torchvision-0.20.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.20.0\n")
    done = subprocess.run(
        [sys.executable, "-c", START],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["", "SourceFileLoader BERTScore", "True", "True True"]


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
