"""Linear probes of positions: in which layers a linear map reads them from states.

A probe is a ridge regression of the coordinates of tokens on their states, fitted to one half of
the samples and tested on the other, whose contents differ. Its control has one fixed permutation of
the positions as targets: a probe that does as well on these remembers positions instead of reading
their order (control tasks of Hewitt and Liang 2019, arXiv:1909.03368). A linear probe of the offset
of two tokens on both of their states is the difference of two such probes, and needs no measure of
its own.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from zoo.attention.layer import AttentionInput
from zoo.diagnosis.inputs import Inputs
from zoo.diagnosis.receptive_field import find_counted, keep_outputs, list_states
from zoo.diagnostics.capture import evaluation_mode, hook_attention

RIDGE = 1e-3
"""The penalty of squared weights, for states scaled to a mean square of 1."""
SEED = 0


@dataclass(frozen=True, kw_only=True)
class LayerProbe:
    """How well a linear map reads positions from the states after some layers.

    Attributes:
        layers: How many layers the states have passed.
        r2: Fraction of the variance of positions that the probe explains in other samples, averaged
            over axes; negative if it does worse than their mean.
        control: The same for permuted positions.
    """

    layers: int
    r2: float
    control: float


def measure_probes(model: nn.Module, inputs: Inputs) -> tuple[LayerProbe, ...]:
    """Fit probes to the states that enter each layer, and to those of the whole model.

    Args:
        model: A model with attention layers of zoo, its own or observed ones.
        inputs: Its arguments.

    Returns:
        The probes; empty for fewer than two samples, or where samples differ in their positions.
    """
    seen: list[AttentionInput] = []
    with ExitStack() as stack:
        stack.enter_context(evaluation_mode(model))
        outputs = stack.enter_context(keep_outputs(model))
        stack.enter_context(hook_attention(model, seen.append))
        found = model(*inputs)
    tokens = seen[0].tokens
    is_counted, index = find_counted(tokens), tokens.index
    same = bool((index == index[:1]).all())
    if len(tokens.x) < 2 or int(is_counted.sum()) < 2 or not same:
        return ()
    positions = index[0, is_counted].double().cpu()  # [N, P]
    order = torch.randperm(len(positions), generator=torch.Generator().manual_seed(SEED))
    states = [(0, tokens.x), *list_states(seen, outputs, found)]
    return tuple(
        LayerProbe(
            layers=layers,
            r2=score_probe(state[:, is_counted], positions),
            control=score_probe(state[:, is_counted], positions[order]),
        )
        for layers, state in states
    )


def score_probe(states: Tensor, positions: Tensor) -> float:
    """Fit a probe to the first half of samples, and return its fraction of variance on the others.

    Args:
        states: States [B, N, D].
        positions: Their positions [N, P].
    """
    states = states.detach().double().cpu()
    half = (len(states) + 1) // 2
    train, rest = states[:half].flatten(0, 1), states[half:].flatten(0, 1)
    targets, others = positions.repeat(half, 1), positions.repeat(len(states) - half, 1)

    centre, middle = train.mean(0), targets.mean(0)
    size = (train - centre).square().mean().sqrt().clamp(min=1e-30)
    x, y = (train - centre) / size, targets - middle
    # as many equations as channels or as tokens, whichever are fewer
    if len(x) < x.shape[1]:
        weights = x.mT @ torch.linalg.solve(x @ x.mT + RIDGE * len(x) * torch.eye(len(x)).to(x), y)
    else:
        one = torch.eye(x.shape[1]).to(x)
        weights = torch.linalg.solve(x.mT @ x + RIDGE * len(x) * one, x.mT @ y)
    errors = others - middle - (rest - centre) / size @ weights
    spread = (others - others.mean(0)).square().sum(0)
    is_spread = spread > 0
    return float((1 - errors.square().sum(0)[is_spread] / spread[is_spread]).mean())
