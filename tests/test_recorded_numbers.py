"""Numbers in prose are those of recorded files, and recorded cells give them again."""

import importlib
import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path

import comparisons
import pytest

from zoo.compare.results import TRAINED
from zoo.compare.text import describe_result

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "docs/equip/smollm2.md",
    "docs/equip/minilm.md",
    *(f"docs/questions/{one.name}" for one in (ROOT / "docs/questions").glob("*.md")),
]
FACTS = ("Python 3.11 to 3.13", "95 % intervals", "Apache-2.0")
RERUN = [
    "resolution/digits",
    "length/shakespeare",
    "length/shakespeare_tuned",
    "memory/flipflop",
    "memory/flipflop_tuned",
]


@pytest.fixture(scope="module")
def docs():
    """docs/comparison_pages.py and docs/quoted_numbers.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "docs"))
        yield importlib.import_module("comparison_pages"), importlib.import_module("quoted_numbers")


@pytest.mark.parametrize("page", [*PAGES, "docs/overview.md"])
def test_prose_has_no_number_but_quoted_ones(page, docs):
    text = (ROOT / page).read_text().partition("## Recorded\n")[0]
    if page == "docs/overview.md":
        # its tables and the count of seeds are made
        seeds = {str(len(docs[0].read_comparison(one).seeds)) for one in docs[0].list_records()}
        text = re.sub(r"^\|.*$", "", text, flags=re.MULTILINE)
        text = text.replace(f"a mean over {' or '.join(sorted(seeds))} seeds", "")
    assert docs[1].list_unquoted(text, FACTS) == []
    assert docs[1].update_numbers(text) == text, "run python docs/pages.py"


def test_heads_of_the_overview_say_what_was_compared(docs):
    made, _ = docs
    for _, *columns in made.OVERVIEW_TABLES.values():
        for column in columns:
            found = re.findall(r"\d+", column.head)
            comparison = column.comparison
            recipe = json.dumps(comparison.base["data"]) + comparison.training_size
            known = re.findall(r"\d+", recipe if column.condition == TRAINED else column.condition)
            evaluated = json.dumps(comparison.base["evaluate"])
            assert {*found[-1:]} <= {*known, *re.findall(r"\d+", evaluated)}, column


def test_the_versions_of_python_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    versions = [one.rpartition(" ")[2] for one in project["classifiers"] if "Python :: 3." in one]
    assert project["requires-python"].startswith(">=3.11")
    assert (versions[0], versions[-1]) == ("3.11", "3.13")


def test_a_wrong_number_is_found_and_written_anew(docs):
    _, quoted = docs
    mark = "<!-- speed/lm_small: most t5 kerple -->"
    assert quoted.update_numbers(f"takes 9.99{mark}") == f"takes 1.13{mark}"
    assert quoted.list_unquoted(f"a 1.13{mark}\nb 0.5 more\n`c 1`\nt5, ViT-S\nthree of 4") == [
        "b 0.5 more",
        "three of 4",
    ]
    assert quoted.list_unquoted("as often\nhalf of them\nTwice so\none of them") == [
        "half of them",
        "Twice so",
    ]
    assert quoted.count_numbers([f"a 1.13{mark}\n| t5 | 0.5 |\n## Recorded\n2 of 3, t5"]) == (1, 3)
    for query in ("speed/lm_small: ratio nobody", "memory/flipflop: mean nobody"):
        with pytest.raises(ValueError, match="nothing is found"):
            quoted.update_numbers(f"1<!-- {query} -->")
    interval = "<!-- memory/flipflop: interval rope at 256 -->"
    assert (
        quoted.update_numbers(f"0.1 (0.0 to 0.2){interval}") == f"0.755 (0.498 to 1.000){interval}"
    )
    verdict = "<!-- resolution/cifar10: verdict comrope_ld(block=8) > rope_axial at 64 -->"
    for old in ("undecided", "not held, +0.1 (0.0 to 0.2)"):
        assert quoted.update_numbers(old + verdict).startswith("held, +0.1")
        assert quoted.list_unquoted(f"This is {old}{verdict}") == []
    mean = "<!-- memory/flipflop: mean rope at 256 -->"
    assert quoted.update_numbers(f"0.000{mean}") == f"0.755{mean}"


def test_a_page_opens_each_record_with_its_verdict(docs, tmp_path, monkeypatch):
    made, _ = docs
    untuned = comparisons.images()
    settings = {"settings": {"optim.lr": 0.01}, "value": 0.9}
    found = {"trials": [settings], "best": 0, "near": [0], "edges": []}
    tuning = {
        "budget": 1,
        "seed": 1000,
        "monitor": "val/accuracy",
        "better": "high",
        "keys": [{"key": "optim.lr", "searched": "[0.001,0.1,log]", "choices": []}],
        "variants": {one.name: found for one in untuned.variants},
    }
    assert made._write_verdict(untuned) == made.UNTUNED
    verdict = made._write_verdict(replace(untuned, tuning=tuning))
    assert verdict.startswith("**At 16 pixels comrope_ld has the highest mean: test accuracy 0.9")
    assert "Each variant was tuned by 1 trials" in verdict

    def with_baseline(value):
        baselines = {"test/accuracy": {"regression": value}}
        variants = [
            replace(one, cells=tuple(replace(cell, baselines=baselines) for cell in one.cells))
            for one in untuned.variants
        ]
        return replace(untuned, variants=tuple(variants))

    assert "no model beats" in made._write_verdict(with_baseline(0.9999))
    assert made._write_verdict(with_baseline(0.2)) == (
        f"**{describe_result(untuned, TRAINED)}** {made.HELD_EQUAL}"
    )


def test_the_overview_names_a_variant_without_defaults(docs):
    made, _ = docs
    assert made._drop_defaults("comrope_ld(block=8)") == "comrope_ld"
    assert made._drop_defaults("comrope_ld(block=4)") == "comrope_ld(block=4)"
    assert made._drop_defaults("kerple+dape") == "kerple+dape"


def test_a_tuned_record_tells_what_changed_against_the_untuned_one(docs):
    made, _ = docs
    tuned, untuned = (
        made.QUESTIONS / f"memory/{one}.json" for one in ("flipflop_tuned", "flipflop")
    )
    lines = [*made._compare_with_earlier(made.read_comparison(tuned), tuned)]
    assert [*made._compare_with_earlier(made.read_comparison(untuned), untuned)] == []
    rows = [re.split(r" *\| *", row) for row in lines[2].splitlines()[2:]]
    recipe = made.read_comparison(untuned).base["optim"]
    for _, name, before, now, settings, _ in rows:
        for text, path in ((before, untuned), (now, tuned)):
            mark = f"<!-- memory/{path.stem}: mean {name} -->"
            assert docs[1].update_numbers(f"{text[:5]}{mark}") == f"{text[:5]}{mark}"
        own = made.read_comparison(tuned).tuning["variants"][name]
        found = own["trials"][own["best"]]["settings"]
        is_changed = found["optim.lr"] != recipe["lr"]
        changed = f"`optim.lr={found['optim.lr']:g}` (before {recipe['lr']:g})"
        assert (changed in settings) == is_changed
        assert ("encoding_lr" in settings) == (found["optim.encoding_lr"] != 1)
    assert {row[1] for row in rows} == {"rope", "t5", "shaw", "none"}
    steps = [
        max(cell.steps for cell in made.read_comparison(one).cells) for one in (untuned, tuned)
    ]
    told = f"All trained otherwise with {steps[1]:,} steps (before {steps[0]:,})."
    assert (told in lines[-2]) == (steps[0] != steps[1])
    same = made.read_comparison(tuned)
    model = {**same.base["model"], "scale_embeddings": not same.base["model"]["scale_embeddings"]}
    other = replace(same, base={**same.base, "model": model})
    assert [*made._list_changed_settings(other, same)] == ["model.scale_embeddings"]


def test_a_tuned_record_is_set_against_the_closest_untuned_one(docs):
    made, quoted = docs
    path = made.QUESTIONS / "length/shakespeare_tuned.json"
    tuned = made.read_comparison(path)
    text = "".join(made._compare_with_earlier(tuned, path))
    interval = "1.0 (0.0 to 2.0)<!-- length/shakespeare: interval rope -->"
    assert quoted.update_numbers(interval).partition("<")[0] in text
    assert '`trainer.precision="bf16-mixed"` (before "32-true")' in text
    nothing = {"trials": [{"settings": {}}], "best": 0}
    variants = {**tuned.tuning["variants"], "rope": nothing}
    kept = replace(tuned, tuning={**tuned.tuning, "variants": variants})
    assert "rope kept those" in "".join(made._compare_with_earlier(kept, path))


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
    (verdict,) = re.findall(r"\*\*After 500 steps(.*)\*\*", text)
    assert "none" not in verdict
    assert "old" not in text


@pytest.mark.recorded
@pytest.mark.parametrize("name", RERUN)
def test_a_recorded_cell_gives_its_numbers_again(name, docs, tmp_path):
    made, _ = docs
    comparison = made.read_comparison(made.QUESTIONS / f"{name}.json")
    missing = [one for one in comparison.base["data"].get("files", ()) if not Path(one).exists()]
    if missing:
        pytest.skip(f"{missing[0]}, whose source the page names, is not here")
    assert made.rerun_cell(comparison, *made.find_quickest(comparison), tmp_path) == {}
