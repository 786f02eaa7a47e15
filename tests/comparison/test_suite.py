"""Suites: one command compares encodings in all parts that a file declares."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import comparisons
import pytest
import yaml
from comparisons import plant_results
from tiny import ROOT

from zoo import config
from zoo.comparison.suite import list_edits_of, load_suite
from zoo.comparison.suite_files import list_suites
from zoo.comparison.suite_results import draw_scores
from zoo.comparison.suite_run import check_suite
from zoo.errors import RecipeError
from zoo.reporting.cuts import ARROWS

SUITE = """
title: Tiny suite
about: Two tasks
limits: [It is tiny.]
seeds: 3
set: {trainer: {accelerator: cpu, num_threads: 1, max_epochs: null, max_steps: 2}}
parts:
  tracking:
    title: State tracking
    recipe: flipflop_rope
    set: {model: {dim: 16, depth: 1, heads: 2}, data: {length: 16}, evaluate: {lengths: [16, 32]}}
    columns: [trained, "32"]
  images:
    title: Images
    recipe: vit_comrope
    instead: {rope: rope_axial}
    set: {model: {dim: 16, depth: 1, heads: 2}, evaluate: {resolutions: [16]}}
"""
WORDS = ["suite=tiny.yaml", "encodings=[rope,fox]", "to=out", "jobs=1"]


@pytest.fixture
def suite(compared):
    """zoo compare, next to the file of a suite."""
    Path("tiny.yaml").write_text(SUITE)
    return compared


def test_a_suite_is_one_page_of_all_its_parts(suite):
    # time that is over before the first cell leaves plans and a page
    code, out, message = suite(*WORDS, "minutes=1e-6")
    assert code == 0, message
    assert "State tracking: Not finished: 0 of 6 cells are done, 6 waiting." in out

    # all of it is in a record of the same settings
    levels = {"rope": 0.9, "rope_axial": 0.8, "fox": 0.6}
    plant_results("out/tracking", levels)
    plant_results("out/images", levels, baseline=0.95)
    Path("out").rename("record")
    code, out, message = suite(*WORDS, "records=[record]")
    assert code == 0, message
    assert "6 cells of 6 taken from record/tracking" in message

    assert "| State tracking, accuracy | 16 tokens" in out
    assert "| **0.899** | 0.600\u2020 |" in out
    assert "- Images: Inconclusive: no model beats the baseline majority class" in out
    assert "- Images: rope_axial stands for rope." in out
    assert "- Images: fox is not applicable (fox takes 1 axis, not 2" in out
    assert "It is tiny." in out
    # one task is left, since nothing follows from the other
    assert "No ranking: a ranking over tasks needs two comparisons" in out

    names = {path.name for path in Path("out").iterdir() if path.is_file()}
    assert names >= {"index.html", "suite.md", "table.tex", "table.csv", "results.json"}
    assert names >= {"suite.png", "suite.svg", "suite.pdf"}
    page = Path("out/index.html").read_text()
    assert '<a href="images/index.html">Images</a>' in page
    assert "<strong>0.899</strong>" in page
    found = json.loads(Path("out/results.json").read_text())
    assert found["parts"]["images"]["recorded_cells"] == 3
    assert found["parts"]["images"]["not_applicable"].keys() == {"fox"}

    table = Path("out/table.tex").read_text()
    assert r"\begin{table*}" in table
    assert r"rope & \textbf{0.899} & 0.799 \\" in table
    fox = next(line for line in table.splitlines() if line.strip().startswith("fox"))
    assert fox.endswith(r"n/a \\")
    rows = Path("out/table.csv").read_text().splitlines()
    assert rows[-1].startswith("best baseline,")


def test_parts_are_ranked_together(suite):

    words = ["suite=tiny.yaml", "encodings=[none,learned]", "to=out", "jobs=1"]
    assert suite(*words, "minutes=1e-6")[0] == 0
    for part in ("tracking", "images"):
        plant_results(f"out/{part}", {"none": 0.4, "learned": 0.7}, baseline=0.1)
    code, out, message = suite(*words)
    assert code == 0, message
    assert "| learned | 1.000 (" in out
    assert "the same command" not in message


def make_part(title, levels, baselines=()):
    """A part of a suite whose encodings reached these accuracies."""
    made = comparisons.images(levels=levels)
    found = {"test/accuracy": dict(baselines)}
    variants = tuple(
        replace(one, cells=tuple(replace(cell, baselines=found) for cell in one.cells))
        for one in made.variants
    )
    return SimpleNamespace(
        declared=SimpleNamespace(title=title),
        variants={name: name for name in levels},
        comparison=replace(made, variants=variants),
    )


def draw(*parts):
    suite = SimpleNamespace(parts=parts, encodings=["rope", "none", "odd"])
    spec = draw_scores(suite).to_dict(validate=False)
    rows = [json.loads((one.get("data") or spec["data"])["values"]) for one in spec["layer"]]
    (scale,) = {tuple(one["encoding"]["x"]["scale"]["domain"]) for one in spec["layer"]}
    return spec["layer"], rows, scale, spec["layer"][0]["encoding"]["x"]["title"]


def test_a_score_far_below_the_baseline_is_an_arrow():
    levels = {"rope": 0.9, "none": 0.7, "odd": 0.05}
    (dots, arrows), (inside, cut), (low, high), title = draw(
        make_part("a", levels, {"regression": 0.6}.items())
    )
    assert {row["encoding"] for row in inside} == {"rope", "none"}
    assert all(low <= row["score"] <= high for row in (*inside, *cut))
    assert [row["encoding"] for row in cut] == ["odd"]
    assert (dots["mark"]["type"], arrows["mark"]["type"]) == ("point", "text")
    assert arrows["mark"]["text"] == ARROWS["left"]
    assert title == "score: 0 is the best baseline, 1 the best encoding; arrows: below -0.5"


def test_the_axis_of_scores_says_what_0_is():
    levels = {"rope": 0.9, "none": 0.7}
    layers, _, _, title = draw(make_part("a", levels))
    assert len(layers) == 1
    assert title == "score: 0 is the last encoding, 1 the best encoding"
    both = draw(make_part("a", levels), make_part("b", levels, {"majority": 0.1}.items()))
    assert both[3].startswith("score: 0 is the last encoding or the best baseline, 1")


def test_a_dry_run_counts_all_parts(suite):
    code, out, message = suite(*WORDS, "--dry-run")
    assert code == 0, message
    assert "| tracking |     6 |    6 |    12 |" in out
    assert "| fox            |" in out
    assert "left: 9 cells or trials, 18 training steps" in out
    assert not Path("out").exists()
    found = json.loads(
        suite(*WORDS, "parts=[images]", "images.trainer.max_steps=5", "--dry-run", "--json")[1]
    )
    assert [one["steps"] for one in found["parts"]] == [15]


def test_a_part_without_its_data_is_counted_by_declared_sizes(suite):
    part = """
  text:
    title: Text
    recipe: lm_rope_124m
    set: {trainer: {devices: 1}}
    stand_in: {vocabulary: 50257}
