"""Links of the documentation hold, generated pages are current, and pages name what exists."""

import ast
import doctest
import importlib
import inspect
import re
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import zoo
from zoo import registry
from zoo.attention import functional
from zoo.config import load, recipe_files
from zoo.laws import LAWS
from zoo.laws.certificate import Certificate
from zoo.run.load import load_experiment
from zoo.tasks.metrics import is_beaten

ROOT = Path(__file__).parent.parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
NAMES = sorted({*zoo.__all__} - {"__version__"})
EXAMPLE_FILES = {"zoo/encodings/window.py"}


@pytest.fixture(scope="module")
def pages():
    """docs/build/pages.py, which finds the file beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "build"))
        yield importlib.import_module("pages")


def test_the_readme_is_short():
    text = (ROOT / "README.md").read_text()
    own = re.sub("<!-- results -->.*<!-- end of results -->\n", "", text, flags=re.DOTALL)
    assert len(own.splitlines()) < 150


def test_the_glossary_is_short():
    assert (
        len(re.findall(r"^\*\*", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)) <= 25
    )


def test_only_comparisons_in_studies_are_shown(pages):
    """What tuned nothing, or once before its seeds, calls equal encodings unequal too often."""
    figures = importlib.import_module("record_figures")
    shown = figures.list_records()
    assert shown
    assert all(figures.read_record(folder).studies for folder in shown)


def test_figures_of_records_show_their_results(pages):
    figures = importlib.import_module("record_figures")
    pairs = [*figures.list_figures()]
    assert pairs
    stale = [figure.name for results, figure in pairs if not figures.is_current(results, figure)]
    assert not stale, "run python docs/build/pages.py"


def test_the_site_excludes_records():
    excluded = (ROOT / "mkdocs.yml").read_text().partition("exclude_docs: |")[2]
    # images/records, their figures, stays
    assert "\n  /records/\n" in excluded.partition("validation:")[0]


def test_the_reference_has_every_public_name():
    listed = re.findall(
        r"^::: zoo\.(\w+)$", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE
    )
    assert sorted(listed) == sorted(NAMES)


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
        path = page.parent / target
        if "records/" in target and target.endswith(".html"):
            path = path.with_name("plan.json")
        elif target.endswith(".html"):
            path = path.with_suffix(".json")
        assert target.startswith("http") or path.exists(), (
            target
        )  # the site makes pages of the numbers of comparisons


def test_every_page_is_two_clicks_from_the_first():
    docs = ROOT / "docs"
    pages = {path for path in docs.rglob("*.md") if not path.is_relative_to(docs / "records")}
    clicks = {docs / "index.md": 0}
    waiting = [*clicks]
    for page in waiting:
        for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
            found = (page.parent / target).resolve()
            if found in pages and found not in clicks:
                clicks[found] = clicks[page] + 1
                waiting.append(found)
    assert {page.relative_to(docs) for page in pages if clicks.get(page, 3) > 2} == set()


def test_the_classes_of_peers_are_those_of_the_tested_versions():
    """docs/peers.md is read again when constraints.txt names another release."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "docs" / "peers.md").read_text().splitlines()
        if line.startswith("| ")
    ]
    constraints = (ROOT / "constraints.txt").read_text()
    places = {"timm": "timm/layers", "x-transformers": "x_transformers"}
    assert {*places} <= {name for name, *_ in rows}
    for name, version, positions, _ in rows:
        if name not in places:
            continue
        assert f"\n{name}=={version}\n" in constraints
        assert metadata.version(name) == version
        classes = re.findall(r"`(\w+)`", positions)
        assert len(classes) > 5
        files = [file for file in metadata.files(name) if places[name] in file.as_posix()]
        source = "\n".join(file.read_text() for file in files if file.suffix == ".py")
        assert [one for one in classes if f"class {one}(" not in source] == []


def test_pages_made_from_the_code_are_current(pages):
    written = pages.write_pages()
    stale = [path.name for path, text in written.items() if not is_current(path, text)]
    assert not stale, "run python docs/build/pages.py"
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
    for name, _, *found in rows[1:]:
        # a graph takes offsets before it squares them, and the model squares near positions
        most = 3e-5 if name == "pape" else 1e-5
        assert all(cell.startswith("refused: ") or float(cell) <= most for cell in found)


