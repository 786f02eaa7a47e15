"""What an encoding does to a text, as panels that are chosen by what is measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from zoo.attention import AttentionCall
from zoo.attention.backends.reference import weights
from zoo.diagnostics.metrics import gram
from zoo.diagnostics.portrait.measures import middle, nothing
from zoo.diagnostics.portrait.probe import Probe, added_to_scores, shares
from zoo.diagnostics.portrait.turning import angles, turns
from zoo.reporting.panel import Curves, Heatmap, Panel, Points, distinct, named, same

ADDED = "added by position"
CONTENT_BIAS = (
    "What is added to the score of each pair of random tokens: it reads what tokens are, and a stripe is a token that keeps"
    " later ones from looking past it, or draws them."
)
BIAS = (
    "What is added to the score of each pair, whatever the tokens are: stripes along the diagonal tell that the offset counts,"
    " what runs across them that the place does."
)
OFFSETS = (
    "What is added to a score at each offset, whatever the tokens are: a line that falls to the sides looks near, a flat one"
    " does not tell places apart."
)
DECAY = (
    "How the score of two equal tokens changes with their offset: where a line falls, a far token counts for less than the"
    " same token nearby, and ripples tell some distances apart better than others."
)
TURNS = "How far one token turns each pair of channels: pairs that turn fast tell near places apart, slow ones far places."
WEIGHTS = (
    "How attention is spread over tokens that are all alike, each row beside its largest weight: a strong diagonal looks near,"
    " an even row everywhere."
)
READ = "The same where tokens differ, though their queries and keys do not: what changes is what the encoding reads of them."
INPUT = "The vector that each place adds to the input: channels that change fast tell neighbours apart, slow ones far places."
OUTPUT = "What is read out beside the values: the more it changes along the text, the more of places the output tells."
PRODUCTS = (
    "What two places have in common in what they add to the input: even stripes along the diagonal tell that only their offset"
    " counts, and a narrow one that places are told from their neighbours."
)


def panels(probe: Probe, masked: bool) -> Iterator[Panel]:
    """The panels that have something to show, the most telling first; `masked`: weights are causal in any case."""
    yield from _input(probe)
    bias, other = (
        added_to_scores(probe.held(probe.noise(seed), 0.0), 0.0)[0] for seed in (0, 1)
    )  # [H, N, N]
    given = same(bias, other)
    added = added_to_scores(probe.call(probe.alike(probe.contents())), 1.0)  # [B, H, N, N]
    if not given:
        yield _map("Bias of random tokens", bias, ADDED, CONTENT_BIAS)
    elif not nothing(bias):
        yield _bias(bias)
    if not (given and same(added, bias)):
        yield _curves("Scores of equal tokens", added, DECAY)
    yield from _spectrum(probe)
    shown = replace(probe, causal=probe.causal or masked)
    title = f"{'Causal weights' if shown.causal else 'Weights'} of equal tokens"
    yield _weights(title, shown.call(shown.alike(shown.contents(1))), WEIGHTS)
    first, second = (shown.held(shown.noise(seed), 1.0) for seed in (0, 1))
    if not same(shares(first), shares(second)):
        yield _weights("The same of random tokens", first, READ)
    yield from _output(shown)
    yield from _products(probe)


def _input(probe: Probe) -> Iterator[Panel]:
    added = probe.entered(torch.zeros_like(probe.noise()))[0]  # [N, D]
    if not nothing(added):
        yield _channels("Added to the input", added, INPUT)


def _products(probe: Probe) -> Iterator[Panel]:
    """PE(i).PE(j) of what is added to the input."""
    added = probe.entered(torch.zeros_like(probe.noise()))[0]  # [N, D]
    if not nothing(added):
        yield Heatmap(
            title="Products of what is added to the input",
            x="place",
            y="place",
            says=PRODUCTS,
            values=gram(added),
            unit="product",
            signed=True,
        )


def _output(probe: Probe) -> Iterator[Panel]:
    """What is read out beside the values."""
    call = probe.call(probe.noise())
    out = (
        torch.zeros(1, 1, 1)
        if call.extra_output is None
        else call.extra_output(weights(call), call.full_span)[0]
    )  # [H, N, V]
    if not nothing(out):
        shown, head = middle(out)
        yield _channels(f"Added to the output{head}, random tokens", shown, OUTPUT)


def _channels(title: str, values: Tensor, says: str) -> Heatmap:
    """Vectors [N, channels] along a text."""
    return Heatmap(
        title=title,
        x="place, in tokens",
        y="channel",
        says=says,
        values=values.mT,
        unit="value",
        signed=True,
    )


def _bias(bias: Tensor) -> Panel:
    """A bias [H, N, N], as a curve over offsets if it depends on nothing else."""
    diagonals = [bias.diagonal(-offset, -2, -1) for offset in _offsets(bias)]
    if all(same(one, one[..., :1]) for one in diagonals):
        return _curves("Bias on scores", bias[None], OFFSETS)
    return _map("Bias on scores", bias, ADDED, BIAS)


def _curves(title: str, values: Tensor, says: str) -> Curves:
    """Means over samples and places of [B, H, N, N] at each offset; for a single line the middle 80 % of them too."""
    heads = distinct(values.transpose(0, 1)).transpose(0, 1)
    at = [
        heads.diagonal(-offset, -2, -1).movedim(1, 0).flatten(1) for offset in _offsets(values)
    ]  # [H, ..] each
    low, high = (torch.stack([one[0].quantile(share) for one in at]) for share in (0.1, 0.9))
    return Curves(
        title=title,
        x="query's place - key's place, in tokens",
        y=ADDED,
        says=says,
        places=torch.tensor(_offsets(values)),
        lines=named(torch.stack([one.mean(-1) for one in at], dim=-1)),
        band=None if heads.shape[1] > 1 or same(low, high) else (low, high),
    )


def _spectrum(probe: Probe) -> Iterator[Panel]:
    turn = turns(probe, 1)
    if turn is None:
        return
    found = distinct(angles(turn[0]))  # [H, K/2]
    pairs, still = torch.arange(found.shape[-1]) + 1, int((found[0] < 1e-9).sum())
    yield Points(
        title="Turn of each pair of channels",
        x="pair, sorted",
        y="radians per token",
        says=TURNS,
        steep=True,
        groups={
            head: (pairs, angle.where(angle > 1e-9, torch.nan))
            for head, angle in named(found).items()
        },
        note=f"{still} of {len(pairs)} pairs stay" if still else "",
    )


def _weights(title: str, call: AttentionCall, says: str) -> Heatmap:
    return _map(title, shares(call)[0], "weight / largest of its row", says, signed=False)


def _map(title: str, heads: Tensor, unit: str, says: str, signed: bool = True) -> Heatmap:
    """Pairs [H, N, N] of one head."""
    shown, head = middle(heads)
    return Heatmap(
        title=f"{title}{head}",
        x="key's place",
        y="query's place",
        says=says,
        values=shown,
        unit=unit,
        signed=signed,
    )


def _offsets(values: Tensor) -> list[int]:
    """Offsets query - key that are seen, ascending."""
    size = values.shape[-1]
    ahead = not values[..., 0, 1].isnan().all()
    return list(range(1 - size if ahead else 0, size))
