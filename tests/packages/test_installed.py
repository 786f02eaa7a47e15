"""What is built and installed works without the checkout, and so does the example of a plug-in."""

import json
import re
import tarfile
import zipfile
from pathlib import Path

import pytest
from tiny import ROOT, TINY

import zoo
from zoo.utils import follow_latest

PLACES = """
import importlib.metadata, zoo, zoo_example
print(zoo.__file__, zoo_example.__file__, zoo.__version__, importlib.metadata.version("transformer-zoo"))
"""
ONE_AFTER_ANOTHER = """
import contextlib, io, json, sys
from zoo.cli import main
told = {}
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(words) == 0, words
    told[" ".join(words[:2])] = out.getvalue()
print(json.dumps(told))
"""
FEW = [
    "trainer.max_epochs=1",
    "data.train=64",
    "data.val=32",
    "data.test=48",
    "trainer.accelerator=cpu",
]


@pytest.fixture(scope="module")
def outputs(environment):
    """What verbs print, all in one process: importing torch and Lightning takes longer than the rest."""
    verbs = [
        ["show", "gaussian"],
        ["fit", "vit_comrope", "--json", *TINY],
        ["fit", "vit_gaussian", "--json", *FEW],
    ]
    return json.loads(environment.run("python", "-c", ONE_AFTER_ANOTHER, json.dumps(verbs)))


def test_recipes_and_fragments_are_in_the_wheel(wheel):
    held = {
        name.removeprefix("zoo/")
        for name in zipfile.ZipFile(wheel).namelist()
        if name.endswith(".yaml") and not name.startswith("zoo/trained/")
    }
    expected = [path for place in ("recipes", "configs") for path in (ROOT / place).rglob("*.yaml")]
    assert held == {path.relative_to(ROOT).as_posix() for path in expected}


def test_the_source_distribution_is_small_and_holds_no_records(sdist):
    # 4.4 MB are weights: a wheel is built from it
    assert sdist.stat().st_size <= 6_000_000
    with tarfile.open(sdist) as archive:
        tops = {name.split("/")[1] for name in archive.getnames()}
    assert tops >= {"zoo", "configs", "recipes", "README.md", "LICENSE"}
    assert not tops & {"docs", "tests", "examples"}


def test_the_wheel_holds_zoo_alone(wheel):
    assert wheel.stat().st_size <= 6_000_000
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert tops == {"zoo", f"transformer_zoo-{zoo.__version__}.dist-info"}
    names = zipfile.ZipFile(wheel).namelist()
    (licence,) = [name for name in names if name.endswith("licenses/LICENSE")]
    assert zipfile.ZipFile(wheel).read(licence) == (ROOT / "LICENSE").read_bytes()
    data = [path for path in (ROOT / "zoo").rglob("*.*") if path.suffix not in (".py", ".pyc")]
    files = {path.relative_to(ROOT).as_posix() for path in data if path.is_file()}
    assert {"zoo/data/digits.csv.gz", "zoo/synonyms.toml"} < files <= set(names)


def test_the_readme_of_the_wheel_has_no_relative_link(wheel):
    """An index shows it, where there are no other files; every link leads to one of the checkout."""
    (metadata,) = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("METADATA")]
    text = zipfile.ZipFile(wheel).read(metadata).decode()
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(links) > 20
    assert [link for link in links if not link.startswith("https://")] == []
    pattern = (
        r"https://(?:github|raw\.githubusercontent)\.com/transformer-zoo/zoo/(?:blob/)?main/([^#]+)"
    )
    files = [found[1] for link in links if (found := re.match(pattern, link))]
    assert len(files) > 20
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_the_installed_one_is_asked(environment):
    *places, version, recorded = environment.run("python", "-c", PLACES).split()
    assert all(Path(place).is_relative_to(environment.bin.parent) for place in places)
    assert version == recorded


def test_it_lists_what_there_is(environment):
    for kind, name in {"encodings": "comrope_ld", "data": "digits", "models": "vit"}.items():
        assert re.search(f"^{name} ", environment.run("zoo", "list", kind), re.MULTILINE)
    recipes = {line.split()[0] for line in environment.run("zoo", "list", "recipes").splitlines()}
    assert recipes == {path.stem for path in (ROOT / "recipes").glob("*.yaml")} | {
        "vit_gaussian",
        "vit_gaussian_lion",
    }


def test_recipes_of_the_wheel_and_of_the_plug_in_train(environment, outputs):
    assert '"count": 719' in outputs["fit vit_comrope"]
    assert '"count": 48' in outputs["fit vit_gaussian"]
    for recipe in ("vit_comrope", "vit_gaussian"):
        run = follow_latest(environment.home / "runs" / recipe / "latest")
        assert (run / "checkpoints" / "best.ckpt").is_file()


def test_the_plug_in_is_found_without_being_named(environment, outputs):
    assert re.search(
        r"^gaussian +A Gaussian of the distance",
        environment.run("zoo", "list", "encodings"),
        re.MULTILINE,
    )
    assert re.search(
        r"^dots +Images of two dots", environment.run("zoo", "list", "data"), re.MULTILINE
    )
    assert "exp(log_width)" in outputs["show gaussian"]
    assert "recipes\n  vit_gaussian" in outputs["show gaussian"]
