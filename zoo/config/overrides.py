"""Changes of a recipe as data, keys with their new values and keys to remove, and their effect.

OmegaConf merges. What it cannot know is here: the location of every key, the rule that a new `name`
drops the options of the old one, and the shorthands of names and lists.
"""

from __future__ import annotations

import contextlib
import copy
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zoo.config.tree import Tree, collect_issues, parse
from zoo.errors import ARGUMENT, ConfigIssue, RecipeError, Setting, repr_entry
from zoo.options.plain import DEPTH, PlainReader, format_value, is_key, join, list_ancestors, walk
from zoo.registry import names
from zoo.suggestions import nearest


@dataclass(frozen=True)
class Change:
    """Set a key to a value, merged with what the key holds.

    Attributes:
        key: The full key, such as `model.encoding`.
        value: Plain data: scalars, and lists and mappings of them.
    """

    key: str
    value: Any


@dataclass(frozen=True)
class Removal:
    """Remove a key and everything below it."""

    key: str


Edit = Change | Removal
BATCHES = ("batch_size", "global_batch_size")
"""Options of the data that say the same in two ways, so that one replaces the other."""
Overrides = Mapping[str, Any] | Sequence[Edit]
"""Changes of a recipe: {key: value}, or a list that may also remove keys."""


def join_overrides(*several: Overrides) -> list[Edit]:
    """Return the edits of several overrides in order, later ones over earlier ones.

    Raises:
        RecipeError: Something is no override; all issues are reported together.
    """
    return [edit for overrides in several for edit in list_edits(overrides)]


def list_edits(overrides: Overrides) -> list[Edit]:
    """Return overrides as edits whose values are plain data.

    Scalars of numpy and torch become numbers, paths become strings, and dataclasses mappings.

    Raises:
        RecipeError: Some keys or values cannot be used; all issues are reported together.
    """
    entries: Sequence[Any]
    if isinstance(overrides, Mapping):
        entries = [Change(key, value) for key, value in overrides.items()]
    else:
        # a string is a sequence too, of characters
        is_list = isinstance(overrides, Iterable) and not isinstance(overrides, str)
        entries = [*overrides] if is_list else [overrides]

    edits: list[Edit] = []
    issues: list[ConfigIssue] = []
    for entry in entries:
        if not isinstance(entry, Change | Removal):
            issues.append(_refuse_entry(entry))
        elif message := check_key(entry.key):
            issues.append(ConfigIssue(ARGUMENT, "", f"{reprlib.repr(entry.key)} {message}"))
        elif isinstance(entry, Removal):
            edits.append(entry)
        else:
            with collect_issues(issues):
                value = PlainReader(issues).read(entry.value, entry.key)
                edits.append(Change(entry.key, value))
    if issues:
        raise RecipeError(*issues)
    return edits


def check_key(key: object) -> str:
    """Return why a key cannot be overridden; empty if it can be."""
    parts = key.split(".") if isinstance(key, str) else []
    if not parts or len(parts) > DEPTH or "[" in str(key) or not all(map(is_key, parts)):
        return "is not a key such as optim.lr"
    if parts[0] == "extends":
        return "cannot be overridden: only files extend others"
    return ""


def _refuse_entry(entry: object) -> ConfigIssue:
    """Describe something that is no edit; suggest the edit that a string may mean."""
    message = f"expected a mapping {{key: value}}, got {reprlib.repr(entry)}"
    hint = ""
    if isinstance(entry, tuple) and len(entry) == 2 and not check_key(entry[0]):
        hint = f"write {repr_entry(Setting(*entry))}"
    if isinstance(entry, str) and entry in names("encodings"):
        change = repr_entry(Setting("model.encoding", entry))
        hint = f"write {change}, or encodings=[...] in a comparison"
    if isinstance(entry, str) and entry.startswith("~"):
        hint = f"write [Removal({entry[1:]!r})]"
    elif isinstance(entry, str) and "=" in entry:
        key, _, written = entry.partition("=")
        # text that is no YAML has no value to suggest
        with contextlib.suppress(RecipeError):
            value = parse(written, lambda line: ARGUMENT, []).data
            hint = f"write {repr_entry(Setting(key, value))}"
    return ConfigIssue(ARGUMENT, "overrides", message, hint)


def apply_edit(tree: Tree, edit: Edit) -> Tree:
    """Return the changed tree. Raises RecipeError if there can be no such key, or is none."""
    parts = edit.key.split(".")
    if isinstance(edit, Removal):
        return remove_key(tree, parts)
    section = edit.value if parts == ["data"] else dict.fromkeys(parts[1:2], edit.value)
    if parts[0] == "data" and isinstance(section, dict):
        # what the same caller passed stays, and is refused beside the other
        tree = drop_other_batch(tree, section, kept=ARGUMENT)
    return set_key(tree, parts, edit.value)


def drop_other_batch(tree: Tree, section: Mapping[str, Any], kept: str = "") -> Tree:
    """Return a tree without the batch size that new options of the data say in another way.

    Args:
        tree: The tree that the options come over.
        section: The new options of the data.
        kept: The location of keys that stay.
    """
    stated = [word for word in BATCHES if section.get(word) is not None]
    data = tree.data.get("data")
    if len(stated) != 1 or not isinstance(data, dict):
        return tree
    (replaced,) = {*BATCHES} - {*stated}
    if replaced not in data or tree.locate(f"data.{replaced}") == kept:
        return tree
    remaining = {word: value for word, value in data.items() if word != replaced}
    return relocate({**tree.data, "data": remaining}, {**tree.locations})


