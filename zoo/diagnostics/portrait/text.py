"""What an encoding does to a text, as panels that are chosen by what is measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from zoo.attention import Terms
from zoo.attention.attend import weights
from zoo.diagnostics.portrait.measures import middle, nothing
from zoo.diagnostics.portrait.probe import Probe, added_to_scores, shares
from zoo.diagnostics.portrait.turning import angles, turns
from zoo.panels import Curves, Map, Panel, Points, distinct, named, same

ADDED = "added by position"


def panels(probe: Probe) -> Iterator[Panel]:
    """The panels that have something to show, the most telling first."""
    yield from _input(probe)
    bias, other = (added_to_scores(probe.held(probe.noise(seed), 0.0), 0.0)[0] for seed in (0, 1))  # [H, N, N]
    given = same(bias, other)
    added = added_to_scores(probe.terms(probe.alike(probe.contents())), 1.0)  # [B, H, N, N]
    if not given:
        yield _map("Bias of random tokens", bias, ADDED, signed=True)
    elif not nothing(bias):
        yield _bias(bias)
    if not (given and same(added, bias)):
        yield _curves("Scores of equal tokens", added)
    yield from _spectrum(probe)
    masked = replace(probe, causal=True)
    yield _weights("Causal weights of equal tokens", masked.terms(masked.alike(masked.contents(1))))
    first, second = (masked.held(masked.noise(seed), 1.0) for seed in (0, 1))
    if not same(shares(first), shares(second)):
        yield _weights("The same of random tokens", first)
    yield from _output(masked)


def _input(probe: Probe) -> Iterator[Panel]:
    added = probe.entered(torch.zeros_like(probe.noise()))[0]  # [N, D]
    if not nothing(added):
        yield _channels("Added to the input", added)


def _output(probe: Probe) -> Iterator[Panel]:
    """What is read out beside the values."""
    terms = probe.terms(probe.noise())
    out = torch.zeros(1, 1, 1) if terms.readout is None else terms.readout(weights(terms))[0]  # [H, N, V]
    if not nothing(out):
        shown, head = middle(out)
        yield _channels(f"Added to the output{head}, random tokens", shown)


def _channels(title: str, values: Tensor) -> Map:
    """Vectors [N, channels] along a text."""
    return Map(title=title, x="place, in tokens", y="channel", values=values.mT, unit="value", signed=True)


def _bias(bias: Tensor) -> Panel:
    """A bias [H, N, N], as a curve over offsets if it depends on nothing else."""
    diagonals = [bias.diagonal(-offset, -2, -1) for offset in _offsets(bias)]
    if all(same(one, one[..., :1]) for one in diagonals):
        return _curves("Bias on scores", bias[None])
    return _map("Bias on scores", bias, ADDED, signed=True)


def _curves(title: str, values: Tensor) -> Curves:
    """Means over samples and places of [B, H, N, N] at each offset; for a single line the middle 80 % of them too."""
    heads = distinct(values.transpose(0, 1)).transpose(0, 1)
    at = [heads.diagonal(-offset, -2, -1).movedim(1, 0).flatten(1) for offset in _offsets(values)]  # [H, ..] each
    low, high = (torch.stack([one[0].quantile(share) for one in at]) for share in (0.1, 0.9))
    return Curves(
        title=title, x="query's place - key's place, in tokens", y=ADDED, places=torch.tensor(_offsets(values)),
        lines=named(torch.stack([one.mean(-1) for one in at], dim=-1)),
        band=None if heads.shape[1] > 1 or same(low, high) else (low, high),
    )  # fmt: skip


def _spectrum(probe: Probe) -> Iterator[Panel]:
    turn = turns(probe, 1)
    if turn is None:
        return
    found = distinct(angles(turn[0]))  # [H, K/2]
    pairs, still = torch.arange(found.shape[-1]) + 1, int((found[0] < 1e-9).sum())
    yield Points(
        title="Turn of each pair of channels", x="pair, sorted", y="radians per token", steep=True,
        groups={head: (pairs, angle.where(angle > 1e-9, torch.nan)) for head, angle in named(found).items()},
        note=f"{still} of {len(pairs)} pairs stay" if still else "",
    )  # fmt: skip


def _weights(title: str, terms: Terms) -> Map:
    return _map(title, shares(terms)[0], "weight / largest of its row", signed=False)


def _map(title: str, heads: Tensor, unit: str, signed: bool) -> Map:
    """Pairs [H, N, N] of one head."""
    shown, head = middle(heads)
    return Map(
        title=f"{title}{head}", x="key's place", y="query's place", values=shown, unit=unit, signed=signed
    )  # fmt: skip


def _offsets(values: Tensor) -> list[int]:
    """Offsets query - key that are seen, ascending."""
    size = values.shape[-1]
    ahead = not values[..., 0, 1].isnan().all()
    return list(range(1 - size if ahead else 0, size))
