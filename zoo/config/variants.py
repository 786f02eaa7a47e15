"""Named changes of the options of the data (`evaluate.data_variants`), typed as these options are."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from zoo.config.check import Check
from zoo.config.signature import Option, options
from zoo.config.tree import Node, children, join, plant, unfrozen
from zoo.config.words import nearest
from zoo.registry import Choice, find


def variants(check: Check, data: Choice, node: Node, key: str) -> Mapping[str, Mapping[str, Any]]:
    """{name: {option: value}} of a mapping of mappings; what does not fit is a fault."""
    schema = options(find("data", data.name))
    found = {}
    for name, change in children(node).items():
        typed = {
            word: _typed(check, schema, child, join(join(key, name), word))
            for word, child in children(change).items()
        }
        if not typed and not isinstance(change.value, str | int | float | list):
            check.refuse(
                change,
                join(key, name),
                "it changes nothing",
                "write {option: value} of data, or remove it",
            )
        found[name] = MappingProxyType(typed)
    return MappingProxyType(found)


def misfit(data: Choice, option: str, given: object) -> str:
    """What is wrong with a typed value of an option of the data; empty where nothing is."""
    check = Check()
    check.value(
        options(find("data", data.name))[option].annotation, plant(unfrozen(given), ""), option
    )
    return next((fault.problem for fault in check.faults), "")


def _typed(check: Check, schema: Mapping[str, Option], node: Node, key: str) -> Any:
    word = key.rpartition(".")[2]
    if word in schema:
        return check.value(schema[word].annotation, node, key)
    return check.refuse(node, key, "unknown option of the data", nearest(word, schema))
