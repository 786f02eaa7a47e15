"""The layers of a published decoder, described as `layer_types` and `layer_pattern` of a recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zoo.models.layer_types import list_runs

Layers = Sequence[tuple[str, Mapping[str, Any]]]
"""For each layer the name of its type, and its options of those that a type may change."""


def describe_layers(layers: Layers) -> dict[str, Any]:
    """Return the options of a model whose layers are these.

    What all types with attention share is said once, by the model. The model has the encoding of
    the last of them. One of the types has attention; those with a mixer have no other option.
    """
    types = dict(layers)
    attending = [options for options in types.values() if "mixer" not in options]
    last_layer = attending[-1]
    differing = [
        key for key in last_layer if any(layer[key] != last_layer[key] for layer in attending)
    ]
    shared = {key: value for key, value in last_layer.items() if key not in differing}
    model = {key: value for key, value in shared.items() if value is not None}
    if len(attending) == len(types) and not differing:
        return model
    if "encoding" in differing:
        model["encoding"] = last_layer["encoding"]
    model["layer_types"] = {
        name: {**options} if "mixer" in options else {key: options[key] for key in differing}
        for name, options in types.items()
    }
    model["layer_pattern"] = write_pattern([name for name, _ in layers])
    return model


def write_pattern(types: Sequence[str]) -> list[str]:
    """Return the shortest pattern that gives these types when it is repeated."""
    count = len(types)
    period = next(
        size
        for size in range(1, count + 1)
        if all(types[i] == types[i % size] for i in range(count))
    )
    return [
        name if len(run) == 1 else f"{name}*{len(run)}" for name, run in list_runs(types[:period])
    ]
