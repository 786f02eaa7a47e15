"""Validate what a caller passes: options of a dataclass, and encodings in any accepted form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeVar

from zoo.config.overrides import Change, list_edits
from zoo.config.recipe import list_keys
from zoo.config.tree import collect_issues
from zoo.errors import ARGUMENT, ConfigIssue, RecipeError
from zoo.options import ChainSpec, Choice
from zoo.options.plain import to_plain
from zoo.options.signature import Option, fields
from zoo.options.validation import Validator
from zoo.suggestions import find_meant, nearest

T = TypeVar("T")


def validate_options(cls: type[T], values: Mapping[str, Any], others: Sequence[str] = ()) -> T:
    """Build the options of a dataclass from values of any origin.

    Args:
        cls: The dataclass, with the types of its options and their defaults.
        values: Options by name.
        others: Further arguments of the caller, which a misspelt option may mean.

    Raises:
        RecipeError: An option is unknown, or its value does not fit; all issues are reported.
    """
    edits = list_edits(values)
    plain = {edit.key: edit.value for edit in edits if isinstance(edit, Change)}
    validator = Validator({"": ARGUMENT})
    typed = validator.validate_fields(fields(cls), plain, "", others)
    if validator.issues:
        raise RecipeError(*validator.issues)
    return cls(**typed)


def validate_given(
    given: Mapping[str, Any], schema: Mapping[str, Option], others: Sequence[str] = ()
) -> dict[str, Any]:
    """Return typed options of a command that changes recipes too, with defaults.

    Args:
        given: Options by name.
        schema: The options that there are.
        others: Further arguments of the caller, which a misspelt option may mean.

    Raises:
        RecipeError: An option is unknown, or its value does not fit; all issues are reported.
    """
    issues: list[ConfigIssue] = []
    for key in given:
        if key not in schema:
            # a key of the recipe only where no option is near: seedz is seeds, not seed
            allowed = [*schema, *others]
            near = [
                candidates for candidates in (allowed, list_keys()) if find_meant(key, candidates)
            ]
            hint = nearest(key, near[0] if near else allowed)
            issues.append(ConfigIssue(ARGUMENT, key, "unknown key", hint))
    typed: dict[str, Any] = {}
    with collect_issues(issues):
        edits = list_edits(given)
        plain = {edit.key: edit.value for edit in edits if isinstance(edit, Change)}
        validator = Validator({"": ARGUMENT}, interpolates=False)
        recognized = {key: to_plain(value) for key, value in plain.items() if key in schema}
        typed = validator.validate_fields(schema, recognized, "")
        issues += validator.issues
    if issues:
        raise RecipeError(*issues)
    return typed


def read_encodings(
    encodings: ChainSpec | Sequence[ChainSpec], key: str = "encodings"
) -> list[tuple[Choice, ...]]:
    """Return the chain of each entry, with the options that it gives.

    Args:
        encodings: One encoding; or a list, in which each entry is an encoding or a list of some
            that are applied in order.
        key: The argument, for messages.

    Raises:
        RecipeError: A name or an option is unknown; all issues are reported together.
    """
    entries: list[Any] = [encodings]
    if isinstance(encodings, Iterable) and not isinstance(encodings, str | Mapping):
        entries = [*encodings]
    issues: list[ConfigIssue] = []
    chains = []
    for number, entry in enumerate(entries):
        place = f"{key}.{number}" if len(entries) > 1 else key
        with collect_issues(issues):
            chains.append(read_chain(entry, place))
    if issues:
        raise RecipeError(*issues)
    return chains


def read_chain(entry: ChainSpec, key: str) -> tuple[Choice, ...]:
    """Return the encodings of one chain, with the options that it gives.

    Args:
        entry: An encoding, or a list of some that are applied in order.
        key: The argument, for messages.

    Raises:
        RecipeError: A name or an option is unknown; all issues are reported together.
    """
    try:
        (edit,) = list_edits({"encoding": entry})
    except RecipeError as error:
        raise RecipeError(*(replace(issue, key=key) for issue in error.issues)) from None
    assert isinstance(edit, Change)
    entries = edit.value if isinstance(edit.value, list) else [edit.value]

    validator = Validator({"": ARGUMENT})
    choices = [validator.validate_choice("encodings", item, "") for item in entries]
    issues = validator.issues
    if validator.untyped and not issues:
        message = "an interpolation has no recipe here to refer to"
        issues.append(ConfigIssue(ARGUMENT, "", message, "write the value itself"))
    names = [] if issues else [choice.name for choice in choices]
    if len(set(names)) < len(names):
        message = "the list names an encoding twice"
        issues.append(ConfigIssue(ARGUMENT, "", message, "list it once"))
    if not issues and not names:
        issues.append(ConfigIssue(ARGUMENT, "", "no encoding", "name at least one"))
    if issues:
        # the validator names keys below the entry, which a caller did not write
        reasons = dict.fromkeys((issue.problem, issue.remedy) for issue in issues)
        raise RecipeError(*(ConfigIssue(ARGUMENT, key, *pair) for pair in reasons))
    return tuple(_keep_given(*pair) for pair in zip(entries, choices, strict=True))


def _keep_given(entry: Any, choice: Choice) -> Choice:
    """Return a choice with only the options that its entry gives, not the defaults."""
    keys = [key for key in entry if key != "name"] if isinstance(entry, dict) else []
    return Choice(choice.name, MappingProxyType({key: choice.options[key] for key in keys}))
