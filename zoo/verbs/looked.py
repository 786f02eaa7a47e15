"""A model, looked at with the samples of a diagnosis: as it is, with all tokens in one place, and with all moved alike."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from zoo.diagnostics import measures
from zoo.diagnostics.looking import Look, look, watch
from zoo.diagnostics.places import CHANGES, Change, changed
from zoo.diagnostics.report.shown import Layout
from zoo.errors import Invalid

log = logging.getLogger("zoo")

WHOLE = 2**27  # weights of one layer at most, of which a rollout is made
Inputs = tuple[Tensor | None, ...]
Chosen = Sequence[int] | None


class Looked(NamedTuple):
    """Layers that were looked at, from the queries that the layout names."""

    layout: Layout
    looks: list[Look]
    content: list[Look] | None  # with all tokens in one place; None where the model refuses that
    shifted: list[Look] | None  # with all tokens moved alike
    rollout: Tensor | None  # [S, Q, M] of all layers

    @property
    def weights(self) -> Tensor:
        """[S, L, H, Q, M]"""
        return torch.stack([one.weights.float().cpu() for one in self.looks], dim=1)


def looked(model: nn.Module, inputs: Inputs, plan: Layout, layers: Chosen) -> Looked:
    """Looks from the queries that the layout names."""
    looks = look(model, inputs, plan.slots, layers)
    content, shifted = (_moved(model, inputs, plan, layers, CHANGES[name]) for name in ("zeroed", "shifted"))
    return Looked(plan, looks, content, shifted, _rollout(model, inputs, plan, looks[0]))


def _moved(model: nn.Module, inputs: Inputs, plan: Layout, layers: Chosen, change: Change) -> list[Look] | None:
    try:
        with changed(model, change):
            return look(model, inputs, plan.slots, layers)
    except Invalid:
        return None


def _rollout(model: nn.Module, inputs: Inputs, plan: Layout, first: Look) -> Tensor | None:
    """Layer by layer, so that the weights of one alone are held; None where these are too many."""
    batch, heads = first.weights.shape[:2]
    if batch * heads * plan.tokens**2 > WHOLE:
        log.info("no rollout: %d tokens have too many pairs", plan.tokens)
        return None
    means: list[Tensor] = []
    watch(model, inputs, lambda seen: means.append(seen.weights.float().abs().mean(1, keepdim=True)))
    return measures.rollout(means)[:, list(plan.slots)].cpu()
