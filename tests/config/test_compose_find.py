"""Recipes by name and by path."""

from __future__ import annotations

from pathlib import Path

import pytest

from zoo.config import find_recipe, recipe_files
from zoo.errors import RecipeError


def refusal(word: str) -> str:
    with pytest.raises(RecipeError) as caught:
        find_recipe(word)
    (fault,) = caught.value.issues
    return str(fault)


def test_recipes_of_plugins_are_registered(plugin: Path) -> None:
    assert recipe_files()["toy"] == plugin / "recipes" / "toy.yaml" == find_recipe("toy")


def test_in_a_checkout_recipes_lie_beside_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "zoo.registry.roots", lambda: {"zoo": tmp_path / "a" / "zoo", "b": tmp_path / "c" / "b"}
    )
    for path in (tmp_path / "a/recipes/found.yaml", tmp_path / "c/recipes/no_plugin_of_ours.yaml"):
        path.parent.mkdir(parents=True)
        path.write_text("seed: 1")
    assert recipe_files() == {"found": tmp_path / "a/recipes/found.yaml"}
    (tmp_path / "a/zoo/recipes").mkdir(parents=True)
    assert recipe_files() == {}


def test_a_name_wins_over_a_folder_of_that_name(plugin: Path) -> None:
    Path("toy").mkdir()
    assert find_recipe("toy").parent == plugin / "recipes"


def test_a_path_is_found_with_or_without_its_suffix() -> None:
    Path("mine.yaml").write_text("seed: 1")
    assert find_recipe("mine.yaml") == find_recipe(Path("mine")) == Path("mine.yaml")


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("tooy", "tooy: there is no such recipe, and no such file in {here}; did you mean toy?"),
        (
            "mines.yaml",
            "mines.yaml: there is no such recipe, and no such file in {here}; did you mean mine.yaml?",
        ),
        (
            "folder/othr.yaml",
            "folder/othr.yaml: there is no such recipe, and no such file in {here}/folder; did you mean folder/other.yaml?",
        ),
        (
            "fodler/a.yaml",
            "fodler/a.yaml: there is no such recipe, and no such file, there is no fodler",
        ),
        ("toy_rope", "toy_rope: there is no such recipe, and no such file in {here}; it is an enc"),
        (
            "toy_roep",
            "toy_roep: there is no such recipe, and no such file in {here}; toy_rope is no",
        ),
        (
            "optim/toy_adam",
            "optim/toy_adam: there is no such recipe, and no such file, there is no",
        ),
        ("folder", "folder: a folder, not a recipe; known are folder/other.yaml"),
        ("run", "run: a folder, not a recipe; did you mean run/recipe.yaml?"),
        ("/dev/null", "/dev/null: not a regular file"),
        ("", "'': there is no such recipe or file"),
        ("a\0b", "'a\\x00b': there is no such recipe or file"),
        ("a" * 5000, "'aaaaaaaaaaaa...aaaaaaaaaaaaa': there is no such recipe or file"),
    ],
)
def test_what_is_no_recipe_is_told_with_the_nearest(word: str, message: str) -> None:
    for path in (Path("mine.yaml"), Path("folder/other.yaml"), Path("run/recipe.yaml")):
        path.parent.mkdir(exist_ok=True)
        path.write_text("seed: 1")
    assert refusal(word).startswith(message.replace("{here}", str(Path.cwd())))


def test_a_link_that_leads_nowhere_is_not_answered_with_its_own_name() -> None:
    Path("loop.yaml").symlink_to("loop.yaml")
    assert refusal("loop.yaml").startswith("loop.yaml: a symbolic link that leads to no file")
