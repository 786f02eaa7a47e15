"""The YAML that recipes are written in: the plain scalars of YAML 1.2, and nothing that could construct an object."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Iterable
from typing import Any

import yaml

from zoo.config.tree import DEPTH, NODES, Scalar

_INT = r"[-+]?(0|[1-9][0-9_]{0,30}|0x[0-9a-fA-F]{1,16})"
_DECIMAL = r"[-+]?((0|[1-9][0-9_]*)(\.[0-9_]*)?|\.[0-9]+)([eE][-+]?[0-9]+)?"
_FLOAT = rf"{_DECIMAL}|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"

# tag: (what a plain scalar of it looks like, the characters it starts with, its value)
SCALARS: dict[str, tuple[str, Iterable[str], Callable[[str], Scalar]]] = {
    "null": (r"~|null|Null|NULL|", ["", *"~nN"], lambda text: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF", lambda text: text.lower() == "true"),
    "int": (_INT, "-+0123456789", lambda text: int(text.replace("_", ""), 0)),
    "float": (_FLOAT, "-+0123456789.", lambda text: float(re.sub(r"_|\.(?=[a-zA-Z])", "", text))),
}
_TAG = "tag:yaml.org,2002:"


def value_of(node: yaml.Node) -> Scalar:
    """The value of a scalar that `Loader` composed."""
    scalar = SCALARS.get(node.tag.removeprefix(_TAG))
    return scalar[2](node.value) if scalar else str(node.value)


class Loader(yaml.SafeLoader):
    """Composes nodes, never constructs; stops at tags, at depth and at size before they cost anything."""

    depth = count = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self.count += 1
        if getattr(event, "tag", None) is not None:
            tag = reprlib.repr(event.tag.replace(_TAG, "!!"))
            self.refuse(f"the tag {tag} is refused, a recipe is plain data", event)
        if self.depth > DEPTH:
            self.refuse(f"nested deeper than {DEPTH} levels", event)
        if self.count > 2 * NODES:  # keys and values
            self.refuse(f"more than {NODES:,} values", event)
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def refuse(self, problem: str, event: Any) -> None:
        raise yaml.MarkedYAMLError(None, None, problem, event.start_mark)


class Dumper(yaml.SafeDumper):
    """Writes what `Loader` reads back the same, and quotes what other YAML readers would misread (yes, 010)."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_sequence(
        self, tag: str, sequence: Any, flow_style: bool | None = None
    ) -> yaml.SequenceNode:
        flat = not any(isinstance(item, dict | list) for item in sequence)
        return super().represent_sequence(tag, sequence, flow_style=flat)


Loader.yaml_implicit_resolvers = {}
for _name, (_looks, _starts, _) in SCALARS.items():
    Loader.add_implicit_resolver(_TAG + _name, re.compile(f"(?:{_looks})\\Z"), list(_starts))
    Dumper.add_implicit_resolver(_TAG + _name, re.compile(f"(?:{_looks})\\Z"), list(_starts))
