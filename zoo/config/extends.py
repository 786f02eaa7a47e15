"""A file over what it extends, over what that extends."""

from __future__ import annotations

from pathlib import Path

from zoo.config.folders import extendable, find_extended
from zoo.config.merge import merge
from zoo.config.source import read, shown
from zoo.config.tree import DEPTH, Node, gathered, join
from zoo.config.words import nearest, value
from zoo.errors import ConfigIssue, RecipeError


class Composer:
    """Reads each file once and collects the faults of all of them."""

    def __init__(self, faults: list[ConfigIssue]) -> None:
        self.faults = faults
        self.read: dict[Path, Node] = {}

    def compose(self, path: Path, chain: tuple[Path, ...] = ()) -> Node:
        """The merged tree of a file, without `extends`. Raises RecipeError if the file itself cannot be read."""
        if path.resolve() not in self.read:
            own = read(path, self.faults)
            assert isinstance(own.value, dict)
            sections = dict(own.value)
            entries = self.entries(sections.pop("extends", Node([], own.place)))
            tree = Node({}, own.place)
            for key, entry in entries:
                with gathered(self.faults):
                    tree = merge(tree, self.extended(key, entry, path, (*chain, path)))
            self.read[path.resolve()] = merge(tree, Node(sections, own.place))
        return self.read[path.resolve()]

    def entries(self, node: Node) -> list[tuple[str, Node]]:
        given = node.value if isinstance(node.value, list) else [node]
        found = [(join("extends", i), entry) for i, entry in enumerate(given)]
        for key, entry in found:
            if not isinstance(entry.value, str):
                problem = "expected the name of a fragment or recipe"
                self.faults.append(
                    ConfigIssue(entry.place, key, problem, "write extends: [model/..., data/...]")
                )
        return [(key, entry) for key, entry in found if isinstance(entry.value, str)]

    def extended(self, key: str, entry: Node, file: Path, chain: tuple[Path, ...]) -> Node:
        path = find_extended(str(entry.value), file)
        if path is None:
            problem = f"there is no fragment or recipe {value(entry.value)}"
            raise RecipeError(
                ConfigIssue(entry.place, key, problem, nearest(str(entry.value), extendable()))
            )
        if any(path.samefile(other) for other in chain):
            told = " -> ".join(shown(each) for each in (*chain, path))
            raise RecipeError(
                ConfigIssue(entry.place, key, f"a recipe that extends itself: {told}")
            )
        if len(chain) > DEPTH:
            raise RecipeError(
                ConfigIssue(entry.place, key, f"more than {DEPTH} files that extend one another")
            )
        return self.compose(path, chain)
