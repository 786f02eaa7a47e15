"""What rotations that need not commute say of themselves: angles, how far from commuting, what a shift changes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import torch
from torch import Tensor

from zoo.attention import Encoding, Terms
from zoo.encodings.parts.seen import AXES, Panels, curves, outside, pairs, per_head
from zoo.encodings.parts.turns import step
from zoo.panels import Panel

FARTHEST = 32  # patches that a pair is moved by


def seen_angles(skew: Tensor, encoding: Encoding, terms: Terms) -> Panels:
    """The turns of exp(A_a) for generators [P, H, m, b, b] that need not commute, along each axis by itself."""
    found = torch.linalg.eigvalsh(1j * outside(skew))[..., -(skew.shape[-1] // 2) :].flatten(2)  # [P, H, pairs]
    found = found.sort(dim=-1, descending=True).values * outside(step(encoding, terms))[:, None, None]
    for axis, one in zip(AXES[len(found)], found, strict=True):
        told = f"How far one step turns each pair of channels, where steps go along {axis} alone: near and far places."
        yield pairs(f"Turns along {axis}", "radians per token", one, told, x="pair of channels, sorted")


def commutators(generators: Tensor) -> Tensor:
    """||[A, B]|| / (||A|| ||B||) in the Frobenius norm, the mean over pairs of n generators [n, H, m, b, b]: [H].

    A generator of a head has m blocks on its diagonal. 0 for generators that commute or are 0.
    """
    found = outside(generators)
    norms = found.flatten(2).norm(dim=-1)  # [n, H]
    ratios = []
    for first, second in combinations(range(len(found)), 2):
        bracket = found[first] @ found[second] - found[second] @ found[first]
        size = norms[first] * norms[second]
        ratios.append(bracket.flatten(1).norm(dim=-1) / size.where(size > 0, 1))
    return torch.stack(ratios).mean(0)


def seen_commutators(generators: Tensor) -> Panel:
    """Of generators [P, H, m, b, b] of several axes."""
    told = "How far turning along one axis and then another differs from the other order: at 0 scores depend on offsets alone."
    return per_head("Commutators of axes", "|AB - BA| / (|A| |B|)", commutators(generators), told)


def departures(rotations: Callable[[Tensor], Tensor], shifts: Tensor, steps: Tensor) -> Tensor:
    """How far R(p)^T R(p + e) changes where p = 0 is moved by each of shifts [S, P], the mean over steps e [E, P]: [H, S].

    In the Frobenius norm, as a share of what two unrelated rotations are apart. `rotations` gives R [1, H, N, m, b, b] at
    coordinates [1, N, P].
    """
    places = torch.cat([torch.zeros_like(steps[:1]), steps])  # [1 + E, P]
    where = (shifts[:, None] + places).flatten(0, 1)[None]
    found = outside(rotations(where))[0].unflatten(1, (len(shifts), -1))  # [H, S, 1 + E, m, b, b]
    met = found[:, :, :1].mT @ found[:, :, 1:]  # [H, S, E, m, b, b]
    apart = (met - met[:, :1]).flatten(3).norm(dim=-1)  # [H, S, E]
    return apart.mean(-1) / (2 * met.shape[-3] * met.shape[-1]) ** 0.5


def seen_departures(rotations: Callable[[Tensor], Tensor], encoding: Encoding, terms: Terms) -> Panels:
    """A score's turn against how far both of its places are moved, as far as the tokens of the call reach."""
    one, pos = step(encoding, terms), terms.keys.pos.flatten(0, 1)
    reach = min(int(((pos.amax(0) - pos.amin(0)) / one).round().amin()), FARTHEST)  # patches from the first to the last
    if reach < 2:
        return
    counts = torch.arange(reach, device=one.device)
    found = departures(rotations, counts[:, None] * one, one.diag())
    yield curves(
        "Departure from relativity", "shift along every axis, in patches", "change, 1 for unrelated rotations", counts, found,
        "How much the turn between two neighbours changes when both are moved: a flat line at 0 tells that offsets alone"
        " count, a rising one that scores depend on where a pair stands.",
    )  # fmt: skip
