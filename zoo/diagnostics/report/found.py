"""What the encodings of a model say of themselves, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from zoo.diagnostics.looking import Look
from zoo.panels import Panel


def findings(looks: Sequence[Look]) -> tuple[Panel, ...]:
    """The findings of each layer's encodings, those that are the same in all layers once; kinds of panels together."""
    kinds: dict[str, list[tuple[int, Panel]]] = {}
    for look in looks:
        for panel in look.chain.findings(look.terms):
            kinds.setdefault(panel.title, []).append((look.layer, panel))
    return tuple(panel for kind in kinds.values() for panel in _told(kind))


def _told(kind: Sequence[tuple[int, Panel]]) -> list[Panel]:
    """Panels of one kind, each with its layer unless one stands for all."""
    first = kind[0][1]
    if all(_same(first, panel) for _, panel in kind):
        return [first]
    return [replace(panel, title=f"{panel.title}, layer {layer}") for layer, panel in kind]


def _same(one: Any, other: Any) -> bool:
    """Whether two panels, or parts of them, are equal."""
    if isinstance(one, Panel):
        return type(one) is type(other) and all(
            _same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one)
        )
    if isinstance(one, Tensor):
        return one.shape == other.shape and torch.allclose(one, other, equal_nan=True)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other)
