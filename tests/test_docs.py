"""The documentation is right: code runs, links hold, commands resolve, recipes have claims."""

import dataclasses
import doctest
import importlib
import inspect
import math
import re
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from pictures import parquet
from tables import corpus, text
from without_torchvision import import_timm

import zoo
from zoo.attention import functional
from zoo.cli import main
from zoo.config import Recipe, load
from zoo.config.command_line import parse_overrides
from zoo.data.corpus.tokenizer import train_bpe
from zoo.laws import LAWS
from zoo.laws.certificate import Certificate

ROOT = Path(__file__).parent.parent
LITTLE = [
    "model.dim=16",
    "model.heads=2",
    "trainer.precision=32-true",
    "trainer.accumulate_grad_batches=1",
]
FEW = ["data.train=64", "data.test=50", "data.val=50"]
SMALL = {
    "digits": ["data.test=0.02", "data.val=0.02"],
    "python_docs": ["data.test=0.004", "data.val=0.004", "data.length=32"],
    "flipflop": ["data.test=50", "data.val=50", "data.length=16"],
    "counting": [*FEW, "data.steps=8"],
    "selective_copy": [*FEW, "data.symbols=6", "data.blanks=6"],
    "recall": [*FEW, "data.length=24", "data.pairs=4"],
    "addition": [*FEW, "data.digits=4"],
    "copying": [*FEW, "data.symbols=6"],
    "parity": [*FEW, "data.bits=6"],
    "passkey": [*FEW, "data.length=24"],
    "multikey_passkey": [*FEW, "data.length=80", "data.digits=3"],
    "variable_tracking": [*FEW, "data.length=64"],
    "common_words": [*FEW, "data.length=40", "data.common=2", "data.common_repeats=8"],
    "moving_digits": ["data.train=64", "data.test=32", "data.val=32"],
    "images": [
        "data.path=made",
        "data.val=0.25",
        "data.test=0.25",
        "data.size=32",
        "data.workers=0",
        "trainer.precision=32-true",
        "model.dim=96",
        "model.heads=3",
    ],
    "marker_offset": ["data.test=50", "data.val=50", "data.length=16"],
    "text_table": [
        "data.path=made",
        "data.vocabulary=270",
        "data.length=32",
        "data.workers=0",
        *LITTLE,
    ],
    "text_stream": [
        "data.path=made",
        "data.tokenizer=words.json",
        "data.length=32",
        "data.samples=16",
        "data.workers=0",
        *LITTLE,
    ],
}
COUNTS = {
    "digits": 36,
    "python_docs": 59,
    "flipflop": 50,
    "moving_digits": 32,
    "images": 4,
    "marker_offset": 50,
    "text_table": 13,
    "text_stream": 8,
    "counting": 50,
    "selective_copy": 50,
    "recall": 50,
    "addition": 50,
    "copying": 50,
    "parity": 50,
    "passkey": 50,
    "multikey_passkey": 50,
    "variable_tracking": 50,
    "common_words": 50,
}
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
SECTIONS = {field.name for field in dataclasses.fields(Recipe)} - {"name", "locations"}
# Pages show the errors that these keys cause.
MISSPELT = {"model.depht", "optim.param_groups"}
EXAMPLE_FILES = {"zoo/encodings/window.py"}
NEEDED = {
    "transformers": lambda: pytest.importorskip("transformers"),
    "timm": import_timm,
    "pytorch": lambda: None,
}
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


