"""Files over what they extend: order, lookup and cycles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from zoo import config
from zoo.config import Recipe

Made = Callable[..., Recipe]
ListIssues = Callable[..., list[str]]


def write(name: str, text: str) -> None:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)


def test_the_file_wins_over_the_last_which_wins_over_the_first(load_text: Made) -> None:
    write("first.yaml", "model: {depth: 1, dim: 1}\nseed: 1\noptim: {lr: 1}\n")
    write("second.yaml", "model: {dim: 2}\nseed: 2\n")
    recipe = load_text("extends: [toy, first, second.yaml]\nseed: 3\n")
    assert (
        recipe.seed,
        recipe.model.options["dim"],
        recipe.model.options["depth"],
        recipe.optim.options["lr"],
    ) == (3, 2, 1, 1)


def test_extends_is_recursive(load_text: Made) -> None:
    write("middle.yaml", "extends: toy\nmodel: {dim: 5}\n")
    assert load_text("extends: middle\nseed: 3\n").plain()["model"]["dim"] == 5


def test_entries_are_sought_beside_the_file_that_names_them(load_text: Made) -> None:
    write("deep/base.yaml", "extends: toy\nseed: 9\n")
    write("deep/top.yaml", "extends: [base]\n")
    assert load_text("extends: deep/top\n").seed == 9


def test_a_fragment_of_a_plugin_is_found(load_text: Made) -> None:
    recipe = load_text("extends: [toy, optim/toy_adam]\noptim: {lr: 2}\n")
    assert recipe.optim.options["lr"] == 2
    assert recipe.locations["optim.name"].endswith("configs/optim/toy_adam.yaml:3")


def test_a_new_name_drops_inherited_options(load_text: Made) -> None:
    assert load_text("extends: toy\noptim: {name: toy_sgd}\n").optim.options == {
        "lr": 0.1,
        "momentum": 0.9,
    }


def test_an_entry_that_is_not_there_is_the_only_fault(list_issues: ListIssues) -> None:
    (fault,) = list_issues("seed: 1\nextends:\n  - optim/toy_adm\n")
    assert (
        fault
        == "mine.yaml:3: extends.0: there is no fragment or recipe 'optim/toy_adm', and no file in "
        f"{Path.cwd()}; did you mean optim/toy_adam?"
    )


def test_faults_of_the_file_are_told_though_an_entry_is_missing(list_issues: ListIssues) -> None:
    missing, unknown = list_issues("extends: [nowhere]\nmodel: {name: toy_vit, dpth: 1}\n")
    assert "nowhere" in missing
    assert "did you mean model.depth?" in unknown


def test_an_entry_must_be_a_name(list_issues: ListIssues) -> None:
    assert [line.partition(";")[0] for line in list_issues("extends: [toy, 3]\n")] == [
        "mine.yaml:1: extends.1: expected the name of a fragment or recipe"
    ]


def test_a_fault_of_an_extended_file_stands_there(list_issues: ListIssues) -> None:
    write("base.yaml", "extends: toy\n\nmodel: {dim: ten}\n")
    assert list_issues("extends: base\n") == [
        "base.yaml:3: model.dim: expected an integer, got 'ten'"
    ]


def test_bad_yaml_of_an_extended_file_stands_there(list_issues: ListIssues) -> None:
    write("base.yaml", "\nmodel: [\n")
    (fault,) = list_issues("extends: base\n")
    assert fault.startswith("base.yaml:3: bad YAML")


def test_a_recipe_that_extends_itself_is_told_with_the_chain(list_issues: ListIssues) -> None:
    assert list_issues("extends: mine\n") == [
        "mine.yaml:1: extends.0: a recipe that extends itself: mine.yaml -> mine.yaml"
    ]
    write("other.yaml", "seed: 1\nextends: ./mine.yaml\n")
    assert list_issues("extends: other\n") == [
        "other.yaml:2: extends.0: a recipe that extends itself: mine.yaml -> other.yaml -> mine.yaml"
    ]


def test_a_file_may_be_extended_along_two_ways(load_text: Made) -> None:
    for i in range(40):  # 2 ** 40 ways, were files not read once
        write(f"f{i + 1}.yaml", f"extends: [f{i}, f{i}]\n" if i % 8 else "extends: [toy]\n")
    assert load_text("extends: [f8, f8]\n").seed == 0


def test_a_chain_without_end_is_refused(list_issues: ListIssues) -> None:
    for i in range(60):
        write(f"f{i}.yaml", f"extends: f{i + 1}\n")
    (fault,) = list_issues("extends: f0\n")
    assert "more than 32 files that extend one another" in fault


def test_a_file_that_is_no_recipe_is_refused_with_the_line_that_extends_it(
    list_issues: ListIssues,
) -> None:
    write("empty.yaml", "")
    write("list.yaml", "- 1\n")
    assert [line.partition(";")[0] for line in list_issues("seed: 1\nextends: [empty,\n  list]\n")][
        :2
    ] == [
        "empty.yaml: the file is empty (extended at mine.yaml:2)",
        "list.yaml:1: a recipe is a mapping of sections (extended at mine.yaml:3)",
    ]


def test_extends_is_among_the_words_that_may_have_been_meant(list_issues: ListIssues) -> None:
    found = list_issues("extend: toy\n")
    assert found[0] == "mine.yaml:1: extend: unknown key; did you mean extends?"


FILES = """
    extends: [model/lm_tiny, data/text, optim/adamw, {0}]
    task: causal_lm
    model: {{encoding: rope}}
    trainer: {{max_steps: 1}}
    data: {{files: [a.txt]{1}}}
