"""At the command line, torch is announced, and torchmetrics waits for packages; `import zoo` changes nothing."""

import os
import subprocess
import sys
from fractions import Fraction

import pytest
from tiny import ROOT

from zoo.cli.imports import DeferredName

START = """
import sys
from zoo.cli.imports import defer_imports, handle_imports
defer_imports()  # as processes do that zoo has started
with handle_imports(announces=False):
    import lightning, torchmetrics
print(*{"scipy", "torchvision", "transformers"} & set(sys.modules))
print(type(torchmetrics.__spec__.loader).__name__, torchmetrics.text.BERTScore.__name__)

from torchmetrics.functional.text import bert
print(callable(bert.AutoTokenizer.from_pretrained))
import scipy, transformers
print(transformers.AutoTokenizer is bert.AutoTokenizer._import(), scipy.__version__ > "1")
"""


@pytest.mark.nightly
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


UNCHANGED = """
import sys
finders = [*sys.meta_path]
import zoo, zoo.cli.main
print(sys.meta_path == finders, "torchmetrics" in sys.modules)
import torchmetrics
print(type(torchmetrics.scipy).__name__)
"""


def test_importing_zoo_changes_no_import_of_another_library(tmp_path):
    (tmp_path / "torchmetrics.py").write_text("import scipy")
    (tmp_path / "scipy.py").touch()
    done = subprocess.run(
        [sys.executable, "-c", UNCHANGED],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["True False", "module"]


@pytest.mark.parametrize(
    "words", [["fit", "vit_none"], ["show", "rope"], ["bench", "rope"], ["verify", "rope"]]
)
def test_the_first_line_comes_before_torch_is_imported(tmp_path, words):
    (tmp_path / "torch.py").write_text("print('torch is executed'); raise ImportError('no torch')")
    done = subprocess.run(
        [sys.executable, "-m", "zoo", *words],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.stdout.splitlines()[:2] == ["Importing torch", "torch is executed"], done.stdout


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
