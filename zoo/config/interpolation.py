"""`${model.dim}`: a value that stands at another key. Checked here, put in by OmegaConf."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from zoo.config.tree import DEPTH, Node, join, leaves, plant
from zoo.config.words import nearest, value
from zoo.errors import ConfigIssue

_REFERENCE = re.compile(r"\$\{([A-Za-z_][\w-]*(?:\.[\w-]+)*)\}")
_RESOLVER = re.compile(r"\$\{[^{}]*:")
_STEPS = 1_000


def is_open(node: Node) -> bool:
    """Whether a value waits for another."""
    return isinstance(node.value, str) and "${" in node.value


def resolve(
    tree: Node, complete: dict[str, Any], partial: bool = False
) -> tuple[Node, list[ConfigIssue]]:
    """The tree with its interpolations replaced by values of `complete`, the recipe with its defaults.

    Where there are faults, interpolations are left as they are. So they are where the tree is `partial`: what they
    refer to may be absent because of an earlier fault.
    """
    waiting = {key: node for key, node in leaves(tree) if is_open(node)}
    references = _References(complete, partial)
    found = [(key, node, references.refused(str(node.value))) for key, node in waiting.items()]
    faults = [ConfigIssue(node.place, key, *refused) for key, node, refused in found if refused]
    if faults or partial:
        return tree, faults
    resolved = {
        key: plant(given, waiting[key].place) for key, given in _resolved(waiting, complete).items()
    }
    again = [
        (key, node)
        for key, node in resolved.items()
        if any(is_open(leaf) for _, leaf in leaves(node))
    ]
    faults = [
        ConfigIssue(node.place, key, "makes a new interpolation of its parts")
        for key, node in again
    ]
    return _replaced(tree, resolved, ""), faults


def _resolved(waiting: dict[str, Node], complete: dict[str, Any]) -> dict[str, Any]:
    from omegaconf import OmegaConf  # 0.15 s, and few recipes interpolate

    texts = "interpolated texts"  # no reference can name it
    config = OmegaConf.create({**complete, texts: [node.value for node in waiting.values()]})
    values = OmegaConf.to_container(config[texts], resolve=True)
    assert isinstance(values, list)
    return dict(zip(waiting, values, strict=True))


def _replaced(node: Node, resolved: dict[str, Node], key: str) -> Node:
    if isinstance(node.value, dict):
        return Node(
            {
                part: _replaced(child, resolved, join(key, part))
                for part, child in node.value.items()
            },
            node.place,
        )
    if isinstance(node.value, list):
        return Node(
            [_replaced(child, resolved, join(key, i)) for i, child in enumerate(node.value)],
            node.place,
        )
    return resolved.get(key, node)


class _References:
    """Follows references without resolving them, so that a cycle or a bomb costs nothing."""

    def __init__(self, complete: dict[str, Any], partial: bool) -> None:
        self.complete, self.partial = complete, partial
        self.steps = 0

    def refused(self, text: str) -> tuple[str, str] | None:
        """What is wrong with an interpolation, and what would be right."""
        if _RESOLVER.search(text):
            return f"resolvers are refused: {value(text)}", "write the value itself"
        if "${" in _REFERENCE.sub("", text) or "\\${" in text:
            return f"malformed interpolation {value(text)}", "write ${section.key}"
        self.steps = 0
        return next(self.followed(text, ()), None)

    def followed(self, text: str, chain: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        for key in _REFERENCE.findall(text):
            self.steps += 1
            if self.steps > _STEPS or len(chain) > DEPTH:
                yield f"{value(text)} takes too many steps to resolve", ""
            elif key in chain:
                yield f"an interpolation of itself: {' -> '.join((*chain, key))}", ""
            else:
                yield from self.reached(text, key, (*chain, key))

    def reached(self, text: str, key: str, chain: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        direct = len(chain) == 1  # what is wrong further on is told where it stands
        try:
            target = _at(key, self.complete)
        except (LookupError, TypeError):
            if direct and not self.partial:
                known = (each for each, _ in leaves(plant(self.complete, "")))
                yield (
                    f"{value(text)} takes the value of {key}, which is no key",
                    nearest(key, known),
                )
            return
        if target == "???":  # OmegaConf's word for a value that is missing
            yield f"{value(text)} takes the value of {key}, which is '???'", "write a value there"
        elif isinstance(target, str):
            yield from self.followed(target, chain)
        elif direct and (
            isinstance(target, dict) or (isinstance(target, list) and text != f"${{{key}}}")
        ):
            yield f"{key} is not a single value", "name a key below it"


def _at(key: str, complete: Any) -> Any:
    for part in key.split("."):
        complete = complete[int(part) if isinstance(complete, list) and part.isdecimal() else part]
    return complete
