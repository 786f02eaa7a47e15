"""Numbers in prose are those of recorded files."""

import importlib
import json
import re
import tomllib
from pathlib import Path

import pytest

from zoo import packages

ROOT = Path(__file__).parent.parent.parent
PAGES = [
    "README.md",
    "docs/equip/smollm2.md",
    "docs/equip/minilm.md",
    *(f"docs/questions/{one.name}" for one in (ROOT / "docs/questions").glob("*.md")),
]
FACTS = ("Python 3.11 or newer", "95 % intervals", "Apache-2.0")


@pytest.fixture(scope="module")
def docs():
    """docs/build/quoted_numbers.py, where the scripts of docs can be imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs" / "build"))
        yield importlib.import_module("quoted_numbers")


@pytest.mark.parametrize("page", PAGES)
def test_prose_has_no_number_but_quoted_ones(page, docs):
    text = (ROOT / page).read_text().partition("## Recorded\n")[0]
    # made by docs/build/choose_page.py, as another test holds
    text = re.sub("<!-- results -->.*<!-- end of results -->", "", text, flags=re.DOTALL)
    assert docs.list_unquoted(text, docs.read_quotes()[page], FACTS) == []


def test_quoted_numbers_are_those_of_their_files(docs):
    quotes = docs.read_quotes()
    assert {*PAGES} <= {*quotes}
    for page, own in quotes.items():
        text = (ROOT / page).read_text()
        assert docs.update_numbers(text, own) == text, f"{page}: run python docs/build/pages.py"


def test_sentences_have_no_comments():
    """A reader of the source, too, sees sentences; what stands between paragraphs is no sentence."""
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
        inside = re.findall(r"^.*\S.*<!--.*$|^.*-->.*\S.*$", text, re.MULTILINE)
        assert not inside, f"{page}: {inside[0]}"


def test_error_rates_are_quoted_from_their_record(docs):
    own = docs.read_quotes()["docs/comparing.md"]
    sources = [source for quote in own for source in quote.sources]
    assert sum(one.startswith("records/error_rates: highest ") for one in sources) >= 4


def test_versions_are_claimed_only_if_a_record_has_them():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = [one.rpartition(" ")[2] for one in project["classifiers"] if "Python :: 3." in one]
    record = json.loads((ROOT / "docs" / "records" / "environments.json").read_text())
    tried = [one["versions"] for one in record["releases"].values()]
    assert tuple(versions) == packages.TESTED_PYTHON == list_minors(one["python"] for one in tried)
    assert list_minors(one["torch"] for one in tried) == packages.TESTED_TORCH

    # the oldest that is allowed is among them
    assert project["requires-python"] == f">={versions[0]}"
    assert f"torch>={packages.TESTED_TORCH[0]}" in project["dependencies"]
    assert len(project["dependencies"]) == len(packages.REQUIRED) <= 9


def list_minors(versions):
    minors = {tuple(map(int, one.split(".")[:2])) for one in versions}
    return tuple(f"{major}.{minor}" for major, minor in sorted(minors))


def test_the_table_of_environments_is_that_of_its_record(docs):
    page = ROOT / "docs" / "install.md"
    assert importlib.import_module("measured_pages").write_install_page(page) == page.read_text()


def test_a_wrong_number_is_found_and_written_anew(docs):
    def quote(text, *sources):
        return docs.Quote("page.md", text, sources)

    slow = quote("t5 takes {} times", "speed/lm_small: most t5 kerple")
    assert docs.update_numbers("and t5\ntakes 9.99 times", [slow]) == "and t5\ntakes 1.13 times"
    text = "t5 takes 1.13 times\nb 0.5 more\n`c 1`\nt5, ViT-S\nthree of 4"
    assert docs.list_unquoted(text, [slow]) == ["b 0.5 more", "three of 4"]
    words = "as often\nhalf of them\nTwice so\none of them"
    assert docs.list_unquoted(words) == ["half of them", "Twice so"]
    assert docs.count_made("a 1.13\n| t5 | 0.5 |\n## Recorded\n2 of 3, t5") == 3

    for source in ("speed/lm_small: ratio nobody", "records/copying: mean nobody"):
        with pytest.raises(ValueError, match="nothing is found"):
            docs.look_up(source)
    record = "records/copying"
    interval = quote("has {} at", f"{record}: interval rope at longer")
    assert docs.update_numbers("has 0.1 (0.0 to 0.2) at", [interval]) == (
        "has 0.134 (0.053 to 0.215) at"
    )
    broken = "has 0.134\n(0.053 to\n0.215) at"
    assert docs.update_numbers(broken, [interval]) == broken
    both = quote("{} and {}, so", *[f"{record}: mean rope at longer"] * 2)
    assert docs.update_numbers("0.000 and 0.00, so", [both]) == "0.134 and 0.13, so"
    verdict = quote("is {}.", "records/copying: claim none > rope at longer")
    for old in ("undecided", "reversed, +0.1 (0.0 to 0.2)"):
        new = docs.update_numbers(f"This is {old}.", [verdict])
        assert new.startswith("This is held, +0.306 (")
        assert docs.list_unquoted(f"This is {old}.", [verdict]) == []


def test_a_quote_is_in_its_page_once(docs, tmp_path):
    quote = docs.Quote("page.md", "takes {} times", ("speed/lm_small: ratio t5",))
    for text, count in (("nothing", 0), ("takes 1 times, takes 2 times", 2)):
        with pytest.raises(ValueError, match=rf"page.md: 'takes {{}} times'.* {count} times, and"):
            docs.update_numbers(text, [quote])
    path = tmp_path / "quotes.toml"
    path.write_text('["page.md"]\n"{} of {}" = "zoo: packages"\n')
    with pytest.raises(ValueError, match="1 sources for 2 numbers"):
        docs.read_quotes(path)


def test_a_page_of_pretrained_models_waits_for_what_is_not_measured(docs, tmp_path):
    pretrained = importlib.import_module("measured_pages")
    cells = {path.stem: json.loads(path.read_text()) for path in pretrained.CELLS.glob("*.json")}
    cells["transplant-none"]["measured"].pop("500")
    cells["perplexity-32768-ntk"]["perplexity"] = 2.0
    (tmp_path / "page").mkdir()
    for name, cell in cells.items():
        (tmp_path / "page" / f"{name}.json").write_text(json.dumps(cell))
    (tmp_path / "page.md").write_text("Text.\n\n## Recorded\nold")
    text = pretrained.write_pretrained_page(tmp_path / "page.md")
    assert "ntk has the lowest perplexity: ntk 2.00, yarn 17.25" in text
    assert re.search(r"\| none .* 56.89 \| +not yet \|", text)
    (verdict,) = re.findall(r"\*\*Replacing the encoding(.*)\*\*", text)
    assert "is between 18.12 and 36.20;" in verdict
    assert "old" not in text