"""
    Path("tiny.yaml").write_text(SUITE + part + "flops_per_second: 1.0e+14\n")
    words = ["suite=tiny.yaml", "encodings=[rope,rope_axial]", "parts=[text]"]
    code, out, message = suite(*words, "--dry-run", "--json")
    assert code == 0, message
    found = json.loads(out)
    (text,) = found["parts"]
    assert text["steps"] == 3 * 2
    # 6 operations for each parameter and token, and those of attention
    tokens = 6 * 512 * 1024
    assert 6 * 123e6 * tokens < text["flops"] < 7.5 * 123e6 * tokens
    assert found["device_hours"] == pytest.approx(text["flops"] / 1e14 / 3600)
    assert text["refused"].keys() == {"rope_axial"}
    code, _, message = suite(*words)
    assert code == 2
    assert "text: " in message
    assert "data.path: missing" in message


def test_missing_data_of_all_parts_are_named(suite):
    parts = "".join(
        f"""
  {name}:
    title: Text {name}
    recipe: lm_rope
    set: {{data: {{name: text, files: {name}.txt}}}}
"""
        for name in ("first", "second")
    )
    Path("tiny.yaml").write_text(SUITE + parts)
    code, _, message = suite("suite=tiny.yaml", "encodings=[rope]")
    assert code == 4, message
    for name in ("first", "second"):
        assert f"{name}: " in message
        assert f"{name}.txt" in message


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["suite=smal", "encodings=[rope]"],
            "there is no suite 'smal'; did you mean small?; suites are ",
        ),
        (["suite=no.yaml", "encodings=[rope]"], "suite: no such file in"),
        ([*WORDS, "parts=[image]"], "parts: there is no part 'image'; did you mean images?"),
        ([*WORDS, "seeds=5"], "seeds: the file of the suite decides it; copy the file, change it"),
        ([*WORDS, "tune.optim.lr=[1e-3,1e-2,log]"], "tune: the suite decides it"),
        (["suite=tiny.yaml"], "write encodings=[rope,alibi]"),
        (
            ["suite=tiny.yaml", "encodings=[rop]"],
            "there is no 'rop' among encodings; did you mean rope?",
        ),
        ([*WORDS, "images.model.depht=3"], "images: "),
        ([*WORDS, "--plugin", "my_zoo"], "my_zoo"),
    ],
    ids=str,
)
def test_mistakes_are_named_before_anything_starts(suite, words, text):
    code, _, message = suite(*words)
    assert code == 2
    assert text in message
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (
            "title: Images",
            "titel: Images",
            "parts.images.titel: unknown key; did you mean parts.images.title?",
        ),
        ("  images:", "  model:", "parts.model: cannot be the name of a part"),
        ("seeds: 3", "studies: 3", "studies need a budget"),
        ("seeds: 3", "studies: 3\nbudget: 2", "parts.tracking: nothing is tuned"),
        (
            "recipe: vit_comrope",
            "recipe: vit_comrop",
            "tiny.yaml:15: parts.images.recipe: there is no such recipe",
        ),
        ("seeds: 3", "seeds: many", "tiny.yaml:5: seeds: expected an integer"),
        (
            "instead: {rope: rope_axial}",
            "instead: {rope: rope_axal}",
            "tiny.yaml:16: parts.images.instead.rope: no encodings named 'rope_axal'; "
            "did you mean rope_axial?",
        ),
        (
            "instead: {rope: rope_axial}",
            "instead: {rop: rope_axial}",
            "tiny.yaml:16: parts.images.instead.rop: no encodings named 'rop'; did you mean rope?",
        ),
        (
            "instead: {rope: rope_axial}",
            "instead: {rope: {name: rope_axial, bas: 100}}",
            "tiny.yaml:16: parts.images.instead.rope: rope_axial: bas: unknown key; did you mean base?",
        ),
        (
            "{dim: 16, depth: 1, heads: 2}, evaluate: {resolutions",
            "{dim: 16, depth: 1, heds: 2}, evaluate: {resolutions",
            "images: tiny.yaml:17: parts.images.set.model.heds: unknown key",
        ),
        (
            "num_threads: 1, max_epochs",
            "num_threds: 1, max_epochs",
            "tracking: tiny.yaml:6: set.trainer.num_threds: unknown key",
        ),
        (
            'columns: [trained, "32"]',
            'columns: [trained, "33"]',
            "tiny.yaml:12: parts.tracking.columns.1: the recipe has no condition '33'",
        ),
        (
            "seeds: 3",
            "studies: 3\nbudget: 2\ntune: {optim: {lrr: [1.0e-3, 1.0e-2, log]}}",
            "tiny.yaml:7: tune.optim.lrr: unknown key",
        ),
    ],
    ids=lambda word: word.strip(),
)
def test_a_wrong_file_is_refused_with_its_line_and_key(suite, before, after, text):
    Path("tiny.yaml").write_text(SUITE.replace(before, after))
    code, _, message = suite(*WORDS)
    assert code == 2
    assert text in message


FREE_TEXT = {"title", "about", "limits"}


def _list_misspelt(value, above=()):
    """Yield (path, copy of a suite in which one key or string has a letter more)."""
    if isinstance(value, dict):
        for key, child in value.items():
            # the name of a part, and what is only printed, can be anything
            if above != ("parts",) and key not in FREE_TEXT:
                swapped = {f"{key}q" if word == key else word: one for word, one in value.items()}
                yield (*above, f"{key}q"), swapped
            if key not in FREE_TEXT:
                for path, changed in _list_misspelt(child, (*above, key)):
                    yield path, {**value, key: changed}
    elif isinstance(value, list):
        for number, child in enumerate(value):
            for path, changed in _list_misspelt(child, (*above, number)):
                yield path, [*value[:number], changed, *value[number + 1 :]]
    elif isinstance(value, str):
        yield above, f"{value}q"


def test_no_misspelt_word_of_a_suite_is_ignored(suite):
    whole = yaml.safe_load(SUITE)
    for path, changed in _list_misspelt(whole):
        Path("tiny.yaml").write_text(yaml.safe_dump(changed))
        with pytest.raises(RecipeError) as caught:
            pytest.fail(f"{path} is ignored: {_check()}")
        assert all(issue.origin.startswith("tiny.yaml:") for issue in caught.value.issues), path


def _check():
    return check_suite("tiny.yaml", encodings=["rope", "fox"], given={})


@pytest.mark.parametrize(
    "entry", ["{name: fox, gat: 1}", "{name: lookhere, depth: -1}", "fxo"], ids=str
)
def test_no_mistake_in_an_encoding_passes_for_one_that_is_not_applicable(suite, entry):
    code, _, message = suite("suite=tiny.yaml", f"encodings=[rope,{entry}]", "to=out", "jobs=1")
    assert code == 2, message
    assert not Path("out").exists()


@pytest.mark.parametrize("name", sorted(list_suites()))
def test_the_recipes_of_shipped_suites_load(name):
    file = load_suite(name)
    for part in file.suite.parts.values():
        recipe = config.load(file.find_recipe(part), list_edits_of(file.suite, part))
        assert recipe.trainer.devices == 1
        evaluate = recipe.evaluate
        sizes = map(str, (*(evaluate.lengths or ()), *(evaluate.resolutions or ())))
        assert {*part.columns} <= {"trained", *(evaluate.data_variants or ()), *sizes}


def test_a_copy_is_read_by_its_path(tmp_path):
    copy = tmp_path / "copy.yaml"
    copy.write_text(
        (ROOT / "configs/suites/small.yaml").read_text().replace("studies: 3", "studies: 5")
    )
    assert load_suite(copy).suite.studies == 5
    with pytest.raises(RecipeError, match=r"suites are .*small"):
        load_suite("large")
