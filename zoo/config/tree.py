"""Values with their locations: read from YAML, changed, and written as YAML.

YAML is read as plain data that can construct no object, with the line of every key. OmegaConf's own
reader is not used: it follows YAML 1.1, in which 010 is 8, 1:30 is 90 and yes is true, and keeps no
lines. Here plain scalars are those of YAML 1.2, and 1e-3 is a number.
"""

from __future__ import annotations

import os
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from zoo.config.yaml_errors import YamlProblem, explain_bytes, explain_character, explain_error
from zoo.errors import ConfigIssue, RecipeError
from zoo.options.plain import (
    DEPTH,
    NODES,
    UNREADABLE,
    check_interpolation,
    is_key,
    is_text,
    join,
    list_children,
    locate,
    walk,
)

Scalar = str | int | float | bool | None
BYTES = 1 << 20
TAG = "tag:yaml.org,2002:"
INT = r"[-+]?(0|[1-9][0-9_]{0,30}|0x[0-9a-fA-F]{1,16})"
DECIMAL = r"[-+]?((0|[1-9][0-9_]*)(\.[0-9_]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?"
FLOAT = rf"{DECIMAL}|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"

# tag: (pattern of its plain scalars, the characters they start with, their value)
SCALARS: Mapping[str, tuple[str, Iterable[str], Callable[[str], Scalar]]] = {
    "null": (r"~|null|Null|NULL|", ["", *"~nN"], lambda written: None),
    "bool": (
        r"true|True|TRUE|false|False|FALSE",
        "tTfF",
        lambda written: written.lower() == "true",
    ),
    "int": (INT, "-+0123456789", lambda written: int(written.replace("_", ""), 0)),
    "float": (
        FLOAT,
        "-+0123456789.",
        lambda written: float(re.sub(r"_|\.(?=[a-zA-Z])", "", written)),
    ),
}


@dataclass(frozen=True)
class Tree:
    """Plain data, and {full key: "path:line" or `ARGUMENT`}, with "" for the whole."""

    data: Any
    locations: Mapping[str, str]

    def locate(self, key: str) -> str:
        """Return the location of a key, or of the nearest key above it."""
        return locate(self.locations, key)

    def make_error(self, key: str, problem: str, remedy: str = "") -> RecipeError:
        """Return the error of one key."""
        return RecipeError(ConfigIssue(self.locate(key), key, problem, remedy))


@contextmanager
def collect_issues(issues: list[ConfigIssue]) -> Iterator[None]:
    """Collect the issues that the block raises, and go on after it."""
    try:
        yield
    except RecipeError as error:
        issues.extend(error.issues)


