"""Suites: files that declare comparisons, their parts, which one command runs for any encodings.

A suite is a YAML file in the folder `configs/suites` of zoo or of a plug-in, or anywhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from zoo.attention.chain import make_factory
from zoo.comparison.results import Measure
from zoo.comparison.suite_files import find_suite
from zoo.config import Change, Edit
from zoo.config.compose import find_recipe
from zoo.config.schema import Sections
from zoo.config.tree import read_file
from zoo.errors import ARGUMENT, ConfigIssue, Message, OptionError, RecipeError, Setting
from zoo.options import Between
from zoo.options.plain import locate, to_plain
from zoo.options.signature import fields
from zoo.options.validation import Validator
from zoo.suggestions import nearest

NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """Sizes by which an estimate counts where the data of a part are not on this machine."""

    samples: int | None = None
    """Training samples, where the recipe counts epochs."""
    vocabulary: int | None = None
    """Tokens that the tokenizer knows, for text."""


@dataclass(frozen=True, kw_only=True)
class SuitePart:
    """A part of a suite: a comparison of the encodings on one task."""

    title: str
    """Its name in tables."""
    about: str = ""
    """Its question."""
    recipe: str
    """The recipe: a registered name, or a file next to that of the suite."""
    set: Mapping[str, Any] = field(default_factory=dict)
    """Changes of the recipe, by section."""
    instead: Mapping[str, Any] = field(default_factory=dict)
    """Encodings that stand for others here: {rope: rope_axial} for grids."""
    tune: Mapping[str, Any] | None = None
    """Tuned keys, by section, in place of those of the suite."""
    measure: Measure | None = None
    """Metric to compare; null takes loss if every token is a target, else accuracy."""
    columns: tuple[str, ...] = ()
    """Conditions in the table of the suite, such as trained or 256; empty for all."""
    stand_in: StandIn | None = None
    """Sizes for an estimate where the data are missing."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A suite as its file declares it."""

    title: str
    """Its name in tables."""
    about: str = ""
    """Its question."""
    limits: tuple[str, ...] = ()
    """Sentences on results that it cannot give."""
    seeds: Annotated[int, Between(1, 1000)] = 3
    """Seeds of each part, where nothing is tuned."""
    studies: Annotated[int, Between(1, 1000)] | None = None
    """Studies of each part, in place of seeds."""
    budget: Annotated[int, Between(1, 1000)] | None = None
    """Trials of each encoding in each study."""
    tune: Mapping[str, Any] = field(default_factory=dict)
    """Tuned keys of all parts, by section: {optim: {lr: [1e-3, 1e-2, log]}}."""
    set: Mapping[str, Any] = field(default_factory=dict)
    """Changes of all recipes, by section."""
    records: tuple[str, ...] = ()
    """Folders with recorded cells, relative to the current folder or to zoo's repository."""
    flops_per_second: Annotated[float, Between(1.0)] | None = None
    """Operations that a device does in a second, by which an estimate without records counts."""
    parts: Mapping[str, SuitePart]
    """The parts by name."""


@dataclass(frozen=True, kw_only=True)
class SuiteFile:
    """A suite and its file.

    Attributes:
        name: Its name, that of the file.
        path: The file.
        suite: What the file declares.
        locations: {key: "file:line"} of all that the file declares.
    """

    name: str
    path: Path
    suite: Suite
    locations: Mapping[str, str] = field(default_factory=dict)

    def find_recipe(self, part: SuitePart) -> str:
        """Return the recipe of a part: a file next to that of the suite, or a registered name."""
        beside = self.path.parent / part.recipe
        return str(beside) if beside.is_file() else part.recipe

    def locate(self, issue: ConfigIssue, name: str, edits: Sequence[Edit]) -> ConfigIssue:
        """Return an issue of a part with the line of the suite's file that caused it.

        Args:
            issue: The issue, located at an argument if a change or a tuned key caused it.
            name: The part.
            edits: The changes that the user made in addition to the file.
        """
        if issue.origin != ARGUMENT or any(_overlap(edit.key, issue.key) for edit in edits):
            return issue
        part, key = self.suite.parts[name], issue.key.removeprefix("tune.")
        # the part's own entries replace those of the suite
        places = [
            (f"parts.{name}.set", part.set),
            ("set", self.suite.set),
            (f"parts.{name}.tune", part.tune or {}),
            ("tune", self.suite.tune if part.tune is None else {}),
        ]
        if issue.key.startswith("tune."):
            places = places[2:]
        for above, sections in places:
            if any(_overlap(declared, key) for declared in flatten(sections)):
                full = f"{above}.{key}"
                return replace(issue, origin=locate(self.locations, full), key=full)
        return issue


def load_suite(word: str | Path) -> SuiteFile:
    """Read a suite.

    Args:
        word: The name of a suite, or a file.

    Raises:
        RecipeError: There is no such suite, or its file is wrong; all issues are reported.
    """
    path = find_suite(str(word))
    issues: list[ConfigIssue] = []
    tree = read_file(path, issues)
    if issues:
        raise RecipeError(*issues)
    validator = Validator(tree.locations, interpolates=False)
    suite = validator.validate(Suite, tree.data, "")
    # rules between keys take for granted that each value has its type
    if not validator.issues:
        issues += _find_issues(suite, tree.locations)
    if issues or validator.issues:
        raise RecipeError(*validator.issues, *issues)
    file = SuiteFile(name=path.stem, path=path, suite=suite, locations=tree.locations)
    if issues := [*_find_unknown_names(file)]:
        raise RecipeError(*issues)
    return file


