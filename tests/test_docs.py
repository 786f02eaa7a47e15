"""What the pages say is so: their code runs, their links hold, their recipes are claims with numbers."""

import doctest
import re
from pathlib import Path

import pytest

import zoo
from zoo import functions

ROOT = Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


def test_the_python_of_the_readme_runs():
    code = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    exec("\n".join(line for line in code.splitlines() if "zoo.load" not in line), {})


def test_the_example_of_the_layer_runs():
    import torch

    names = {"Attention": functions.Attention, "Dims": zoo.Dims, "torch": torch}
    (example,) = doctest.DocTestFinder(recurse=False).find(functions.Attention, "Attention", globs=names)
    assert len(example.examples) == 2
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_hold(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_name_what_there_is(page):
    known = (
        {path.stem for path in RECIPES} | set(zoo.encoding_names()) | {"vit_window", "window", "RECIPE", "NAME", "VERB"}
    )
    for word in re.findall(r"^ *(?:\$ )?zoo (?:fit|show) (\S+)", page.read_text(), re.MULTILINE):
        assert word in known


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_opens_with_its_claim(path):
    lines = path.read_text().splitlines()
    assert re.fullmatch(r"# .+\.", lines[0])
    assert [line.split()[1] for line in lines[2:6]] == ["paper", "command", "cost", "number"]
    assert lines[3].split()[2:] == ["zoo", "fit", path.stem]
    assert re.search(r"test/accuracy 0\.\d{4}|not recorded yet", lines[5])
    assert len(lines) <= 25


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_resolves_builds_and_trains_two_steps(path, tmp_path, monkeypatch):
    from zoo.verbs.fit import fit

    monkeypatch.chdir(tmp_path)
    small = ["trainer.max_steps=2", "trainer.max_epochs=null", "trainer.accelerator=cpu", "model.depth=2"]
    result = fit(path.stem, [*small, "data.test=0.45", "data.val=0.45", "data.batch_size=16"], None, "never")
    assert result["count"] == 809