def set_key(tree: Tree, parts: Sequence[str], value: Any) -> Tree:
    """Set a key to a value that the caller passed, merged with what the key holds."""
    data, parent, leaf = _open_path(tree, parts, create=True)
    key, above = ".".join(parts), ".".join(parts[:-1])
    if above and leaf == "name":  # like {name: value}, it drops the options of the old name
        changed = merge_data(parent, {"name": value}, tree, above)
        parent.clear()
        parent.update(changed)
    else:
        parent[leaf] = merge_data(parent[leaf], value, tree, key)

    caller_keys = {join(key, part) if part else key: ARGUMENT for part, _ in walk(value)}
    # sections that are there for this key only; an entry of a list may have been written in short
    present = {name for name, _ in walk(tree.data)}
    new = (ancestor for ancestor in list_ancestors(key) if ancestor not in present)
    caller_keys |= {
        ancestor: ARGUMENT for ancestor in new if not ancestor.rpartition(".")[2].isdecimal()
    }
    return relocate(data, {**tree.locations, **caller_keys})


def remove_key(tree: Tree, parts: Sequence[str]) -> Tree:
    """Remove a key and all below it."""
    data, parent, leaf = _open_path(tree, parts, create=False)
    del parent[leaf]
    if isinstance(parent, dict):
        # remembered, since the key may be needed
        return relocate(data, {**tree.locations, ".".join(parts): ARGUMENT})

    # the entries after it move up, and their locations with them
    locations, above = {}, join(".".join(parts[:-1]), "")
    emptied = {} if parent else {above.removesuffix("."): ARGUMENT}
    for key, location in tree.locations.items():
        number, dot, below = key.removeprefix(above).partition(".")
        if not key.startswith(above) or not number.isdecimal() or int(number) < leaf:
            locations[key] = location
        elif int(number) > leaf:
            locations[f"{above}{int(number) - 1}{dot}{below}"] = location
    return relocate(data, locations | emptied)


def _open_path(tree: Tree, parts: Sequence[str], create: bool) -> tuple[Any, Any, Any]:
    """Copy the data and step to a key, writing out shorthands on the way.

    Returns:
        The copy, the container of the key, and the key's own part in it.

    Raises:
        RecipeError: A part cannot be stepped into, or is not there and not to be created.
    """
    # trees are shared between recipes that extend the same file
    data = copy.deepcopy(tree.data)
    container: Any = {"": data}
    slot: Any = ""
    key = ""
    for part in parts:
        node = container[slot] = _write_out(container[slot], part)
        full = join(key, part)
        if isinstance(node, list):
            container, slot = node, _find_entry(node, part, key)
        elif create and isinstance(node, dict):
            container, slot = node, part
            node.setdefault(part, None)
        elif create:
            message = f"{key} is {format_value(node)} and has no keys"
            raise RecipeError(ConfigIssue(ARGUMENT, full, message))
        elif isinstance(node, dict) and part in node:
            container, slot = node, part
        else:
            hint = nearest(part, node, key) if isinstance(node, dict) else ""
            message = "cannot be removed, it is not there"
            raise RecipeError(ConfigIssue(ARGUMENT, full, message, hint))
        key = full
    return data, container, slot


def _write_out(node: Any, part: str) -> Any:
    """Write out the container that `part` steps into."""
    if isinstance(node, str):
        return [node] if part.isdecimal() else {"name": node}
    if node is None:
        return [] if part.isdecimal() else {}
    if isinstance(node, dict) and part.isdecimal() and "name" in node and part not in node:
        return [node]
    return node


def _find_entry(items: list[Any], part: str, key: str) -> int:
    """Return the number of an entry of a list. Raises RecipeError where there is no such entry."""
    if part.isdecimal() and int(part) < len(items):
        return int(part)
    count = {0: "no entry", 1: "1 entry"}.get(len(items), f"{len(items)} entries")
    hint = f"did you mean {key}.0.{part}?" if items and not part.isdecimal() else ""
    if part.isdecimal() and 0 < len(items) == int(part):
        hint = "write the whole list to add one"
    message = f"{key} has {count}, counted from 0"
    raise RecipeError(ConfigIssue(ARGUMENT, join(key, part), message, hint))


def merge_data(base: Any, top: Any, tree: Tree, key: str) -> Any:
    """Merge plain data, of which `base` stands at `key` of `tree`."""
    from omegaconf import OmegaConf

    if not isinstance(top, dict):
        return top
    inherited = _inherit(base, top, tree, key)
    if not isinstance(inherited, dict):
        return top
    return OmegaConf.to_container(OmegaConf.merge(inherited, top))


def _inherit(base: Any, top: Any, tree: Tree, key: str) -> Any:
    """Return what `top` inherits of `base`: neither options of another name nor another structure.

    Options that the same caller passed stay, so that the order of overrides does not matter.
    """
    if isinstance(top, dict) and isinstance(base, str):
        # "rope" is short for {name: rope}
        base = {"name": base}
    if not isinstance(base, dict) or not isinstance(top, dict):
        return base
    if base.get("name") and top.get("name") and base["name"] != top["name"]:
        base = {
            word: child for word, child in base.items() if tree.locate(join(key, word)) == ARGUMENT
        }
    inherited = {}
    for word, child in base.items():
        if word in top:
            child = _inherit(child, top[word], tree, join(key, word))
            if isinstance(child, dict) != isinstance(top[word], dict):
                child = None
        inherited[word] = child
    return inherited


def relocate(data: Any, locations: dict[str, str]) -> Tree:
    """Keep the locations of keys that are still there, or that the caller has removed."""
    present = {key for key, _ in walk(data)}
    remaining = {
        key: where for key, where in locations.items() if key in present or where == ARGUMENT
    }
    return Tree(data, remaining)
