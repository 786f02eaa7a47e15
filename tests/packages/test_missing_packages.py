"""Missing and broken packages end in one line; layers and laws import nothing but torch."""

import ast
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from tiny import ROOT, TINY

import zoo
from zoo.packages import (
    EXTRAS,
    REQUIRED,
    TRANSITIVE,
    PackageError,
    explain,
    explain_imports,
    name_module,
)

BLOCK = """
import os, sys
from importlib.machinery import PathFinder

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in os.environ["BLOCKED"].split(","):
            return None
        return PathFinder.find_spec(name, path, target)

    @classmethod
    def find_distributions(cls, *arguments, **more):
        for one in PathFinder.find_distributions(*arguments, **more):
            if one.metadata["Name"] not in os.environ["BLOCKED"].split(","):
                yield one

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""
OPTIONAL = "altair,datasets,kornia,tokenizers,vl_convert"
ALL_BUT_TORCH = (
    f"{OPTIONAL},scipy,lightning,pytorch_lightning,lightning_utilities,omegaconf,yaml,torchmetrics,"
    "tensorboard,numpy,pandas,PIL,tqdm,markupsafe"
)
INSTALL = r"(\S+ -m )?pip install"
USERS_OWN = {"IPython", "mlflow", "pytest", "trackio", "wandb"}
"""What zoo uses where it finds it: a notebook, a test run, a logger that a recipe names."""
WITHOUT_EXTRAS = """
import contextlib, importlib, io, json, pkgutil, sys
import zoo
from zoo.cli import main
from zoo.packages import PackageError, explain_imports

outputs = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        code = main(words)
    outputs.append([code, out.getvalue()])

def import_all():
    for module in pkgutil.walk_packages(zoo.__path__, "zoo."):
        # the second is imported by pytest alone
        if module.name in ("zoo.__main__", "zoo.auditing.pytest_plugin"):
            continue
        try:
            with explain_imports():
                importlib.import_module(module.name)
        except PackageError as error:
            yield module.name, str(error)

print(json.dumps([outputs, dict(import_all())]))
"""


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
    """The time of `import zoo` is that of two small files: 3 to 7 ms on a busy machine."""
    code = "import sys; before = set(sys.modules); import zoo; print(*set(sys.modules) - before)"
    imported = {*run(tmp_path, "", "-c", code).stdout.split()}
    assert imported == {"zoo", "zoo.version"}


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
    assert second.startswith("this needs lightning, omegaconf, torchmetrics, tensorboard, light")
    assert re.search(rf" and tqdm: {INSTALL} -e {ROOT}$", second)


def test_zoo_list_needs_no_package_at_all(tmp_path):
    done = run(tmp_path, f"torch,{ALL_BUT_TORCH}", "-m", "zoo", "list", "encodings")
    assert done.returncode == 0, done.stderr
    assert "alibi" in done.stdout


def test_zoo_fit_names_what_is_missing(tmp_path):
    done = run(tmp_path, ALL_BUT_TORCH, "-m", "zoo", "fit", "vit_comrope")
    assert done.returncode == 2
    assert re.fullmatch(rf"zoo: this needs lightning, .*: {INSTALL} -e {ROOT}\n", done.stderr)


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


def read_project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def list_names(requirements):
    return {Requirement(one).name for one in requirements if isinstance(one, str)}


def test_extras_are_those_of_the_project_file():
    project = read_project()["project"]
    assert list_names(project["dependencies"]) == {*REQUIRED}
    declared = project["optional-dependencies"]
    for extra, distributions in EXTRAS.items():
        assert list_names(declared[extra]) == {*distributions}, extra
    # the tools of developers are dependency groups, which an index does not show
    assert {*declared} - {*EXTRAS} == {"all", "tensorboard"}
    # requirements of version 0.3 name this extra, whose package is a dependency now
    assert declared["tensorboard"] == []
    (everything,) = map(Requirement, declared["all"])
    assert everything.extras == {*EXTRAS} - {"peers"}


def test_what_zoo_imports_beyond_its_dependencies_comes_with_them():
    requirements = {
        requirement.name.lower()
        for name in REQUIRED
        for requirement in map(Requirement, importlib.metadata.requires(name))
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    }
    assert {name.lower() for name in TRANSITIVE} <= requirements


def test_the_core_is_small_and_bounds_neither_python_nor_torch():
    project = read_project()["project"]
    assert len(project["dependencies"]) == 5
    assert "<" not in project["requires-python"]
    (torch,) = [one for one in project["dependencies"] if Requirement(one).name == "torch"]
    assert {one.operator for one in Requirement(torch).specifier} == {">="}


def list_imports(path):
    """Top-level names of the packages that a file imports anywhere, without those of Python."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module]
        else:
            names = []
        yield from ({one.partition(".")[0] for one in names} - sys.stdlib_module_names)


