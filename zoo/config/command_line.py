"""Read what a command takes on the command line: its own `key=value` options, and encodings."""

from __future__ import annotations

import json
import math
import os
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from types import NoneType
from typing import Any, get_args, get_origin

from zoo.config.arguments import read_chain
from zoo.config.overrides import Change, Edit, Removal, apply_edit, check_key
from zoo.config.recipe import list_keys
from zoo.config.schema import Sections
from zoo.config.tree import Tree, collect_issues, parse
from zoo.errors import ARGUMENT, ConfigIssue, Message, RecipeError
from zoo.options import Choice
from zoo.options.signature import Option, fields, options, read_class
from zoo.options.unknown import OptionOwner
from zoo.options.validation import Validator
from zoo.registry import names
from zoo.suggestions import SYNONYM, TYPO, find_meant, nearest, offer

PAIR = re.compile(r"([A-Za-z_]\w*(?:\.\w+)+):(\S+)")
"""A key and its value as YAML writes them."""

OptionSource = type | str | Mapping[str, Option]
"""A dataclass of options; `module:Class`, which is read without importing it; or the options."""


def parse_overrides(words: Iterable[str]) -> list[Edit]:
    """Parse `a.b=1`, which sets a key, and `~a.b`, which removes one.

    Raises:
        RecipeError: Some words are no overrides; all issues are reported together.
    """
    assert not isinstance(words, str), "overrides are a sequence of words"
    edits = []
    issues: list[ConfigIssue] = []
    for word in words:
        with collect_issues(issues):
            edits.append(_parse_override(word))
    if issues:
        raise RecipeError(*issues)
    return edits


def _parse_override(word: str) -> Edit:
    def refuse(key: str, message: str | Message, hint: str | Message) -> RecipeError:
        return RecipeError(ConfigIssue(ARGUMENT, key, f"{reprlib.repr(word)}: {message}", hint))

    # a leading + is the spelling of other programs, so it has a message of its own
    key, equals, written = word.lstrip("+~").partition("=")
    removes = word.startswith("~")
    if key.partition(".")[0] == "extends":
        raise refuse("", "extends is read from files only", "override the keys themselves")
    if check_key(key):
        raise refuse("", "not a key", "write section.key=value")
    if word.startswith("+"):
        right = reprlib.repr(word.lstrip("+"))[1:-1]
        raise refuse(key, "keys take no +", f"write {right}")
    if removes and equals:
        raise refuse(key, "a removal takes no value", f"write ~{key} or {key}=value")
    if not removes and not equals:
        raise refuse("", "not an override", _explain_word(word))
    if removes:
        return Removal(key)
    if not written.strip():
        raise refuse(key, "no value", "write null for nothing, '' for an empty string")

    issues: list[ConfigIssue] = []
    value = None
    with collect_issues(issues):
        value = parse(written, lambda line: ARGUMENT, issues).data
    if issues:
        errors = [refuse(key, issue.problem, issue.remedy) for issue in issues]
        raise RecipeError(*(error.issues[0] for error in errors))
    return Change(key, value)


def _explain_word(word: str) -> str:
    """Return how a word without an equals sign may have been meant."""
    if pair := PAIR.fullmatch(word):
        return f"write {pair[1]}={pair[2]}"
    head = word.partition(".")[0]
    if "." in word and head in fields(Sections):
        return f"write {word}=..., with an equals sign and no space"
    if word in names("encodings"):
        return f"it is an encoding: write model.encoding={word}"
    return "write key=value, or ~key to remove a key"


def format_edits(edits: Iterable[Edit]) -> list[str]:
    """Write edits as words, which `parse_overrides` reads back."""
    return [
        f"~{edit.key}"
        if isinstance(edit, Removal)
        else f"{edit.key}={_format_word(edit.value, edit.key)}"
        for edit in edits
    ]


def _format_word(value: Any, key: str) -> str:
    """Write plain data as YAML; a string without quotes where it reads the same."""
    if isinstance(value, str):
        issues: list[ConfigIssue] = []
        with collect_issues(issues):
            if parse(value, lambda line: ARGUMENT, issues).data == value and not issues:
                return value
    return format_flow(value, key)


def format_options(options: Mapping[str, Any]) -> list[str]:
    """Write options of a command as its words, in which strings need no quotes."""
    return [
        f"{key}={os.fspath(value)}"
        if isinstance(value, str | os.PathLike)
        else f"{key}={format_flow(value, key)}"
        for key, value in options.items()
    ]


def format_flow(value: Any, key: str) -> str:
    """Write plain data in YAML's flow style, texts in quotes. Raises RecipeError for a key."""
    if isinstance(value, Mapping):
        pairs = [
            f"{json.dumps(str(name))}: {format_flow(child, f'{key}.{name}')}"
            for name, child in value.items()
        ]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        items = [format_flow(item, f"{key}.{number}") for number, item in enumerate(value)]
        return f"[{', '.join(items)}]"
    if value is None or isinstance(value, bool | str | os.PathLike):
        string = os.fspath(value) if isinstance(value, os.PathLike) else value
        return json.dumps(string, ensure_ascii=False)
    if isinstance(value, Integral):
        return str(int(value))
    if isinstance(value, Real):
        # as YAML writes what is not finite
        names = {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}
        return repr(float(value)) if math.isfinite(value) else names[str(float(value))]
    message = f"not plain data but {type(value).__name__}"
    raise RecipeError(ConfigIssue(ARGUMENT, key, message, "write a number, a string or a list"))


