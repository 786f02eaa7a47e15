"""The plan of a comparison: what its answer is given in, and what is refused before anything is started."""

import pytest

from zoo.cli.compare import parse_words
from zoo.comparison.grid import build_axes, read_varied_keys
from zoo.comparison.plan import IGNORE, build_plan, write_plan
from zoo.comparison.request import (
    CompareOptions,
    CompareRequest,
    count_gpus,
    list_seeds,
    resolve_recipes,
)
from zoo.data.digits import Digits
from zoo.errors import DataError, OptionError, RecipeError
from zoo.launch.executor import Resources

SMALL = ("model.dim=16", "model.depth=1", "model.heads=2", "trainer.accelerator=cpu")


def make_request(recipe, *overrides, words=("encodings=[none]",), measure=None):
    given = parse_words([*words, *SMALL, *overrides])
    return CompareRequest(
        recipe=recipe,
        overrides=tuple(given["overrides"]),
        axes=build_axes(read_varied_keys(given.get("encodings"), given["vary"])),
        options=CompareOptions(seeds=1, measure=measure),
        command="",
    )


def plan(one):
    return build_plan(one, resolve_recipes(one, is_local=True), Resources(1, 1, 0), is_local=True)


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("flipflop_rope", "accuracy"),
        ("counting_cope", "accuracy"),
        ("parity_none", "accuracy"),
        ("recall_stickbreaking", "accuracy"),
        ("copying_none", "accuracy"),
        ("lm_rope", "loss"),
        ("vit_none", "accuracy"),
    ],
)
def test_the_measure_is_that_of_what_is_asked(recipe, expected):
    found = plan(make_request(recipe))
    assert (found.measure, found.better) == (
        f"test/{expected}",
        "low" if expected == "loss" else "high",
    )
    # every synthetic task can be solved, and no other
    assert found.has_answers is (recipe not in ("lm_rope", "vit_none"))


def test_what_an_older_zoo_ignored_is_brought_up_to_date_and_what_an_owner_wrote_stays(tmp_path):
    made = plan(make_request("vit_comrope"))
    write_plan(made, tmp_path)
    path = tmp_path / IGNORE
    whole = path.read_text()
    path.write_text(whole.replace("/*.pdf\n", ""))
    write_plan(made, tmp_path)
    assert path.read_text() == whole
    own = whole.replace("/*.pdf\n", "/notes.md\n")
    path.write_text(own)
    write_plan(made, tmp_path)
    assert path.read_text() == own


def test_a_measure_that_is_not_logged_is_refused():
    assert plan(make_request("copying_none", measure="exact")).measure == "test/exact"
    with pytest.raises(
        RecipeError,
        match=r'measure: data flipflop has no single answer in each window.* measure="accuracy"',
    ):
        resolve_recipes(make_request("flipflop_rope", measure="exact"), is_local=True)


def test_data_that_is_not_there_is_told_of_all_variants(tmp_path):
    words = (f"vary.data.files=[{tmp_path}/a.txt,{tmp_path}/b.txt]",)
    with pytest.raises(DataError) as error:
        resolve_recipes(make_request("lm_rope", "data.name=text", words=words), is_local=True)
    assert "a.txt" in str(error.value)
    assert "b.txt" in str(error.value)


def test_data_that_is_not_as_it_is_said_to_be_is_a_fault_of_each_variant(monkeypatch):
    def check_source(self):
        raise OptionError("size", "there are no such digits")

    monkeypatch.setattr(Digits, "check_source", check_source)
    with pytest.raises(RecipeError, match=r"data.size: there are no such digits"):
        resolve_recipes(make_request("vit_none"), is_local=True)


@pytest.mark.parametrize(
    "word", ["trainer.devices=2", "trainer.devices='0,1'", "trainer.num_nodes=2"]
)
def test_a_cell_is_one_process(word):
    with pytest.raises(RecipeError, match="a cell is one process"):
        resolve_recipes(make_request("vit_none", word), is_local=True)


def test_a_machine_without_gpus_plans_cells_for_another_one():
    one = make_request("vit_none", "trainer.accelerator=cuda")
    found = resolve_recipes(one, is_local=False)
    assert (
        build_plan(
            one,
            found,
            Resources(1, 1, count_gpus(found[next(iter(found))], is_local=False)),
            is_local=False,
        ).machine["device"]
        == "cpu"
    )


def test_seeds_that_would_run_past_the_largest_are_told():
    one = make_request("vit_none", "seed=4294967294")
    with pytest.raises(RecipeError, match="3 seeds from 4294967294 on end past 4294967295"):
        list_seeds(3, next(iter(resolve_recipes(one, is_local=True).values())))


@pytest.mark.parametrize(
    ("recipe", "overrides", "expected"),
    [
        ("lm_rope", ("evaluate.lengths=[2x]",), "windows side by side"),
        (
            "lm_rope",
            ("evaluate.lengths=[2x]", "data.stride=32"),
            "windows sliding by 32, the last 32 tokens of each are targets",
        ),
        (
            "lm_rope",
            ("evaluate.lengths=[2x]", "evaluate.stride=16"),
            "windows sliding by 16, the last 16 tokens of each are targets",
        ),
        (
            "lm_rope",
            ("evaluate.lengths=[1x,2x]", "evaluate.stride=128"),
            "windows side by side or windows sliding by 128, the last 128 tokens of each are targets",
        ),
        ("flipflop_rope", ("evaluate.lengths=[2x]",), ""),
        ("lm_rope", ("evaluate.lengths=null",), ""),
    ],
)
def test_how_texts_are_cut_is_what_their_source_says(recipe, overrides, expected):
    assert plan(make_request(recipe, *overrides)).windows == expected
