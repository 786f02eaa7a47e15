"""Layers that differ: types of layers, and the pattern in which they follow each other.

    layer_types:
      local: {window: 512, encoding: {name: rope, base: 10000}}
      global: {encoding: none}
    layer_pattern: [local*3, global]

The pattern is repeated over the depth; the last repetition may be cut. A type may set a mixer in
place of attention: `linear: {mixer: {name: gated_delta, heads: 4}}`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, groupby, islice
from typing import Annotated, Any

from zoo.errors import OptionError
from zoo.options import Differences
from zoo.suggestions import find_meant, nearest, offer

LAYER_KEYS = ("encoding", "window", "softcap", "sinks", "temperature")
"""Options of a model that a type of layers may change, as far as the model has them."""

LayerTypes = Annotated[
    Mapping[str, Mapping[str, Any]] | None, Differences(LAYER_KEYS, (("mixer", "mixers"),))
]
"""Types of layers: by name, the options of the model that have another value there, or a mixer."""

TYPE = re.compile(r"[A-Za-z]\w*")
ENTRY = re.compile(r"([A-Za-z]\w*)(?:\*(\d{1,6}))?")


def expand_pattern(
    layer_types: Mapping[str, Mapping[str, Any]] | None,
    layer_pattern: Sequence[str] | None,
    depth: int,
) -> tuple[str, ...]:
    """Return the type of each layer.

    Args:
        layer_types: The types by name.
        layer_pattern: Their names in the order of the layers; `local*5` stands for five of a type.
        depth: Number of layers.

    Raises:
        OptionError: A type is not in the pattern, an entry of the pattern names no type, the
            pattern is longer than the depth, or one of the two is missing.
    """
    if not layer_types:
        message = "there are no layer_types for the pattern to repeat"
        raise OptionError("layer_pattern", f"{message}; write layer_types, or leave it out")
    if not layer_pattern:
        names = ", ".join(layer_types)
        message = "there is no layer_pattern, which says where each type is"
        raise OptionError("layer_types", f"{message}; write layer_pattern: [{names}]")
    for name in layer_types:
        if not TYPE.fullmatch(name) or name == "name":
            message = f"{name!r} cannot name a type of layers"
            raise OptionError(f"layer_types.{name}", f"{message}; write a word such as local")

    expanded: list[str] = []
    for number, entry in enumerate(layer_pattern):
        name, count = _read_entry(entry, f"layer_pattern.{number}", layer_types)
        # long enough to be refused below; `local*1000000000` would fill the memory
        expanded += [name] * min(count, depth + 1)
    if len(expanded) > depth:
        message = f"the pattern is longer than the depth, {depth}"
        raise OptionError("layer_pattern", f"{message}; shorten it, or set a larger depth")
    for name in layer_types:
        if name not in expanded:
            message = f"{name} is not in the pattern"
            hint = "add it there, or remove the type"
            if meant := find_meant(name, dict.fromkeys(expanded)):
                hint = f"{offer(name, meant)} Otherwise {hint}"
            raise OptionError(f"layer_types.{name}", f"{message}; {hint}")
    return tuple(islice(cycle(expanded), depth))


def _read_entry(entry: str, key: str, layer_types: Mapping[str, Any]) -> tuple[str, int]:
    """Return the type and the number of layers of an entry of a pattern."""
    match = ENTRY.fullmatch(entry)
    if not match or int(match[2] or 1) < 1:
        message = f"{entry!r} is no entry of a pattern"
        raise OptionError(key, f"{message}; write a type, or local*5 for five layers of it")
    if match[1] not in layer_types:
        message = f"there is no type {match[1]!r} in layer_types"
        raise OptionError(key, f"{message}; {nearest(match[1], layer_types)}")
    return match[1], int(match[2] or 1)


def list_runs(types: Sequence[str]) -> Iterator[tuple[str, range]]:
    """Yield each run of equal types, with its layers."""
    start = 0
    for name, group in groupby(types):
        stop = start + len(list(group))
        yield name, range(start, stop)
        start = stop