def _overlap(key: str, other_key: str) -> bool:
    """Return whether two keys are the same, or one is above the other."""
    return f"{key}.".startswith(f"{other_key}.") or f"{other_key}.".startswith(f"{key}.")


def _find_unknown_names(file: SuiteFile) -> Iterator[ConfigIssue]:
    """Yield what is wrong with the recipes and the encodings that parts name."""
    for name, part in file.suite.parts.items():
        key = f"parts.{name}.recipe"
        try:
            find_recipe(file.find_recipe(part))
        except RecipeError as error:
            for issue in error.issues:
                yield replace(issue, origin=locate(file.locations, key), key=key)
        for label, entry in part.instead.items():
            key = f"parts.{name}.instead.{label}"
            stand_in = to_plain(entry)
            try:
                for choice in (label, *(stand_in if isinstance(stand_in, list) else [stand_in])):
                    make_factory(choice)
            except OptionError as error:
                yield ConfigIssue(locate(file.locations, key), key, error.message)


def _find_issues(suite: Suite, locations: Mapping[str, str]) -> Iterator[ConfigIssue]:
    """Yield what is wrong with a suite whose values have the right types."""
    # rules between keys, which types of single values cannot state
    if not suite.parts:
        yield ConfigIssue(locations["parts"], "parts", "there is none", "declare a part")
    for name in suite.parts:
        key = f"parts.{name}"
        if not NAME.fullmatch(name) or name in fields(Sections):
            message = "cannot be the name of a part, which is a folder and begins overrides"
            yield ConfigIssue(locations[key], key, message, "write a word such as language")
    if (suite.studies is None) != (suite.budget is None):
        key = "studies" if suite.budget is None else "budget"
        hint = "give both, or neither"
        yield ConfigIssue(locations[key], key, "studies need a budget of trials", hint)
    for name, part in suite.parts.items():
        if bool(list_tuned(suite, part)) != (suite.studies is not None):
            message = "nothing is tuned" if suite.studies else "tuning needs studies and a budget"
            yield ConfigIssue(locations[f"parts.{name}"], f"parts.{name}", message)


def flatten(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return {key: value} of options by section: {optim: {lr: 0.1}} is {"optim.lr": 0.1}."""
    flat: dict[str, Any] = {}
    for section, options in sections.items():
        if isinstance(options, Mapping):
            flat |= {f"{section}.{key}": value for key, value in options.items()}
        else:
            flat[section] = options
    return flat


def list_tuned(suite: Suite, part: SuitePart) -> dict[str, Any]:
    """Return {key: range or choices} of what is tuned in a part: its own, else the suite's."""
    return flatten(suite.tune if part.tune is None else part.tune)


def list_edits_of(suite: Suite, part: SuitePart) -> list[Edit]:
    """Return the changes of the recipe of a part: those of the suite, then its own."""
    # in this order, so that a part may set what the suite sets for all
    both = ({**suite.set}, {**part.set})
    return [Change(key, value) for sections in both for key, value in flatten(sections).items()]


def choose_parts(file: SuiteFile, names: Sequence[str]) -> SuiteFile:
    """Return the suite with some of its parts, in its own order; all of them without names.

    Raises:
        RecipeError: There is no such part.
    """
    declared = file.suite.parts
    issues = [
        ConfigIssue(ARGUMENT, "parts", f"there is no part {name!r}", nearest(name, declared))
        for name in names
        if name not in declared
    ]
    if issues:
        raise RecipeError(*issues)
    chosen = {name: part for name, part in declared.items() if name in names or not names}
    return replace(file, suite=replace(file.suite, parts=chosen))


def split_overrides(
    file: SuiteFile, overrides: Sequence[Edit]
) -> tuple[list[Edit], dict[str, list[Edit]]]:
    """Return the overrides of all parts, and {part: those of its own}.

    `language.data.path` is `data.path` of the part `language`.
    """
    common: list[Edit] = []
    by_part: dict[str, list[Edit]] = {name: [] for name in file.suite.parts}
    for edit in overrides:
        head, _, key = edit.key.partition(".")
        # parts are never named as sections of recipes, so that this is unambiguous
        if head in by_part and key:
            by_part[head].append(replace(edit, key=key))
        else:
            common.append(edit)
    return common, by_part


def refuse_fixed(given: Mapping[str, Any], fixed: Sequence[str]) -> None:
    """Raise RecipeError for options that the file of a suite decides."""
    hint = Message("copy the file, change it there, and write ", Setting("suite", "copy.yaml"))
    issues = [
        ConfigIssue(ARGUMENT, key, "the file of the suite decides it", hint)
        for key, value in given.items()
        if key in fixed and value is not None
    ]
    if issues:
        raise RecipeError(*issues)