@pytest.fixture(scope="module")
def pages():
    """docs/pages.py, which finds the file beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        yield importlib.import_module("pages")


RUN = ["README.md", "docs/python.md", *(f"docs/equip/{name}.md" for name in NEEDED)]


@pytest.mark.parametrize("page", RUN)
def test_the_python_of_pages_runs(page, tmp_path, monkeypatch):
    NEEDED.get(Path(page).stem, lambda: None)()
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    exec("\n".join(blocks), {})


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) < 150


def test_the_glossary_is_short():
    assert (
        len(re.findall(r"^\*\*", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)) <= 25
    )


def test_question_pages_show_tuned_comparisons_only(pages):
    records = importlib.import_module("comparison_pages")
    shown = records.list_records()
    assert shown
    assert all(records.read_comparison(path).tuning for path in shown)

    for path in sorted((ROOT / "docs" / "records" / "withdrawn").rglob("*.json")):
        assert records.read_comparison(path).tuning is None, f"{path.name} belongs on a page"


def test_an_untuned_comparison_is_not_recorded(pages, tmp_path):
    records = importlib.import_module("comparison_pages")
    folder = tmp_path / "comparison"
    folder.mkdir()
    untuned = ROOT / "docs" / "records" / "withdrawn" / "resolution" / "digits.json"
    shutil.copy(untuned, folder / "results.json")
    with pytest.raises(SystemExit, match="nothing was tuned"):
        records.record_comparison(folder, tmp_path / "digits")
    assert not (tmp_path / "digits.json").exists()


def test_the_site_excludes_withdrawn_records():
    excluded = (ROOT / "mkdocs.yml").read_text().partition("exclude_docs: |")[2]
    assert "\n  records/\n" in excluded.partition("validation:")[0]


def test_the_reference_has_every_public_name():
    listed = re.findall(
        r"^::: zoo\.(\w+)$", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE
    )
    assert sorted(listed) == sorted(zoo.__all__)


def test_the_example_of_the_layer_runs():
    import torch

    names = {"Attention": functional.Attention, "Dims": zoo.Dims, "torch": torch}
    (example,) = doctest.DocTestFinder(recurse=False).find(
        functional.Attention, "Attention", globs=names
    )
    assert len(example.examples) == 2
    assert doctest.DocTestRunner().run(example).failed == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_hold(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        path = (
            (page.parent / target).with_suffix(".json")
            if target.endswith(".html")
            else page.parent / target
        )
        assert target.startswith("http") or path.exists(), (
            target
        )  # the site makes pages of the numbers of comparisons


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_name_what_there_is(page):
    examples = {"vit_window", "window", "vit_gaussian", "gaussian"}
    known = (
        {path.stem for path in RECIPES}
        | set(zoo.encoding_names())
        | examples
        | {"RECIPE", "NAME", "VERB"}
    )
    for word in re.findall(r"^ *(?:\$ )?zoo (?:fit|show) (\S+)", page.read_text(), re.MULTILINE):
        assert word in known


def read_commands(page):
    """The words of the `zoo` commands of a page, without the explanations behind them."""
    for line in page.read_text().replace("\\\n", " ").splitlines():
        command = re.match(r" *(?:\$ )?zoo (\w+ .*)", line)
        if command and line.startswith((" ", "$", "zoo")):
            yield shlex.split(re.sub(r"(?<=\S)\s{2,}\w.*$", "", command[1]), posix=True)


def find_recipe(words):
    """The recipe that a command or its run is of; None for placeholders such as RUN."""
    names = {path.stem for path in RECIPES}
    runs = (re.fullmatch(r"runs/(\w+)/latest", word) for word in words)
    found = [word for word in words if word in names] + [run[1] for run in runs if run]
    return next((name for name in found if name in names), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_recipe_keys_of_commands_resolve(page):
    for words in read_commands(page):
        recipe = find_recipe(words)
        overrides = [word for word in words if "=" in word or word.startswith("~")]
        keys = [word for word in overrides if re.split(r"[.=]", word.lstrip("~"))[0] in SECTIONS]
        if recipe and not MISSPELT & {word.partition("=")[0] for word in keys}:
            load(recipe, parse_overrides(keys))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_opens_with_its_claim(path):
    lines = path.read_text().splitlines()
    assert re.fullmatch(r"# .+\.", lines[0])
    assert [line.split()[1] for line in lines[2:6]] == ["paper", "command", "cost", "number"]
    assert lines[3].split()[2:] == ["zoo", "fit", path.stem]
    assert re.search(r"test/(accuracy|loss) \d\.\d{4}|not recorded yet", lines[5])
    assert len(lines) <= 25


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_resolves_builds_and_trains_two_steps(path, tmp_path, monkeypatch):
    from training import fit

    monkeypatch.chdir(tmp_path)
    recipe = load(path)
    data = recipe.data.name
    small = [
        "trainer.max_steps=2",
        "trainer.max_epochs=null",
        "trainer.accelerator=cpu",
        "model.depth=2",
    ]
    if data == "images":
        parquet(tmp_path / "made" / "train-0.parquet", 16, size=(40, 32), classes=10)
    if data.startswith("text_"):
        corpus(tmp_path / "made", column=recipe.data.options["text"])
        (tmp_path / "words.json").write_text(train_bpe([text(n) for n in range(9)], 300).json)
    result = fit(
        path.stem,
        [*small, *SMALL[data], f"data.batch_size={4 if data == 'images' else 16}"],
        None,
        "never",
    )
    assert result["count"] == COUNTS[data] - (
        COUNTS[data] % 16 if recipe.data.options.get("streams") else 0
    )
    assert all(math.isfinite(value) for value in result["metrics"].values())


def test_pages_made_from_the_code_are_current(pages):
    written = pages.write_pages()
    stale = [path.name for path, text in written.items() if not is_current(path, text)]
    assert not stale, "run python docs/pages.py"
    assert {*(ROOT / "docs" / "encodings").iterdir()} <= {*written}


def is_current(path, text):
    return path.exists() and path.read_text(encoding="utf-8") == text


def test_every_encoding_has_its_certificate():
    paths = sorted((ROOT / "docs" / "conformance").glob("*.json"))
    certificates = [Certificate.read(path) for path in paths]
    remedy = "run zoo verify all to=docs/conformance"

    names = {name for certificate in certificates for name in certificate.facts}
    assert names >= set(zoo.encoding_names()), remedy

    laws = sorted(law.name for law in LAWS)
    for certificate in certificates:
        assert sorted(finding.law for finding in certificate.findings) == laws, remedy
        assert not certificate.with_outcome("broken")
        assert certificate.roundings
        assert not certificate.partial


def test_the_table_of_exported_graphs_has_every_encoding():
    text = (ROOT / "docs" / "export.md").read_text()
    (table,) = re.findall("<!-- traced exports -->(.*)<!-- end", text, re.DOTALL)
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    assert {name for name, *_ in rows[1:]} == set(zoo.encoding_names())
    for _, _, *found in rows[1:]:
        assert all(cell.startswith("refused: ") or float(cell) <= 1e-5 for cell in found)


def test_every_encoding_has_its_picture():
    pictures = (ROOT / "docs" / "images" / "encodings").iterdir()
    assert {path.name for path in pictures} == {f"{name}.png" for name in zoo.encoding_names()}


def test_the_prose_of_a_docstring_is_escaped(pages):
    paper = "[arXiv:2104.09864](https://arxiv.org/abs/2104.09864)"
    text = pages.escape_prose("a * b < c, `a * b`, arXiv:2104.09864")
    assert text == rf"a \* b \< c, `a * b`, {paper}"


def test_every_page_stands_in_the_site():
    site = (ROOT / "mkdocs.yml").read_text()
    folders = [ROOT / "docs", ROOT / "docs" / "questions", ROOT / "docs" / "equip"]
    for page in [page for folder in folders for page in folder.glob("*.md")]:
        assert page.relative_to(ROOT / "docs").as_posix() in site


def test_the_numbers_of_a_head_are_replaced_by_name(pages):
    head = """# A claim.