class Loader(yaml.SafeLoader):
    """Compose nodes, never construct; stop at tags, depth and size before they cost anything."""

    depth = count = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self.count += 1
        if getattr(event, "tag", None) is not None:
            tag = reprlib.repr(event.tag.replace(TAG, "!!"))
            raise _mark(f"the tag {tag} is refused, a recipe is plain data", event)
        if self.depth > DEPTH:
            raise _mark(f"nested deeper than {DEPTH} levels", event)
        if self.count > 2 * NODES:  # keys and values
            raise _mark(f"more than {NODES:,} values", event)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class Dumper(yaml.SafeDumper):
    """Write what `Loader` reads back; quote what other readers would misread (yes, 010)."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_sequence(
        self, tag: str, sequence: Any, flow_style: bool | None = None
    ) -> yaml.SequenceNode:
        flat = not any(isinstance(item, dict | list) for item in sequence)
        return super().represent_sequence(tag, sequence, flow_style=flat)


# PyYAML guesses types by YAML 1.1; only the patterns above decide here
Loader.yaml_implicit_resolvers = {}
for _name, (_pattern, _starts, _) in SCALARS.items():
    Loader.add_implicit_resolver(TAG + _name, re.compile(f"(?:{_pattern})\\Z"), list(_starts))
    Dumper.add_implicit_resolver(TAG + _name, re.compile(f"(?:{_pattern})\\Z"), list(_starts))


def dump(plain: Mapping[str, Any]) -> str:
    """Write plain data as YAML text."""
    return yaml.dump(dict(plain), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=110)


def show_path(path: Path) -> str:
    """Write a path as the user would: relative to the working directory if it is below it."""
    # not resolved, so that a link keeps the name that the user gave it
    absolute, here = Path(os.path.abspath(path)), Path.cwd()
    return str(absolute.relative_to(here) if absolute.is_relative_to(here) else absolute)


def read_file(path: Path, issues: list[ConfigIssue]) -> Tree:
    """Read the mapping that a file holds; add what is wrong with single keys to `issues`.

    Raises:
        RecipeError: The file cannot be read, or holds no mapping.
    """
    name = show_path(path)
    parsed = _parse_file(_read_text(path, name), name)
    issues += parsed.issues
    if parsed.error is not None:
        raise RecipeError(*parsed.error.issues)
    tree = parsed.tree
    if tree.data is None:
        raise RecipeError(ConfigIssue(name, "", "the file is empty"))
    if not isinstance(tree.data, dict):
        hint = "write `model: {name: ...}` and so on"
        raise tree.make_error("", "a recipe is a mapping of sections", hint)
    return tree


@dataclass(frozen=True)
class ParsedFile:
    """The content of a YAML file, the issues of single keys, and what keeps it from being read."""

    tree: Tree
    issues: tuple[ConfigIssue, ...]
    error: RecipeError | None = None


# the trials of a comparison load the same few files
@lru_cache(maxsize=64)
def _parse_file(content: str, name: str) -> ParsedFile:
    issues: list[ConfigIssue] = []
    try:
        tree = parse(content, lambda line: f"{name}:{line}", issues)
    except RecipeError as error:
        return ParsedFile(Tree(None, {}), tuple(issues), error)
    return ParsedFile(tree, tuple(issues))


def _read_text(path: Path, name: str) -> str:
    try:
        with path.open("rb") as file:
            # one byte more than allowed tells that a file is too large, whatever its size
            data = file.read(BYTES + 1)
    except OSError as error:
        raise RecipeError(ConfigIssue(name, "", f"cannot be read: {error.strerror}")) from None
    if len(data) > BYTES:
        raise RecipeError(ConfigIssue(name, "", "larger than 1 MiB, which no recipe is"))
    try:
        content = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        position = error.start
    else:
        # an archive may be valid UTF-8 by chance
        if not content.startswith("PK\x03\x04"):
            return content
        position = 0
    fault = explain_bytes(data, position)
    raise RecipeError(ConfigIssue(f"{name}:{fault.line}", "", fault.problem, fault.remedy))


def parse(text: str, locate_line: Callable[[int], str], issues: list[ConfigIssue]) -> Tree:
    """Parse YAML text; add what is wrong with single keys to `issues`.

    Args:
        text: The YAML.
        locate_line: Returns the location of a line, counted from 1.
        issues: Takes further issues.

    Raises:
        RecipeError: The text cannot be read as YAML.
    """
    try:
        root = Loader(text).get_single_node()
        reader = _Reader(locate_line, issues)
        line = root.start_mark.line + 1 if root else 1
        data = reader.read(root, "", locate_line(line), ()) if root else None
        return Tree(data, reader.locations or {"": locate_line(line)})
    except yaml.MarkedYAMLError as error:
        fault = explain_error(text, error)
    except yaml.reader.ReaderError as error:
        fault = explain_character(text, error)
    except (ValueError, OverflowError):  # such as "\UFFFFFFFF"
        fault = YamlProblem(1, "bad YAML: an escape that names no character")
    raise RecipeError(ConfigIssue(locate_line(fault.line), "", fault.problem, fault.remedy))


class _Reader:
    """Turn YAML nodes into plain data and locations."""

    def __init__(self, locate_line: Callable[[int], str], issues: list[ConfigIssue]) -> None:
        self.locate_line, self.issues = locate_line, issues
        self.locations: dict[str, str] = {}
        self.count = 0

    def read(self, node: Any, key: str, location: str, inside: tuple[yaml.Node, ...]) -> Any:
        # before children are read: aliases of YAML make a large tree of a small file
        self.check_limits(node, inside)
        self.locations[key] = location
        if isinstance(node, yaml.MappingNode):
            return self.read_mapping(node, key, (*inside, node))
        if isinstance(node, yaml.SequenceNode):
            return [
                self.read(item, join(key, i), self.locate(item), (*inside, node))
                for i, item in enumerate(node.value)
            ]
        value = _convert_scalar(node)
        if fault := check_interpolation(value):
            self.issues.append(ConfigIssue(location, key, *fault))
            return UNREADABLE
        return value

    def read_mapping(
        self, node: yaml.MappingNode, key: str, inside: tuple[yaml.Node, ...]
    ) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for word, child in node.value:
            location, full = self.locate(word), join(key, word.value)
            if fault := _check_colon(word, child) or _check_key(word):
                self.issues.append(ConfigIssue(location, key, *fault))
            elif word.value in data:
                message = f"given twice, first at {self.locations[full]}"
                self.issues.append(ConfigIssue(location, full, message, "keep one of them"))
            else:
                data[word.value] = self.read(child, full, location, inside)
        return data

    def check_limits(self, node: yaml.Node, inside: tuple[yaml.Node, ...]) -> None:
        self.count += 1
        # an alias may contain itself, or double at each level: both are refused before they are
        # expanded
        if node in inside:
            raise _mark("an alias inside its own anchor", node)
        if len(inside) > DEPTH:
            raise _mark(f"nested deeper than {DEPTH} levels", node)
        if self.count > NODES:
            raise _mark(f"more than {NODES:,} values once its aliases are expanded", node)
        if isinstance(node, yaml.ScalarNode) and not is_text(node.value):
            raise _mark("an escape that names half a character", node)

    def locate(self, node: yaml.Node) -> str:
        return self.locate_line(node.start_mark.line + 1)


def read_plain(data: object, location: str, issues: list[ConfigIssue]) -> Tree:
    """Check the plain data of a checkpoint, which has one location for all keys.

    Raises:
        RecipeError: It holds something else than dicts, lists and scalars, or too much.
    """
    tree = Tree(None, {"": location})
    count = 0

    def check(value: object, key: str, depth: int) -> Any:
        nonlocal count
        count += 1
        # before anything is read: a checkpoint may come from anyone
        if depth > DEPTH or count > NODES:
            raise tree.make_error(key, f"deeper than {DEPTH} levels or more than {NODES:,} values")
        if isinstance(value, dict) and all(map(is_key, value)):
            return {word: check(child, join(key, word), depth + 1) for word, child in value.items()}
        if isinstance(value, list | tuple):
            return [check(child, join(key, i), depth + 1) for i, child in list_children(value)]
        if isinstance(value, str) and not is_text(value):
            raise tree.make_error(key, f"not text that can be written down: {reprlib.repr(value)}")
        if value is not None and type(value) not in (str, int, float, bool):
            raise tree.make_error(key, f"not plain data but {type(value).__name__}")
        if fault := check_interpolation(value):
            issues.append(ConfigIssue(location, key, *fault))
            return UNREADABLE
        return value

    plain = check(data, "", 0)
    return Tree(plain, {key: location for key, _ in walk(plain)})


def _check_key(word: yaml.Node) -> tuple[str, str] | None:
    """Return problem and remedy of a node that cannot be a key."""
    if not isinstance(word, yaml.ScalarNode):
        return "a key must be a word", "write the value itself where {{...}} is a template"
    written = reprlib.repr(word.value)
    if word.value == "<<" and word.style is None:
        return "merge keys (<<) are refused", "use extends"
    if not isinstance(_convert_scalar(word), str):
        return f"the key {written} is not a string", "put it in quotes"
    if not is_key(word.value):
        hint = "nest keys instead of writing dots" if "." in word.value else ""
        visible = "".join(filter(str.isprintable, word.value))
        if is_key(visible) and visible != word.value:
            hint = f"remove the invisible character beside {visible}"
        return f"{written} cannot be a key", hint
    return None


def _check_colon(word: yaml.Node, child: yaml.Node) -> tuple[str, str] | None:
    """Return problem and remedy of `{a:1}`, which is the key `a:1` without a value."""
    if not isinstance(word, yaml.ScalarNode):
        return None
    name, colon, value = word.value.partition(":")
    is_bare = word.style is None and child.start_mark.index == child.end_mark.index
    if colon and is_bare and name and value:
        return f"no space after the colon of {word.value!r}", f"write {name}: {value.strip()}"
    return None


def _convert_scalar(node: yaml.Node) -> Scalar:
    scalar = SCALARS.get(node.tag.removeprefix(TAG))
    return scalar[2](node.value) if scalar else str(node.value)


def _mark(message: str, node: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, message, node.start_mark)
