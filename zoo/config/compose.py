"""Compose a recipe: files over what they extend, and interpolations.

OmegaConf resolves `${...}`; what it cannot know is here. Recipes and fragments are found by name or
path: in zoo, in plug-ins, or anywhere on disk.
"""

from __future__ import annotations

import os
import reprlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zoo.config.overrides import drop_other_batch, merge_data, relocate
from zoo.config.tree import Tree, collect_issues, read_file, show_path
from zoo.errors import ARGUMENT, ConfigIssue, RecipeError
from zoo.options.plain import (
    DEPTH,
    REFERENCE,
    UNREADABLE,
    format_value,
    is_interpolation,
    join,
    list_children,
    walk,
)
from zoo.registry import (
    RECIPE_SUFFIX,
    SUITES,
    describe_conflict,
    find_recipe_file,
    list_folders,
    names,
    recipe_files,
)
from zoo.suggestions import find_meant, nearest
from zoo.utils import describe_absence, follow_latest

STEPS = 1_000


class Composer:
    """Read each file once, and collect the issues of all of them."""

    def __init__(self, issues: list[ConfigIssue]) -> None:
        self.issues = issues
        self.trees: dict[Path, Tree] = {}

    def compose(self, path: Path, chain: tuple[Path, ...] = ()) -> Tree:
        """Merge a file over what it extends. Raises RecipeError if the file cannot be read."""
        # a fragment that several files extend is read once, and its issues are reported once
        if path.resolve() not in self.trees:
            file_tree = read_file(path, self.issues)
            sections = dict(file_tree.data)
            entries = sections.pop("extends", [])
            tree = Tree({}, {"": file_tree.locate("")})
            for number, entry in enumerate(entries if isinstance(entries, list) else [entries]):
                with collect_issues(self.issues):
                    key = f"extends.{number}"
                    tree = merge(tree, self.compose_entry(entry, key, file_tree, (*chain, path)))
            self.trees[path.resolve()] = merge(tree, replace(file_tree, data=sections))
        return self.trees[path.resolve()]

    def compose_entry(self, entry: object, key: str, own: Tree, chain: tuple[Path, ...]) -> Tree:
        """Compose what one entry of `extends` names."""
        if not isinstance(entry, str):
            hint = "write extends: [model/..., data/...]"
            raise own.make_error(key, "expected the name of a fragment or recipe", hint)
        path = find_extended(entry, chain[-1])
        if path is None:
            folder = chain[-1].parent.absolute()
            message = (
                f"there is no fragment or recipe {format_value(entry)}, and no file in {folder}"
            )
            raise own.make_error(key, message, nearest(entry, list_extendable()))
        if any(path.samefile(earlier) for earlier in chain):
            way = " -> ".join(show_path(file) for file in (*chain, path))
            raise own.make_error(key, f"a recipe that extends itself: {way}")
        if len(chain) > DEPTH:
            raise own.make_error(key, f"more than {DEPTH} files that extend one another")
        try:
            return self.compose(path, chain)
        except RecipeError as error:
            (issue,) = error.issues
            message = f"{issue.problem} (extended at {own.locate(key)})"
            raise RecipeError(replace(issue, problem=message)) from None


def merge(base: Tree, top: Tree) -> Tree:
    """Merge `top` over `base`: mappings key by key, everything else is replaced."""
    if isinstance(section := top.data.get("data"), dict):
        base = drop_other_batch(base, section)
    data = merge_data(base.data, top.data, base, "")
    # a bare name may have become {name: ...}, which keeps its location
    names = {join(key, "name"): base.locate(key) for key, value in walk(base.data) if value}
    return relocate(data, {**names, **base.locations, **top.locations})


