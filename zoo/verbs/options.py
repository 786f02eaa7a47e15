"""Options of a verb on the command line, typed as the options of a recipe are, and told apart from its keys."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import NoneType
from typing import Any, get_args

from zoo.errors import Fault, RecipeError
from zoo.recipe.check import Check
from zoo.recipe.overrides import parse_all
from zoo.recipe.sections import Sections
from zoo.recipe.signature import Option, fields, options
from zoo.recipe.tree import COMMAND_LINE, Node, children, gathered
from zoo.recipe.words import nearest


def parted(words: Sequence[str], classes: Sequence[type], others: Sequence[str] = ()) -> tuple[list[str], list[str]]:
    """Options of the classes, and overrides of a recipe: what has a dot, names a section, or is no key=value.

    Raises RecipeError with every key that is neither; `others`, which the verb reads itself, may be what was meant.
    """
    known, sections = _schema(classes), fields(Sections)
    told = [word for word in words if _is_option(word) and word.partition("=")[0] not in sections]
    unknown = [key for key in (word.partition("=")[0] for word in told) if key not in known]
    if unknown:
        hint = [nearest(key, [*known, *sections, *others]) for key in unknown]
        pairs = zip(unknown, hint, strict=True)
        raise RecipeError(*(Fault(COMMAND_LINE, key, "unknown option", remedy) for key, remedy in pairs))
    return told, [word for word in words if word not in told]


def typed(words: Sequence[str], classes: Sequence[type]) -> list[dict[str, Any]]:
    """The options of each class; a text is taken as it is written. Raises RecipeError with every fault."""
    faults: list[Fault] = []
    schema = _schema(classes)
    tree, check = Node({}, COMMAND_LINE), Check()
    for change in parse_all([_quoted(word, schema) for word in words], faults):
        with gathered(faults):
            tree = change(tree)
    values = check.fields(schema, children(tree), tree, "")
    if faults or check.faults:
        raise RecipeError(*faults, *check.faults)
    return [{key: values[key] for key in options(cls)} for cls in classes]


def _schema(classes: Sequence[type]) -> dict[str, Option]:
    return {key: option for cls in classes for key, option in options(cls).items()}


def _is_option(word: str) -> bool:
    key, equals, _ = word.partition("=")
    return bool(equals) and key.isidentifier()


def _quoted(word: str, schema: dict[str, Option]) -> str:
    """`time=30` as `time="30"` where a text is asked for; null stays nothing where that is asked for too."""
    key, _, text = word.partition("=")
    annotation = schema[key].annotation if key in schema else None
    asked = (annotation, *get_args(annotation))
    if str not in asked or not text or (text == "null" and NoneType in asked):
        return word
    return f"{key}={json.dumps(text, ensure_ascii=False)}"
