"""Missing and broken packages end in one line; layers and laws import nothing but torch."""

import os
import re
import subprocess
import sys
import tomllib

import pytest
from tiny import ROOT

import zoo
from zoo.packages import EXTRAS, REQUIRED, PackageError, explain, explain_imports

BLOCK = """
import os, sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["BLOCKED"].split(","):
            return None
        return PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""
OPTIONAL = "altair,datasets,kornia,tokenizers,vl_convert"
ALL_BUT_TORCH = (
    f"{OPTIONAL},scipy,lightning,pytorch_lightning,omegaconf,yaml,torchmetrics,tensorboard,numpy,"
    "pandas,PIL,tqdm,markupsafe"
)


def run(folder, blocked, *words):
    """Run Python where packages are hidden."""
    (folder / "sitecustomize.py").write_text(BLOCK)
    places = {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "BLOCKED": blocked}
    return subprocess.run(
        [sys.executable, "-W", "ignore", *words],
        env=os.environ | places,
        cwd=folder,
        capture_output=True,
        text=True,
    )


def test_importing_zoo_imports_nothing(tmp_path):
    """The time of `import zoo` is that of three small files: 3 to 7 ms on a busy machine."""
    code = "import sys; before = set(sys.modules); import zoo; print(*set(sys.modules) - before)"
    imported = {*run(tmp_path, "", "-c", code).stdout.split()}
    assert imported == {"zoo", "zoo.deferred_imports", "zoo.version", "__future__"}


def test_layers_and_laws_need_only_torch(tmp_path):
    code = """
import torch, zoo, zoo.laws
for name in zoo.encoding_names():
    zoo.encoding_class(name)
encoding = zoo.encoding("rope", zoo.Dims(64, 2, 1, (16,), 0, 2))
out = zoo.functional.attend(encoding, *torch.randn(3, 1, 2, 5, 32), torch.arange(5.)[:, None])
print(tuple(out.shape), len(zoo.laws.LAWS) > 10, zoo.Attention.__name__)
try:
    zoo.load_recipe("lm_rope")
except ImportError as error:
    print(error)
"""
    done = run(tmp_path, ALL_BUT_TORCH, "-c", code)
    first, second = done.stdout.splitlines()
    assert first == "(1, 2, 5, 32) True Attention", done.stderr
    assert second.startswith("this needs lightning, omegaconf, torchmetrics and tensorboard: pip")


def test_zoo_list_needs_no_package_at_all(tmp_path):
    done = run(tmp_path, f"torch,{ALL_BUT_TORCH}", "-m", "zoo", "list")
    assert done.returncode == 0, done.stderr
    assert "vit_comrope" in done.stdout
    assert "alibi" in done.stdout


def test_zoo_fit_names_what_is_missing(tmp_path):
    done = run(tmp_path, ALL_BUT_TORCH, "-m", "zoo", "fit", "vit_comrope")
    assert done.returncode == 2
    assert re.fullmatch(
        r"zoo: this needs lightning, .*: pip install transformer-zoo\n", done.stderr
    )


def test_a_package_of_an_extra_is_named_with_the_extra(tmp_path):
    done = run(tmp_path, OPTIONAL, "-m", "zoo", "compare", "vit_none", "encodings=[rope_axial]")
    assert done.returncode == 2
    assert done.stderr == "zoo: this needs altair: pip install 'transformer-zoo[compare]'\n"


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("operator torchvision::nms does not exist", "pip uninstall torchvision"),
        ("libgomp.so.1: cannot open shared object file: No such file", "apt install libgomp1"),
        ("numpy.dtype size changed, may indicate binary incompatibility", "another numpy"),
        ("/lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found", "GLIBCXX_3.4.32"),
        ("anything else", "--force-reinstall --no-deps torchvision"),
    ],
)
def test_a_broken_package_is_named_with_a_remedy(tmp_path, monkeypatch, message, remedy):
    name = "torchvision" if "torchvision" in message + remedy and "nms" in message else "kornia"
    (tmp_path / f"{name}.py").write_text(f"raise RuntimeError({message!r})")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(PackageError) as caught, explain_imports():
        __import__(name)
    text = str(caught.value)
    assert text.startswith(f"{name} is installed but cannot be imported: {message[:40]}")
    assert remedy.replace("torchvision", name) in text
    assert "\n" not in text


def test_an_error_of_a_users_own_module_is_left_alone(tmp_path, monkeypatch):
    (tmp_path / "of_a_user.py").write_text("raise RuntimeError('my own mistake')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match="my own mistake") as caught, explain_imports():
        __import__("of_a_user")
    assert not isinstance(caught.value, PackageError)


def test_an_error_outside_of_imports_is_left_alone():
    assert explain(RuntimeError("operator torchvision::nms does not exist")) is None
    with pytest.raises(RuntimeError, match="nms"), explain_imports():
        raise RuntimeError("operator torchvision::nms does not exist")


def test_extras_are_those_of_the_project_file():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def list_names(requirements):
        return {re.match(r"[\w-]+", one)[0].lower() for one in requirements}

    assert list_names(project["dependencies"]) == {*REQUIRED}
    declared = project["optional-dependencies"]
    for extra, distributions in EXTRAS.items():
        assert list_names(declared[extra]) == {one.lower() for one in distributions}, extra
    assert {*declared} - {*EXTRAS} == {"browser", "docs", "dev", "all"}


def test_the_citation_is_of_this_version():
    assert f"version: {zoo.__version__}\n" in (ROOT / "CITATION.cff").read_text()
