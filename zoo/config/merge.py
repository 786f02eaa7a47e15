"""Trees into one: mappings merge key by key, everything else is replaced, a new `name` drops the old one's options."""

from __future__ import annotations

from collections.abc import Sequence

from zoo.config.tree import COMMAND_LINE, Node, children, join, plain
from zoo.config.words import nearest, value
from zoo.errors import ConfigIssue, RecipeError


def merge(base: Node | None, top: Node) -> Node:
    """`top` over `base`."""
    if base is None or not isinstance(top.value, dict):
        return top
    base = _open(base, "name")
    if not isinstance(base.value, dict):
        return top
    kept = base.value
    if _name(base) and _name(top) and _name(base) != _name(top):
        # An option given on the same command line is not inherited: the order of overrides is of no matter.
        kept = {key: child for key, child in kept.items() if child.place == COMMAND_LINE}
    return Node(
        {**kept, **{key: merge(kept.get(key), child) for key, child in top.value.items()}},
        top.place,
    )


def put(node: Node, parts: Sequence[str], new: Node, key: str = "") -> Node:
    """`new` at a key. Raises RecipeError where the key cannot be stepped into."""
    if not parts:
        return merge(node, new)
    node, part, rest = _open(node, parts[0]), parts[0], parts[1:]
    if isinstance(node.value, list):
        at = _position(node.value, part, key)
        items = [
            put(child, rest, new, join(key, i)) if i == at else child
            for i, child in enumerate(node.value)
        ]
        return Node(items, node.place)
    if node.value is not None and not isinstance(node.value, dict):
        raise RecipeError(
            ConfigIssue(
                COMMAND_LINE, join(key, part), f"{key} is {value(node.value)} and has no keys"
            )
        )
    child = put((node.value or {}).get(part, Node(None, COMMAND_LINE)), rest, new, join(key, part))
    return merge(node, Node({part: child}, node.place))


def remove(node: Node, parts: Sequence[str], key: str = "") -> Node:
    """The tree without a key. Raises RecipeError where it is not there."""
    node, part, rest, full = _open(node, parts[0]), parts[0], parts[1:], join(key, parts[0])
    if isinstance(node.value, list):
        at = _position(node.value, part, key)
        left = [remove(node.value[at], rest, full)] if rest else []
        return Node([*node.value[:at], *left, *node.value[at + 1 :]], node.place)
    found = children(node)
    if part not in found:
        problem = "cannot be removed, it is not there"
        raise RecipeError(ConfigIssue(COMMAND_LINE, full, problem, nearest(part, found, key)))
    if rest:
        return Node({**found, part: remove(found[part], rest, full)}, node.place)
    return Node({word: child for word, child in found.items() if word != part}, node.place)


def _open(node: Node, part: str) -> Node:
    """The container that `part` steps into: a bare name is short for {name}, a lone entry for a list of it."""
    if isinstance(node.value, str):
        return Node([node] if part.isdecimal() else {"name": node}, node.place)
    if part.isdecimal() and node.value is None:
        return Node([], node.place)
    if (
        part.isdecimal()
        and isinstance(node.value, dict)
        and "name" in node.value
        and part not in node.value
    ):
        return Node([node], node.place)
    return node


def _name(node: Node) -> object:
    name = node.value.get("name") if isinstance(node.value, dict) else None
    return plain(name) if name else None


def _position(items: list[Node], part: str, key: str) -> int:
    if part.isdecimal() and int(part) < len(items):
        return int(part)
    count = {0: "no entry", 1: "1 entry"}.get(len(items), f"{len(items)} entries")
    remedy = f"did you mean {key}.0.{part}?" if items and not part.isdecimal() else ""
    raise RecipeError(
        ConfigIssue(COMMAND_LINE, join(key, part), f"{key} has {count}, counted from 0", remedy)
    )