# cost     3.3 minutes on one core of a busy machine
# number   test/accuracy 0.9000, test/loss 0.5000, exact 0.1000 (seed 0, torch 2.0.1 on a CPU); the paper's: loss 0.3
# lengths  1.000 % at 64, 2.000 % at 256 (error)
# lengths  1.2000 at 64, 1.3000 at 256 (test/loss)
"""
    metrics = {"test/accuracy": 0.95, "test/loss": 0.25, "test/exact": 0.75}
    lengths = {
        "64": {"test/accuracy": 0.98, "test/loss": 1.0},
        "256": {"test/accuracy": 0.5, "test/loss": 2.0},
    }
    replaced = importlib.import_module("recipe_heads").replace_numbers(
        head, {"metrics": metrics, "minutes": 1.26}, lengths
    )
    assert replaced.splitlines()[1:] == [
        "# cost     1.3 minutes on one core",
        "# number   test/accuracy 0.9500, test/loss 0.2500, exact 0.7500 "
        f"(seed 0, torch {torch.__version__.partition('+')[0]} on a CPU); the paper's: loss 0.3",
        "# lengths  2.000 % at 64, 50.000 % at 256 (error)",
        "# lengths  1.0000 at 64, 2.0000 at 256 (test/loss)",
    ]


def test_a_head_that_does_not_say_what_its_numbers_are_is_refused(pages):
    head = "# lengths  1.2000 at 64; 256 is past the table"
    with pytest.raises(SystemExit, match="needs its metric"):
        importlib.import_module("recipe_heads").replace_numbers(
            head, {"metrics": {}, "minutes": 1.0}, {"64": {"test/accuracy": 0.9}}
        )


@pytest.mark.parametrize("page", ["README.md", "docs/training.md"])
def test_config_errors_are_printed_as_pages_show_them(page, capsys):
    (block,) = re.findall(r"```\n\$ zoo (.*?)```", (ROOT / page).read_text(), re.DOTALL)
    command, _, printed = block.partition("\n")
    assert main(shlex.split(command)) == 2
    assert capsys.readouterr().err == printed


def test_the_files_that_pages_name_exist():
    for page in PAGES:
        for path in re.findall(r"`((?:zoo|docs|tests|examples)/[\w/]+\.\w+)`", page.read_text()):
            if path not in EXAMPLE_FILES:
                assert (ROOT / path).exists(), f"{page.name}: {path}"


def test_the_broken_law_on_the_page_about_adding_is_quoted_as_it_is_stated():
    (law,) = (law for law in LAWS if law.name == "shifts_are_seen")
    assert f"    the law: {law.statement}\n" in (ROOT / "docs" / "adding.md").read_text()


@pytest.mark.parametrize("name", sorted(zoo.__all__))
def test_a_public_name_documents_its_arguments(name):
    public = getattr(zoo, name)
    text = inspect.getdoc(public) or ""
    assert text
    if isinstance(public, type):
        return

    parameters = inspect.signature(public).parameters.values()
    assert not [one for one in parameters if not re.search(rf"^ +\**{one.name}: ", text, re.M)]
    assert "Returns:" in text