def resolve_interpolations(
    tree: Tree, complete: dict[str, Any], issues: list[ConfigIssue], partial: bool = False
) -> Tree:
    """Put values of `complete`, the recipe with its defaults, in place of interpolations.

    If there are new issues, interpolations stay unchanged. So they do if the tree is `partial`:
    what they refer to may be absent because of an earlier issue.
    """
    texts = {
        key: leaf for key, leaf in walk(tree.data) if is_interpolation(leaf) and leaf != UNREADABLE
    }
    problems = {key: _check_references(leaf, complete, partial) for key, leaf in texts.items()}
    unresolved = [
        ConfigIssue(tree.locate(key), key, *pair) for key, pair in problems.items() if pair
    ]
    issues.extend(unresolved)
    if unresolved or partial or not texts:
        return tree

    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    extra = "interpolated texts"  # no reference can name it
    resolved = {}
    for key, template in texts.items():
        config = OmegaConf.create({**complete, extra: [template]})
        try:
            resolved[key] = OmegaConf.to_container(config[extra], resolve=True)[0]  # type: ignore[index]
        except OmegaConfBaseException:
            issues.append(ConfigIssue(tree.locate(key), key, "refers to a value that contains it"))
    if len(resolved) < len(texts):
        return tree
    for key, value in resolved.items():
        if any(is_interpolation(part) for _, part in walk(value)):
            issues.append(
                ConfigIssue(tree.locate(key), key, "makes a new interpolation of its parts")
            )
    return replace(tree, data=_replace_values(tree.data, resolved, ""))


def _replace_values(data: Any, new: dict[str, Any], key: str) -> Any:
    if key in new:
        return new[key]
    parts = [
        (part, _replace_values(child, new, join(key, part))) for part, child in list_children(data)
    ]
    if isinstance(data, dict):
        return dict(parts)
    return [child for _, child in parts] if isinstance(data, list) else data


def _check_references(
    template: str, complete: dict[str, Any], partial: bool
) -> tuple[str, str] | None:
    """Return problem and remedy of an interpolation that cannot be resolved.

    References are followed without resolving them, so that a cycle or a bomb costs nothing. What
    is wrong with a value further on is reported at that value.
    """
    waiting: list[tuple[str, tuple[str, ...]]] = [(template, ())]
    # a limit instead of recursion, since references may double at each step
    for _ in range(STEPS):
        if not waiting:
            return None
        current, chain = waiting.pop()
        for key in REFERENCE.findall(current):
            if key in chain:
                return f"an interpolation of itself: {' -> '.join((*chain, key))}", ""
            target = _find_target(key, complete)
            direct = not chain
            if target is KeyError:
                if direct and not partial:
                    keys = [name for name, value in walk(complete) if not isinstance(value, dict)]
                    message = f"{format_value(template)} takes the value of {key}, which is no key"
                    return message, nearest(key, keys)
            elif target == "???":  # OmegaConf's word for a value that is missing
                message = f"{format_value(template)} takes the value of {key}, which is '???'"
                return message, "write a value there"
            elif isinstance(target, str):
                waiting.append((target, (*chain, key)))
            elif direct and (
                isinstance(target, dict) or (isinstance(target, list) and template != f"${{{key}}}")
            ):
                return f"{key} is not a single value", "name a key below it"
        if len(chain) > DEPTH:
            break
    return f"{format_value(template)} takes too many steps to resolve", ""


def _find_target(key: str, complete: Any) -> Any:
    """Return what stands at a key; KeyError, the class, where nothing does."""
    for part in key.split("."):
        is_entry = isinstance(complete, list) and part.isdecimal()
        try:
            complete = complete[int(part) if is_entry else part]
        except (LookupError, TypeError):
            return KeyError
    return complete


def find_recipe(path_or_name: str | Path, others: Sequence[str] = (), what: str = "recipe") -> Path:
    """Return the file of a registered name, or of a path with or without .yaml.

    Args:
        path_or_name: The name or the path.
        others: Further words that could stand in its place, which a misspelt one may mean.
        what: What all of these words are.

    Raises:
        RecipeError: There is no such file; the message names the nearest recipe.
    """
    if not isinstance(path_or_name, str | os.PathLike):
        message = f"expected a path or a name, got {reprlib.repr(path_or_name)}"
        raise RecipeError(ConfigIssue(ARGUMENT, "path", message))
    word = str(path_or_name)
    if (followed := follow_latest(Path(word))) != Path(word):
        word = str(followed)
    file = find_recipe_file(word) or _find_file(Path(word))
    if file is None:
        raise RecipeError(_explain_absence(word, others, what))
    return file


