"""What a report says of encodings: what they do, what they found in each layer, and what they add to words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from zoo.attention import Tokens
from zoo.diagnostics.looking import Look, look, resting
from zoo.diagnostics.report import trained
from zoo.models.block import Block
from zoo.models.trunk import Trunk
from zoo.panels import Panel, Points


def encodings(model: nn.Module, inputs: Sequence[Any], looks: Sequence[Look], grid: Sequence[int]) -> tuple[Panel, ...]:
    """What encodings do, then what they found, then the correlations of words and positions where they are added.

    Turns that an encoding tells of itself are not measured from outside once more.
    """
    told = findings(looks)
    turned = {panel.y for panel in told if isinstance(panel, Points)}
    doings = [panel for panel in _doings(looks, grid) if not (isinstance(panel, Points) and panel.y in turned)]
    return (*doings, *told, *_correlations(model, inputs, looks))


def _doings(looks: Sequence[Look], grid: Sequence[int]) -> Iterator[Panel]:
    """Of the first layer that was looked at; the others' are the same only where all layers share one encoding."""
    first = looks[0]
    for panel in trained.panels(first.chain, grid, first.terms.causal):
        yield panel if first.chain.shared else replace(panel, title=f"{panel.title}, layer {first.layer}")


def _correlations(model: nn.Module, inputs: Sequence[Any], looks: Sequence[Look]) -> tuple[Panel, ...]:
    trunk = next((module for module in model.modules() if isinstance(module, Trunk)), None)
    if trunk is None or looks[0].scores is None:  # linear attention multiplies features of words and positions
        return ()
    seen: list[Tokens] = []
    hooks = [one.register_forward_pre_hook(lambda _, given: seen.append(given[0])) for one in (trunk, trunk.blocks[0])]
    try:
        with resting(model):
            model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    first = trunk.blocks[0]
    assert isinstance(first, Block)
    (call,) = look(model, inputs, 1, [first.attention.dims.layer])
    before, after = seen
    return trained.correlations(first, before, after, call.terms)


def findings(looks: Sequence[Look]) -> tuple[Panel, ...]:
    """The findings of each layer's encodings, those that are the same in all layers once; kinds of panels together."""
    kinds: dict[str, list[tuple[int, Panel]]] = {}
    for one in looks:
        for panel in one.chain.findings(one.terms):
            kinds.setdefault(panel.title, []).append((one.layer, panel))
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