def test_every_imported_package_is_declared():
    known = {name_module(one) for one in {*REQUIRED, *TRANSITIVE}.union(*EXTRAS.values())}
    imported = {name for path in (ROOT / "zoo").rglob("*.py") for name in list_imports(path)}
    assert imported - {"zoo"} <= known | USERS_OWN
    # and none is declared that is not used; these are used by name, by torch, or by notebooks
    by_name = {"onnx", "x_transformers", "tensorboard", *EXTRAS["notebooks"]}
    assert known - by_name <= imported


def collect_core():
    """Names of the distributions that an installation without extras consists of."""
    core, waiting = set(), [Requirement(one) for one in REQUIRED]
    while waiting:
        found = waiting.pop()
        name = found.name.lower().replace("_", "-")
        if (name, *sorted(found.extras)) in core:
            continue
        core.add((name, *sorted(found.extras)))
        try:
            needed = importlib.metadata.requires(name) or ()
        except importlib.metadata.PackageNotFoundError:
            continue  # of another system
        for one in map(Requirement, needed):
            extras = ["", *found.extras]
            if not one.marker or any(one.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(one)
    return {name for name, *_ in core}


def test_the_core_needs_no_other_package(tmp_path):
    """Commands work, and every module names an extra, where only declared packages are there."""
    core = collect_core() | {"transformer-zoo", "pip", "setuptools"}
    assert "tensorboard" in core
    assert {"datasets", "pandas", "transformers", "scipy"}.isdisjoint(core)
    blocked = {
        name
        for module, owners in importlib.metadata.packages_distributions().items()
        for name in (module, *owners)
        if core.isdisjoint(one.lower().replace("_", "-") for one in owners)
    }
    run_dir = str(tmp_path / "run")
    commands = [
        ["fit", "vit_comrope", *TINY, "trainer.max_epochs=1", "--run-dir", run_dir],
        ["eval", run_dir],
        ["show", "vit_comrope"],
        ["list"],
        ["doctor"],
        ["diagnose", run_dir],
    ]
    done = run(tmp_path, ",".join(blocked), "-c", WITHOUT_EXTRAS, json.dumps(commands))
    assert done.returncode == 0, done.stderr
    outputs, refused = json.loads(done.stdout.splitlines()[-1])
    codes = [code for code, _ in outputs]
    assert codes == [0, 0, 0, 0, 0, 2], outputs
    assert (tmp_path / "run" / "metrics.csv").is_file()
    assert [*(tmp_path / "run" / "tensorboard").glob("events*")]
    assert re.search(rf"this needs altair: {INSTALL} -e '{ROOT}\[compare\]'\n", outputs[-1][1])

    for module, message in refused.items():
        assert re.fullmatch(rf"this needs [\w-]+: {INSTALL} -e '{ROOT}\[\w+\]'", message), module
    areas = ("zoo.api", "zoo.attention", "zoo.config", "zoo.encodings", "zoo.models", "zoo.optim")
    assert not [module for module in refused if module.startswith((*areas, "zoo.run", "zoo.tasks"))]


def test_the_citation_is_of_this_version():
    assert f"version: {zoo.__version__}\n" in (ROOT / "CITATION.cff").read_text()