"""


def load_batch(recipe: config.Recipe) -> tuple[int | None, int | None]:
    options = recipe.data.options
    return options.get("batch_size"), options.get("global_batch_size")


def test_a_batch_of_all_processes_and_one_of_each_replace_one_another(load_text: Made) -> None:
    own, whole = FILES.format("trainer/default", ", batch_size: 4"), FILES.format("small", "")
    assert load_batch(load_text(own)) == (4, None)
    assert load_batch(load_text(own, "data.global_batch_size=8")) == (None, 8)
    assert load_batch(load_text(own, "data={global_batch_size: 8}")) == (None, 8)
    assert load_batch(load_text(own, "data.global_batch_size=null")) == (4, None)
    # in a file that is extended
    Path("small.yaml").write_text("data: {global_batch_size: 8}\n")
    recipe = load_text(whole)
    assert load_batch(recipe) == (None, 8)
    assert load_batch(config.from_plain(recipe.plain(), origin="run", name="r")) == (None, 8)
    changed = config.from_plain(recipe.plain(), {"data.batch_size": 2}, origin="run", name="r")
    assert load_batch(changed) == (2, None)
    assert load_batch(load_text(FILES.format("small", ", batch_size: 4"))) == (4, None)


def test_both_batches_in_one_place_are_refused(list_issues: ListIssues) -> None:
    both = FILES.format("trainer/default", ", batch_size: 4, global_batch_size: 8")
    problem = "data.global_batch_size: data.batch_size is given too; leave one of them out"
    assert list_issues(both) == [f"mine.yaml:6: {problem}"]
    words = ("data.batch_size=4", "data.global_batch_size=8")
    for given in (words, words[::-1], ("data={batch_size: 4, global_batch_size: 8}",)):
        found = list_issues(FILES.format("trainer/default", ""), *given)
        assert found == [f"argument: {problem}"]


def test_no_default_stands_for_a_batch_that_is_not_given(list_issues: ListIssues) -> None:
    text = FILES.format("trainer/default", ", global_batch_size: 8")
    (issue,) = list_issues(text, "seed=${data.batch_size}")
    assert "data.batch_size, which is no key" in issue


def test_data_without_batches_has_none_of_all_processes(list_issues: ListIssues) -> None:
    (issue,) = list_issues("extends: toy\ndata: {global_batch_size: 8}")
    assert (
        issue
        == "mine.yaml:2: data.global_batch_size: data toy_digits has no batch_size; leave it out"
    )
