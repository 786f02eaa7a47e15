"""`${model.dim}`: a value that stands at another key. Checked here, put in by OmegaConf."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from zoo.errors import Fault
from zoo.recipe.tree import Node, join, leaves, plant
from zoo.recipe.words import nearest, value

_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w-]*(?:\.[\w-]+)*)\}")
_RESOLVER = re.compile(r"\$\{[^}.]*[\w.]+\s*:")
_STEPS = 1_000


def is_open(node: Node) -> bool:
    """Whether a value waits for another."""
    return isinstance(node.value, str) and "${" in node.value


def resolve(tree: Node, complete: dict[str, Any], faults: list[Fault]) -> Node:
    """The tree with its interpolations replaced by values of `complete`, the recipe with its defaults.

    If one of them is at fault, all of them are left as they are.
    """
    waiting = {key: node for key, node in leaves(tree) if is_open(node)}
    found = [Fault(node.place, key, *refused) for key, node in waiting.items() if (refused := _refused(node, complete))]
    if found:
        faults.extend(found)
        return tree
    resolved = {key: plant(given, waiting[key].place) for key, given in _resolved(waiting, complete).items()}
    for key, node in resolved.items():
        if any(map(is_open, (leaf for _, leaf in leaves(node)))):
            faults.append(Fault(node.place, key, "makes a new interpolation of its parts"))
    return _replaced(tree, resolved, "")


def _resolved(waiting: dict[str, Node], complete: dict[str, Any]) -> dict[str, Any]:
    from omegaconf import OmegaConf  # 0.15 s, and few recipes interpolate

    texts = "interpolated texts"  # no reference can name it
    config = OmegaConf.create({**complete, texts: [node.value for node in waiting.values()]})
    values = OmegaConf.to_container(config[texts], resolve=True)
    assert isinstance(values, list)
    return dict(zip(waiting, values, strict=True))


def _replaced(node: Node, resolved: dict[str, Node], key: str) -> Node:
    if isinstance(node.value, dict):
        return Node({part: _replaced(child, resolved, join(key, part)) for part, child in node.value.items()}, node.place)
    if isinstance(node.value, list):
        return Node([_replaced(child, resolved, join(key, i)) for i, child in enumerate(node.value)], node.place)
    return resolved.get(key, node)


def _refused(node: Node, complete: dict[str, Any]) -> tuple[str, str] | None:
    """What is wrong with an interpolation, and what would be right."""
    text = str(node.value)
    if _RESOLVER.search(text):
        return f"resolvers are refused: {value(text)}", "write the value itself"
    if "${" in _REFERENCE.sub("", text) or "\\${" in text:
        return f"malformed interpolation {value(text)}", "write ${section.key}"
    return next(_followed(text, (), complete, iter(range(_STEPS))), None)


def _followed(text: str, chain: tuple[str, ...], complete: dict[str, Any], steps: Iterator[int]) -> Iterator[tuple[str, str]]:
    """The faults met on the way to the values that a text stands for."""
    for key in _REFERENCE.findall(text):
        if next(steps, None) is None:
            yield f"{value(text)} takes more than {_STEPS:,} steps", ""
            return
        if key in chain:
            yield f"an interpolation of itself: {' -> '.join((*chain, key))}", ""
            return
        try:
            target = _at(key, complete)
        except LookupError:
            yield f"{value(text)} names no key", nearest(key, _keys(complete, ""))
            continue
        if isinstance(target, dict) or (isinstance(target, list) and text != f"${{{key}}}"):
            yield f"{key} is not a single value", "name a key below it"
        elif isinstance(target, str):
            yield from _followed(target, (*chain, key), complete, steps)


def _at(key: str, complete: Any) -> Any:
    for part in key.split("."):
        complete = complete[int(part) if isinstance(complete, list) and part.isdecimal() else part]
    return complete


def _keys(value: Any, key: str) -> Iterator[str]:
    if not isinstance(value, dict | list):
        yield key
        return
    for part, child in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _keys(child, join(key, part))
