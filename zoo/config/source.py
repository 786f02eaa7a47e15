"""YAML text -> a tree with places. Every way in which text can be bad is a fault with its line."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable
from pathlib import Path

import yaml

from zoo.config.dialect import Loader, value_of
from zoo.config.tree import DEPTH, NODES, Node, is_key, is_text, join
from zoo.errors import ConfigIssue, RecipeError

BYTES = 1 << 20


def shown(path: Path) -> str:
    """A path as the user would write it: relative to the working directory if it is below it."""
    absolute, here = Path(os.path.abspath(path)), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)


def read(path: Path, faults: list[ConfigIssue]) -> Node:
    """The mapping that a file holds. Raises RecipeError if there is none; lesser faults are added to `faults`."""
    name = shown(path)
    tree = parse(_text(path, name), lambda line: f"{name}:{line}", faults)
    if tree.value is None:
        raise RecipeError(ConfigIssue(name, "", "the file is empty"))
    if not isinstance(tree.value, dict):
        raise RecipeError(
            ConfigIssue(
                tree.place,
                "",
                "a recipe is a mapping of sections",
                "write `model: {name: ...}` and so on",
            )
        )
    return tree


def _text(path: Path, name: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(BYTES + 1)
    except OSError as error:
        raise RecipeError(ConfigIssue(name, "", f"cannot be read: {error.strerror}")) from None
    if len(data) > BYTES:
        raise RecipeError(ConfigIssue(name, "", "larger than 1 MiB, which no recipe is"))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise RecipeError(ConfigIssue(f"{name}:{line}", "", "not UTF-8 text")) from None


def parse(text: str, at: Callable[[int], str], faults: list[ConfigIssue]) -> Node:
    """The tree of a YAML text, whose lines are the places `at(line)`. Raises RecipeError where it cannot be read."""
    try:
        loader = Loader(text)
        root = loader.get_single_node()
        return (
            _Grower(at, faults).grow(root, "", at(root.start_mark.line + 1), ())
            if root
            else Node(None, at(1))
        )
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = ", ".join(part for part in (error.context, error.problem) if part)
        raise RecipeError(
            ConfigIssue(at(mark.line + 1 if mark else 1), "", f"bad YAML: {reason}")
        ) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise RecipeError(
            ConfigIssue(at(line), "", "not text: it holds a control character")
        ) from None
    except (ValueError, OverflowError):  # an escape such as "\UFFFFFFFF"
        raise RecipeError(
            ConfigIssue(at(1), "", "bad YAML: an escape that names no character")
        ) from None


class _Grower:
    def __init__(self, at: Callable[[int], str], faults: list[ConfigIssue]) -> None:
        self.at, self.faults, self.count = at, faults, 0

    def grow(self, node: yaml.Node, key: str, place: str, inside: tuple[yaml.Node, ...]) -> Node:
        self.limit(node, inside)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, key, place, (*inside, node))
        if isinstance(node, yaml.SequenceNode):
            items = enumerate(node.value)
            return Node(
                [
                    self.grow(item, join(key, i), self.place(item), (*inside, node))
                    for i, item in items
                ],
                place,
            )
        return Node(value_of(node), place)

    def mapping(
        self, node: yaml.MappingNode, key: str, place: str, inside: tuple[yaml.Node, ...]
    ) -> Node:
        children: dict[str, Node] = {}
        for word, child in node.value:
            at = self.place(word)
            if refused := _refused(word):
                self.faults.append(ConfigIssue(at, key, *refused))
            elif word.value in children:
                problem = f"given twice, first at {children[word.value].place}"
                self.faults.append(
                    ConfigIssue(at, join(key, word.value), problem, "keep one of them")
                )
            else:
                children[word.value] = self.grow(child, join(key, word.value), at, inside)
        return Node(children, place)

    def limit(self, node: yaml.Node, inside: tuple[yaml.Node, ...]) -> None:
        self.count += 1
        problem = ""
        if node in inside:
            problem = "an alias inside its own anchor"
        elif len(inside) > DEPTH:
            problem = f"nested deeper than {DEPTH} levels"
        elif self.count > NODES:
            problem = f"more than {NODES:,} values once its aliases are expanded"
        elif isinstance(node, yaml.ScalarNode) and not is_text(node.value):
            problem = "an escape that names half a character"
        if problem:
            raise yaml.MarkedYAMLError(None, None, problem, node.start_mark)

    def place(self, node: yaml.Node) -> str:
        return self.at(node.start_mark.line + 1)


def _refused(word: yaml.Node) -> tuple[str, str] | None:
    if not isinstance(word, yaml.ScalarNode):
        return "a key must be a word", ""
    told = reprlib.repr(word.value)
    if word.value == "<<" and word.style is None:
        return "merge keys (<<) are refused", "use extends"
    if not isinstance(value_of(word), str):
        return f"the key {told} is not a text", "put it in quotes"
    if not is_key(word.value):
        return (
            f"{told} cannot be a key",
            "nest keys instead of writing dots" if "." in word.value else "",
        )
    return None
