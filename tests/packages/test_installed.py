"""What is built and installed works without the checkout, and so does the example of a plug-in."""

import re
import zipfile
from pathlib import Path

from tiny import ROOT, TINY

import zoo

TOLD = """
import importlib.metadata, zoo, zoo_example
print(zoo.__file__, zoo_example.__file__, zoo.__version__, importlib.metadata.version("transformer-zoo"))
"""


def test_recipes_and_fragments_are_in_the_wheel(wheel):
    held = {name.removeprefix("zoo/") for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".yaml")}
    expected = [path for place in ("recipes", "configs") for path in (ROOT / place).rglob("*.yaml")]
    assert held == {path.relative_to(ROOT).as_posix() for path in expected}


def test_the_wheel_holds_zoo_alone(wheel):
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert tops == {"zoo", f"transformer_zoo-{zoo.__version__}.dist-info"}
    (licence,) = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("LICENSE")]
    assert zipfile.ZipFile(wheel).read(licence) == (ROOT / "LICENSE").read_bytes()


def test_the_installed_one_is_asked(environment):
    *places, version, recorded = environment.run("python", "-c", TOLD).split()
    assert all(Path(place).is_relative_to(environment.bin.parent) for place in places)
    assert version == recorded


def test_it_lists_what_there_is(environment):
    listed = environment.run("zoo", "list")
    assert all(re.search(f"^  {name} ", listed, re.MULTILINE) for name in ("comrope_ld", "vit_comrope", "digits", "vit"))
    recipes = {line.split()[0] for line in environment.run("zoo", "list", "recipes").splitlines()}
    assert recipes == {path.stem for path in (ROOT / "recipes").glob("*.yaml")} | {"vit_gaussian"}


def test_it_trains(environment):
    told = environment.run("zoo", "fit", "vit_comrope", "--json", *TINY)
    assert '"count": 809' in told
    assert len(list(environment.home.glob("runs/vit_comrope/latest/checkpoints/best.ckpt"))) == 1


def test_the_plug_in_is_found_without_being_named(environment):
    assert re.search(r"^gaussian +A Gaussian of the distance", environment.run("zoo", "list", "encodings"), re.MULTILINE)
    assert re.search(r"^dots +Images of two dots", environment.run("zoo", "list", "data"), re.MULTILINE)
    told = environment.run("zoo", "show", "gaussian")
    assert "exp(log_width)" in told
    assert "vit_gaussian" in told


def test_the_recipe_of_the_plug_in_trains(environment):
    small = ["trainer.max_epochs=1", "data.train=64", "data.val=32", "data.test=48", "trainer.accelerator=cpu"]
    assert '"count": 48' in environment.run("zoo", "fit", "vit_gaussian", "--json", *small)
