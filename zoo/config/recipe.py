"""YAML and overrides -> a typed, frozen Recipe, or all of its faults at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from zoo.config.check import Check
from zoo.config.dialect import Dumper
from zoo.config.extends import Composer
from zoo.config.folders import find_recipe, is_fragment
from zoo.config.interpolation import is_open, resolve
from zoo.config.overrides import Override, parse_all
from zoo.config.sections import EvaluateOptions, Sections, TrainerOptions
from zoo.config.signature import fields
from zoo.config.tree import (
    COMMAND_LINE,
    Node,
    children,
    gathered,
    leaves,
    plant,
    told_together,
    unfrozen,
    upward,
)
from zoo.config.variants import variants
from zoo.errors import ConfigIssue, RecipeError
from zoo.registry import Choice

_SECTIONS = fields(Sections)


@dataclass(frozen=True, kw_only=True)
class Recipe(Sections):
    """Everything a run is made of: `Sections`, its name, and the place of each key that was given."""

    name: str
    places: Mapping[str, str] = field(
        default_factory=lambda: MappingProxyType({}), compare=False, repr=False
    )

    def plain(self) -> dict[str, Any]:
        """The sections as dicts, lists and scalars, with every option. `from_plain` gives the recipe back."""
        return {section: unfrozen(getattr(self, section)) for section in _SECTIONS}

    def yaml(self) -> str:
        """`plain` as YAML text."""
        return dumped(self.plain())

    @property
    def hash(self) -> str:
        """Eight hexadecimal digits that tell recipes with different options apart."""
        return hashlib.sha256(json.dumps(self.plain(), sort_keys=True).encode()).hexdigest()[:8]

    def fault(self, key: str, problem: str, remedy: str = "") -> ConfigIssue:
        """A fault of a key, placed where the key was given, or else the nearest key above it."""
        return ConfigIssue(_closest(self.places, key) or self.name, key, problem, remedy)


def dumped(plain: Mapping[str, Any]) -> str:
    """Sections as plain data, as YAML text."""
    return yaml.dump(dict(plain), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110)


def load(path_or_name: str | Path, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of a file or a registered name, changed by overrides. Raises RecipeError with every fault."""
    faults: list[ConfigIssue] = []
    changes = parse_all(overrides, faults)
    with told_together(faults):
        path = find_recipe(path_or_name)
        tree = Composer(faults).compose(path)
    return _recipe(tree, changes, faults, path.stem, is_fragment(path))


def from_plain(
    data: Mapping[str, Any], overrides: Sequence[str] = (), *, origin: str, name: str
) -> Recipe:
    """The recipe of plain data, such as a checkpoint holds, with `origin` as the place of every key."""
    faults: list[ConfigIssue] = []
    changes = parse_all(overrides, faults)
    with told_together(faults):
        tree = plant(dict(data), origin)
    return _recipe(tree, changes, faults, name)


def _recipe(
    tree: Node,
    changes: list[Override],
    faults: list[ConfigIssue],
    name: str,
    fragment: bool = False,
) -> Recipe:
    for change in changes:
        with gathered(faults):
            tree = change(tree)
    if fragment:
        faults.extend(_lacking(tree))
    told = _keys(faults)
    tree = _resolved(tree, faults, told)
    check = Check(told)
    typed = check.fields(_SECTIONS, children(tree), tree, "")
    places = check.places | {"": tree.place}
    untold = {key.partition(".")[0] for key in told}.isdisjoint({"", "trainer"})
    if untold and isinstance(trainer := typed["trainer"], TrainerOptions):
        check.faults += [
            ConfigIssue(_closest(places, key), key, *rest)
            for key, *rest in trainer.problems("trainer")
        ]
    given = children(children(tree).get("evaluate", tree)).get("variants")
    if given is not None and isinstance(data := typed.get("data"), Choice):
        found = variants(check, data, given, "evaluate.data_variants")
        if (
            isinstance(evaluate := typed["evaluate"], EvaluateOptions)
            and evaluate.data_variants is not None
        ):
            typed["evaluate"] = replace(evaluate, data_variants=found)
    if faults or check.faults:
        raise RecipeError(*dict.fromkeys([*faults, *check.faults]))
    return Recipe(**typed, name=name, places=MappingProxyType(places))


def _keys(faults: list[ConfigIssue]) -> frozenset[str]:
    """The keys that are at fault already; the empty one if any key may be, since a file could not be read in full."""
    keys = {fault.key for fault in faults if fault.key or fault.place != COMMAND_LINE}
    return frozenset("" if key.partition(".")[0] == "extends" else key for key in keys)


def _closest(places: Mapping[str, str], key: str) -> str:
    return next((places[known] for known in upward(key) if known in places), "")


def _lacking(tree: Node) -> Iterator[ConfigIssue]:
    lacking = [
        word for word, option in _SECTIONS.items() if option.required and word not in children(tree)
    ]
    if lacking:
        problem = f"a fragment, which cannot be run alone: it has no {', '.join(lacking)}"
        yield ConfigIssue(tree.place, "", problem, "name it in the `extends` of a recipe")


def _resolved(tree: Node, faults: list[ConfigIssue], told: frozenset[str]) -> Node:
    if not any(is_open(leaf) for _, leaf in leaves(tree)):
        return tree
    complete = unfrozen(Check(told).fields(_SECTIONS, children(tree), tree, ""))
    resolved, more = resolve(tree, complete, partial="" in told)
    faults.extend(more)
    return resolved