def _explain_absence(word: str, alternatives: Sequence[str], noun: str) -> ConfigIssue:
    location = word if word.isprintable() and 0 < len(word) < 150 else reprlib.repr(word)
    if os.path.isdir(word):
        recipe = os.path.join(word, "recipe" + RECIPE_SUFFIX)
        nearby = [str(file) for file in _list_yaml_files(Path(word))]
        hint = nearest("", nearby) if nearby else "name a YAML file or a registered recipe"
        if os.path.isfile(recipe):
            hint = f"did you mean {recipe}?"
        return ConfigIssue(location, "", "a folder, not a recipe", hint)
    if os.path.islink(word) and not os.path.exists(word):
        return ConfigIssue(
            location, "", "a symbolic link that leads to no file", "link it to a recipe"
        )
    if os.path.exists(word):
        return ConfigIssue(location, "", "not a regular file", "name a YAML file")
    message = f"there is no such {noun} or file"
    if word.isprintable() and 0 < len(word) < 150:
        message = f"there is no such {noun}, and {describe_absence(word, 'file')}"
    if word in names("encodings") and word not in alternatives:
        hint = f"it is an encoding: name a recipe, and set model.encoding={word}"
        return ConfigIssue(location, "", message, hint)
    if word in (fragments := list_fragments()):
        return ConfigIssue(location, "", message, "it is a fragment, which recipes extend")
    candidates = [*alternatives, *recipe_files(), *_list_yaml_files(Path(word).parent)]
    hint = nearest(word, candidates)
    # no recipe is spelt like it: it may be the name of something that recipes have
    if not find_meant(word, candidates) and (
        meant := find_meant(word, [*names("encodings"), *fragments])
    ):
        hint = f"{meant[0]} is no recipe; name one that has it"
    return ConfigIssue(location, "", message, hint)


def find_extended(entry: str, file: Path) -> Path | None:
    """Return what `extends` in `file` names.

    That is a file next to it, a fragment of configs/, or a registered recipe, in this order.
    """
    if extended := _find_file(file.parent / entry):
        return extended
    fragments = [
        extended for folder in list_folders("configs") if (extended := _find_file(folder / entry))
    ]
    if len(fragments) > 1:
        raise RecipeError(describe_conflict(f"the fragment {entry}", fragments))
    return fragments[0] if fragments else find_recipe_file(entry)


def list_extendable() -> tuple[str, ...]:
    """Return what can be extended from anywhere: fragments and registered recipes."""
    return (*list_fragments(), *recipe_files())


def list_fragments() -> list[str]:
    """Return the fragments of zoo and of plug-ins, as `extends` names them."""
    fragments: list[str] = []
    for folder in list_folders("configs"):
        paths = [path for path in sorted(folder.rglob(f"*{RECIPE_SUFFIX}")) if not is_suite(path)]
        fragments += [path.relative_to(folder).with_suffix("").as_posix() for path in paths]
    return fragments


def is_suite(path: Path) -> bool:
    """Return whether a file of configs/ is a suite of comparisons rather than a fragment."""
    return path.parent.name == SUITES


def is_fragment(path: Path) -> bool:
    """Return whether a file lies below configs/, so that it cannot be run alone."""
    folders = list_folders("configs")
    return any(path.resolve().is_relative_to(folder.resolve()) for folder in folders)


def _find_file(path: Path) -> Path | None:
    return next(
        (
            candidate
            for candidate in (path, Path(f"{path}{RECIPE_SUFFIX}"))
            if os.path.isfile(candidate)
        ),
        None,
    )


def _list_yaml_files(folder: Path) -> list[str]:
    if not os.path.isdir(folder):
        return []
    return sorted(show_path(path) for path in folder.glob(f"*{RECIPE_SUFFIX}"))
