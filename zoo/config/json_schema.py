"""A JSON schema of recipes for editors, from the annotations that recipes are validated against.

A recipe may extend others, so that no key of it is required. Arithmetic between keys, files and
references are beyond a schema: `zoo show RECIPE` checks these.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from zoo.config.overrides import BATCHES
from zoo.config.schema import Sections
from zoo.options import COUNTED, Between, Choice, Choices, Differences, Matches
from zoo.options.plain import to_plain
from zoo.options.signature import Option, extras, fields, read_options, select_differences
from zoo.registry import RECIPE_KINDS, names, summaries

Schema = dict[str, Any]
SCALARS: Mapping[Any, Schema] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    str: {"type": "string"},
    type(None): {"type": "null"},
}
REFERENCE: Schema = {"type": "string", "pattern": r"\$\{"}
"""A value that refers to another key, `${model.dim}`."""


def build_schema() -> Schema:
    """Build the schema of a recipe; members of plug-ins are part of it."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A recipe of zoo",
        "type": "object",
        "properties": {
            "extends": {"anyOf": [{"type": "string"}, _list_of({"type": "string"})]},
            **_describe_options(fields(Sections)),
        },
        "additionalProperties": False,
        "$defs": {kind: describe_members(kind) for kind in RECIPE_KINDS},
    }


def describe_members(kind: str) -> Schema:
    """Return the schema of one `{name, options}`.

    The options are those of the named member; without a name, which a recipe that is extended may
    give, those of any member.
    """
    cases, any_option = list[Schema](), dict[str, list[Schema]]()
    for name in names(kind):
        properties = _describe_options({**read_options(kind, name), **extras(kind)})
        for key, schema in properties.items():
            any_option.setdefault(key, []).append(schema)
        member = {"name": {"const": name}, **properties}
        cases.append(
            {
                "if": {"required": ["name"], "properties": {"name": {"const": name}}},
                "then": {"properties": member, "additionalProperties": False},
            }
        )

    if kind == "data":
        # one replaces the other
        cases.append({"not": {"required": [*BATCHES]}})
    options = {key: {"anyOf": _unique(schemas)} for key, schemas in any_option.items()}
    members = [{"const": name, "description": summary} for name, summary in summaries(kind).items()]
    unnamed = {"properties": {"name": {"oneOf": members}, **options}, "additionalProperties": False}
    return {
        "if": {"type": "string"},
        "then": {"anyOf": [{"oneOf": members}, REFERENCE]},
        "else": {"type": "object", **unnamed, "allOf": cases},
    }


def describe_annotation(annotation: Any) -> Schema:
    """Return the schema of a value that an annotation accepts."""
    if annotation is Any:
        return {}
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _describe_marks(arguments[0], arguments[1:])
    if origin is Literal:
        return {"anyOf": [{"enum": list(arguments)}, REFERENCE]}
    if origin in (Union, types.UnionType):
        return {"anyOf": _unique([describe_annotation(member) for member in arguments])}
    if dataclasses.is_dataclass(annotation):
        properties = _describe_options(fields(annotation))  # type: ignore[arg-type]
        return {"type": ["object", "null"], "properties": properties, "additionalProperties": False}
    if origin in (list, tuple, Sequence):
        return {"anyOf": [_describe_sequence(annotation), REFERENCE]}
    if origin in (dict, Mapping):
        values = describe_annotation(arguments[1])
        return {"anyOf": [{"type": "object", "additionalProperties": values}, REFERENCE]}
    # a string may be an interpolation already; null comes with another type, which allows it
    if annotation in (str, type(None)):
        return SCALARS[annotation]
    return {"anyOf": [SCALARS[annotation], REFERENCE]}


def _describe_options(options: Mapping[str, Option]) -> Schema:
    """Return the schema of each option, with its default."""
    described = {}
    for key, option in options.items():
        marks = get_args(option.annotation)[1:]
        if marks and isinstance(marks[0], Differences):
            described[key] = _describe_differences(select_differences(marks[0], options))
        else:
            described[key] = describe_annotation(option.annotation)
        is_plain = isinstance(option.default, int | float | str | None)
        if not option.is_required and is_plain:
            described[key] = {**described[key], "default": to_plain(option.default)}
    return described


def _describe_differences(options: Mapping[str, Option]) -> Schema:
    """Return the schema of a mapping from names to other values of some options, or null."""
    changes = {key: describe_annotation(option.annotation) for key, option in options.items()}
    named = {"type": ["object", "null"], "properties": changes, "additionalProperties": False}
    return {"type": ["object", "null"], "additionalProperties": named}


def _describe_sequence(annotation: Any) -> Schema:
    members = get_args(annotation)
    if get_origin(annotation) is tuple and members[-1] is not Ellipsis:
        items = [describe_annotation(member) for member in members]
        return {
            "type": "array",
            "prefixItems": items,
            "minItems": len(items),
            "maxItems": len(items),
        }
    return _list_of(describe_annotation(members[0]))


def _describe_marks(inner: Any, marks: Sequence[Any]) -> Schema:
    """Return the schema of an annotated type: a member of a kind, bounds, or patterns."""
    for mark in marks:
        if isinstance(mark, Choices):
            reference = {"$ref": f"#/$defs/{mark.kind}"}
            if inner is Choice:
                return reference
            return {
                "anyOf": [
                    reference,
                    {**_list_of(reference), "minItems": 0 if mark.may_be_empty else 1},
                ]
            }

    plain = dict(SCALARS.get(inner, describe_annotation(inner)))
    for mark in marks:
        if isinstance(mark, Between):
            plain["minimum"] = mark.low
            # larger bounds protect machines, and would only clutter the hints of an editor
            if mark.high <= COUNTED * 2:
                plain["maximum"] = mark.high
        if isinstance(mark, Matches):
            whole = [f"^(?:{pattern.pattern})$" for pattern in mark.patterns]
            plain["anyOf"] = [{"pattern": pattern} for pattern in whole]
    return {"anyOf": [plain, REFERENCE]}


def _list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _unique(schemas: Sequence[Schema]) -> list[Schema]:
    """Return schemas without repetitions."""
    return [schema for number, schema in enumerate(schemas) if schema not in schemas[:number]]