def split_words(
    words: Sequence[str], classes: Sequence[OptionSource], others: Sequence[str] = ()
) -> tuple[list[str], list[str]]:
    """Separate the options of a command from the overrides of its recipe.

    An override has a dot, names a section, or is no `key=value`.

    Args:
        words: The arguments of the command.
        classes: What declares the options of the command.
        others: Further keys that the command reads, to be suggested for a misspelt one.

    Raises:
        RecipeError: Some keys are neither options nor overrides; all of them are named.
    """
    declared, sections = _collect_options(classes), fields(Sections)
    # a key within an option, such as gate.short_loss
    within = {f"{key}." for key in declared if key not in sections}
    option_words = [
        word
        for word in words
        if (_is_option(word) and word.partition("=")[0] not in sections)
        or word.startswith(tuple(within))
    ]

    issues = []
    for key in (word.partition("=")[0] for word in option_words):
        if key.partition(".")[0] not in declared:
            beside = [*declared, *sections, *others]
            # the command's own options, then what stands beside them, then any key of a recipe
            meant = find_meant(key, declared, TYPO) or find_meant(key, beside, TYPO)
            meant = meant or find_meant(key, list_keys(), SYNONYM)
            hint = offer(key, meant) if meant else nearest(key, beside)
            issues.append(ConfigIssue(ARGUMENT, key, "unknown key", hint))
    if issues:
        raise RecipeError(*issues)

    return option_words, [word for word in words if word not in option_words]


def parse_option_words(
    words: Sequence[str], classes: Sequence[OptionSource]
) -> tuple[dict[str, Any], list[str]]:
    """Return the options among words, not validated yet, and the words that are overrides.

    Options are `key=value` whose key has no dot and names no section of a recipe.

    Args:
        words: The arguments of the command.
        classes: What declares the options, whose strings need no quotes.

    Raises:
        RecipeError: Some options are bad YAML; all issues are reported together.
    """
    declared, sections = _collect_options(classes), fields(Sections)
    option_words = [
        word for word in words if _is_option(word) and word.partition("=")[0] not in sections
    ]
    edits = parse_overrides(_quote_text(word, declared) for word in option_words)
    values = {edit.key: edit.value for edit in edits if isinstance(edit, Change)}
    return values, [word for word in words if word not in option_words]


def parse_options(
    words: Sequence[str], classes: Sequence[OptionSource], member: OptionOwner | None = None
) -> list[dict[str, Any]]:
    """Return the options of each class, validated; strings need no quotes.

    Args:
        words: The arguments of the command.
        classes: What declares the options of the command, and those of the member.
        member: The registered member whose options are among them, for messages.

    Raises:
        RecipeError: Some options are wrong; all issues are reported together.
    """
    issues: list[ConfigIssue] = []
    declared = _collect_options(classes)
    tree = Tree({}, {"": ARGUMENT})
    for edit in parse_overrides(_quote_text(word, declared) for word in words):
        with collect_issues(issues):
            tree = apply_edit(tree, edit)

    validator = Validator(tree.locations)
    values = validator.validate_fields(declared, tree.data, "", member=member)
    if issues or validator.issues:
        raise RecipeError(*issues, *validator.issues)
    return [{key: values[key] for key in _list_options(cls)} for cls in classes]


def parse_encodings(words: Sequence[str], key: str | None = None) -> list[tuple[Choice, ...]]:
    """Return the encodings that each word names, with the options it gives.

    A word is a name (`rope`), several joined by + (`kerple+dape`), a list (`[alibi,dape]`) or a
    mapping (`{name: liere, block: 4}`).

    Args:
        words: The words of the command line.
        key: The option that held the words, for messages; by default each word itself.

    Raises:
        RecipeError: A name or an option is unknown; all issues are reported together.
    """
    issues: list[ConfigIssue] = []
    chains = []
    for word in words:
        try:
            chains.append(read_chain(_parse_encoding(word), key or word))
        except RecipeError as error:
            issues += [replace(issue, key=key or word) for issue in error.issues]
    if issues:
        raise RecipeError(*issues)
    return chains


def list_chain(value: Any) -> list[Any]:
    """Return the entries of a chain that a list of encodings names.

    Args:
        value: A name, several joined by + (`kerple+dape`), a mapping, or a list of these.

    Returns:
        A list in any case, so that no option of a recipe's own entry is inherited.
    """
    if isinstance(value, str):
        value = value.split("+")
    if not isinstance(value, list):
        return [value]
    return [part.strip() if isinstance(part, str) else part for part in value]


def _collect_options(classes: Sequence[OptionSource]) -> dict[str, Option]:
    return {key: option for cls in classes for key, option in _list_options(cls).items()}


def _list_options(source: OptionSource) -> Mapping[str, Option]:
    if isinstance(source, Mapping):
        return source
    return read_class(source) if isinstance(source, str) else options(source)


def _is_option(word: str) -> bool:
    key, equals, _ = word.partition("=")
    return bool(equals) and key.isidentifier()


def _quote_text(word: str, declared: dict[str, Option]) -> str:
    """Write `time=30` as `time="30"` where the option is a string; null stays null if it may be."""
    key, _, written = word.partition("=")
    annotation = declared[key].annotation if key in declared else None
    # the parts of a list are strings in YAML already
    parts = () if get_origin(annotation) is tuple else get_args(annotation)
    accepted = (annotation, *parts)
    if str not in accepted or not written or (written == "null" and NoneType in accepted):
        return word
    return f"{key}={json.dumps(written, ensure_ascii=False)}"


def _parse_encoding(word: str) -> Any:
    """Return the entries of a word; none if it has issues."""
    if not word.lstrip().startswith(("[", "{")):
        return list_chain(word)
    issues: list[ConfigIssue] = []
    data = parse(word, lambda line: ARGUMENT, issues).data
    if issues:
        raise RecipeError(*issues)
    return data