def test_every_encoding_has_its_picture():
    pictures = (ROOT / "docs" / "images" / "encodings").iterdir()
    assert {path.name for path in pictures} == {f"{name}.png" for name in zoo.encoding_names()}


@pytest.fixture(scope="module")
def typeset(pages):
    """docs/build/typeset.py."""
    return importlib.import_module("typeset")


def test_every_encoding_has_its_formula(pages):
    assert (*sorted(pages.FORMULAS),) == zoo.encoding_names()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_formulas_can_be_typeset(page, typeset):
    code = r"^```.*?^```$|``.+?``|`[^`\n]+`"
    text = re.sub(code, "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    blocks = re.findall(r"\$\$(.+?)\$\$", text, re.DOTALL)
    inline = re.findall(r"\$([^\s$][^$]*)\$", re.sub(r"\$\$.+?\$\$", "", text, flags=re.DOTALL))
    for latex in (*blocks, *inline):
        made = typeset.typeset_formula(latex, is_block=latex in blocks)
        assert ElementTree.fromstring(made).tag == f"{{{typeset.MATHML}}}math"
    is_encoding = page.parent.name == "encodings"
    assert len(blocks) >= is_encoding


def test_formulas_become_mathml_in_a_page(typeset):
    html = r'<p>If <span class="arithmatex">\(a &lt; b\)</span></p><div class="arithmatex">\[2 \log x\]</div>'
    made = typeset.typeset_page(html)
    assert "arithmatex" not in made
    assert "<mo>&lt;</mo>" in made
    assert re.search(r'class="formula"><math [^>]*display="block"', made)
    assert re.search(r"<mspace [^>]+><mi>log</mi><mspace [^>]+><mi>x</mi>", made)
    with pytest.raises(ValueError, match="unknown"):
        typeset.typeset_formula(r"\nosuchcommand x", is_block=False)


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


def test_the_first_numbers_of_a_head_name_the_best_baseline(pages):
    head = "# A.\n#\n# cost     not recorded yet\n# number   not recorded yet\n"
    end = {
        "metrics": {"test/loss": 0.25, "test/miou": 0.5},
        "baselines": {"test/miou": {"majority": 0.125, "softmax regression": 0.25}},
        "minutes": 1.26,
        "seed": 3,
    }
    replaced = importlib.import_module("recipe_heads").replace_numbers(head, end, {})
    assert replaced.splitlines()[2:] == [
        "# cost     1.3 minutes on one core",
        "# number   test/miou 0.5000, test/loss 0.2500 "
        f"(seed 3, torch {torch.__version__.partition('+')[0]} on a CPU)",
        "# baseline test/miou 0.2500, softmax regression",
    ]
    tied = end | {"baselines": {"test/loss": {"5-gram": 0.25}}, "metrics": {"test/loss": 0.25}}
    replaced = importlib.import_module("recipe_heads").replace_numbers(
        head, tied | {"unit": "nats per character"}, {}
    )
    assert replaced.splitlines()[3:] == [
        "# number   test/loss 0.2500 nats per character "
        f"(seed 3, torch {torch.__version__.partition('+')[0]} on a CPU)",
        "# baseline test/loss 0.2500 nats per character, 5-gram; inconclusive: "
        "the model does not beat it",
    ]


HEAD = re.compile(
    r"(?P<metric>test/\w+) (?P<value>\d+\.\d+)(?: (?P<unit>nats per \w+))?(?:, (?P<name>[\w -]+))?"
)


def test_a_head_and_its_baseline_have_one_metric_and_one_unit(pages):
    heads = importlib.import_module("recipe_heads")
    compared = 0
    for name, path in recipe_files().items():
        text, head, task = path.read_text(), heads.read_head(path), load(name).task.name
        assert "bits_per" not in text, name
        assert "below" not in head["number"], name
        is_recorded = "not recorded yet" not in head["number"]
        is_compared = is_recorded and registry.find("tasks", task).has_data_baselines
        assert ("baseline" in head) == is_compared, name
        if not is_compared:
            continue
        compared += 1
        number, baseline = HEAD.match(head["number"]), HEAD.match(head["baseline"])
        metric, unit = number["metric"], number["unit"]
        assert (metric, unit) == (baseline["metric"], baseline["unit"]), name
        assert (unit is not None) == (task == "causal_lm" and metric == "test/loss"), name
        is_better = is_beaten(metric, float(number["value"]), float(baseline["value"]))
        assert head["baseline"].endswith(f"; {heads.NOT_BEATEN}") == (not is_better), name
    assert compared > 50


@pytest.mark.parametrize("name", ["lm_rope", "vit_cape", "flipflop_rope", "points_period_comrope"])
def test_the_baseline_of_a_head_is_the_best_that_the_data_have(name, pages):
    heads = importlib.import_module("recipe_heads")
    path, experiment = recipe_files()[name], load_experiment(name)
    found = heads.score_baselines(experiment)
    unit = heads.find_loss_unit(experiment)
    assert heads.replace_baseline(path.read_text(), found, unit) == path.read_text()
    head = HEAD.match(heads.read_head(path)["baseline"])
    values = found[head["metric"]]
    best = min if head["metric"] == "test/loss" else max
    assert values[head["name"]] == best(values.values())
    assert f"{best(values.values()):.4f}" == head["value"]


def test_a_head_that_does_not_say_what_its_numbers_are_is_refused(pages):
    head = "# lengths  1.2000 at 64; 256 is past the table"
    with pytest.raises(SystemExit, match="needs its metric"):
        importlib.import_module("recipe_heads").replace_numbers(
            head, {"metrics": {}, "minutes": 1.0}, {"64": {"test/accuracy": 0.9}}
        )


def test_the_files_that_pages_name_exist():
    for page in PAGES:
        for path in re.findall(r"`((?:zoo|docs|tests|examples)/[\w/]+\.\w+)`", page.read_text()):
            if path not in EXAMPLE_FILES:
                assert (ROOT / path).exists(), f"{page.name}: {path}"


def test_the_broken_law_on_the_page_about_adding_is_quoted_as_it_is_stated():
    (law,) = (law for law in LAWS if law.name == "shifts_are_seen")
    assert f"    the law: {law.statement}\n" in (ROOT / "docs" / "adding.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_documents_its_arguments(name):
    public = getattr(zoo, name)
    text = inspect.getdoc(public) or ""
    assert text
    if isinstance(public, type):
        return

    parameters = inspect.signature(public).parameters.values()
    assert not [one for one in parameters if not re.search(rf"^ +\**{one.name}: ", text, re.M)]
    assert "Returns:" in text


def test_every_mistake_is_refuted_by_code():
    mistakes = (ROOT / "docs" / "mistakes.md").read_text().split('\n**"')[1:]
    assert len(mistakes) > 20
    assert [mistake.splitlines()[0] for mistake in mistakes if "```pycon\n" not in mistake] == []


HELD = re.compile(r"<!-- held by\s+(.*?) -->", re.DOTALL)
"""A comment below a paragraph, list or table: the tests that hold what it promises."""


def read_tests(path):
    """Return the names of the tests in a file."""
    tree = ast.parse((ROOT / "tests" / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def split_promises(text):
    """Return the blocks of a page that promise something, each with the comment below it or None."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)  # these run
    text = re.sub(
        r"<!-- ([\w ]+) -->.*?<!-- end of \1 -->", "", text, flags=re.DOTALL
    )  # made by code
    blocks = [block for block in re.split(r"\n{2,}", text.strip()) if not block.startswith("#")]
    below = [*blocks[1:], ""]
    return [
        (block, HELD.fullmatch(after.strip()))
        for block, after in zip(blocks, below, strict=True)
        if not HELD.fullmatch(block.strip())
    ]


@pytest.mark.parametrize("page", ["equip.md", "export.md"])
def test_each_promise_names_the_tests_that_hold_it(page):
    promises = split_promises((ROOT / "docs" / page).read_text(encoding="utf-8"))
    assert [block for block, held in promises if not held] == []
    named = [test for _, held in promises for test in held[1].split()]
    missing = [one for one in named if one.split("::")[1] not in read_tests(one.split("::")[0])]
    assert missing == []
