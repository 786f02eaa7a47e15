"""Panels that show the effect of an encoding on text. The measurements decide which there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from zoo.attention.backends.reference import weights
from zoo.diagnostics.metrics import gram
from zoo.diagnostics.portrait.probe import (
    EncodingProbe,
    choose_head,
    is_zero,
    measure_rotations,
    relative_weights,
    rotation_angles,
    subtract_base,
)
from zoo.reporting.panel import Curves, Heatmap, Panel, Points, distinct, label_heads, same

ADDED = "added by position"
CONTENT_BIAS = (
    "What is added to the score of each pair of random tokens. It depends on the tokens: a stripe "
    "is a token that hides earlier ones from later ones, or attracts attention."
)
BIAS = (
    "What is added to the score of each pair, regardless of the tokens: stripes along the diagonal "
    "depend on the offset, stripes across it on the position."
)
OFFSETS = (
    "What is added to a score at each offset, regardless of the tokens: a line that falls to the "
    "sides favours near tokens, a flat one does not distinguish positions."
)
DECAY = (
    "Change of the score of two equal tokens with their offset: where a line falls, a far token "
    "counts less than the same token nearby; ripples separate some distances better."
)
ROTATIONS = (
    "Rotation of each pair of channels per token: fast pairs separate near positions, slow pairs "
    "separate far ones."
)
WEIGHTS = (
    "Attention to equal tokens, each row relative to its largest weight: a strong diagonal attends "
    "nearby, an even row everywhere."
)
CONTENT_WEIGHTS = (
    "The same for different tokens with equal queries and keys: the change is what the encoding "
    "reads from the tokens."
)
INPUT = (
    "The vector that is added to the input at each position: channels that change fast separate "
    "neighbours, slow ones separate far positions."
)
OUTPUT = (
    "What is added to the output in addition to the values: the more it changes along the text, "
    "the more the output depends on positions."
)
PRODUCTS = (
    "Products of the vectors that are added at two positions: even stripes along the diagonal "
    "depend only on the offset, and a narrow one separates neighbours."
)


def collect_text_panels(probe: EncodingProbe, masked: bool) -> Iterator[Panel]:
    """Yield the panels that are not trivial, the most informative first.

    Args:
        probe: The encoding.
        masked: Show weights under a causal mask, even if the encoding needs none.
    """
    added = probe.measure_input()
    if not is_zero(added):
        yield _channels("Added to the input", added, INPUT)
    yield from _score_panels(probe)
    yield from _rotation_panels(probe)
    shown = replace(probe, causal=probe.causal or masked)
    yield from _weight_panels(shown)
    yield from _output_panels(shown)
    if not is_zero(added):
        yield Heatmap(
            title="Products of what is added to the input",
            x="position",
            y="position",
            caption=PRODUCTS,
            values=gram(added),
            unit="product",
            signed=True,
        )


def _score_panels(probe: EncodingProbe) -> Iterator[Panel]:
    """Yield the bias, and the scores of equal tokens if they contain more than the bias."""
    # With zero queries and keys, scores are the bias. Two draws of tokens show if it is fixed.
    bias, other_bias = (
        subtract_base(probe.call_constant(probe.draw_tokens(seed), 0.0), 0.0)[0] for seed in (0, 1)
    )  # [H, N, N]
    is_fixed = same(bias, other_bias)
    if not is_fixed:
        yield _pairs("Bias of random tokens", bias, ADDED, CONTENT_BIAS)
    elif not is_zero(bias):
        diagonals = [bias.diagonal(-offset, -2, -1) for offset in _offsets(bias)]
        if all(same(diagonal, diagonal[..., :1]) for diagonal in diagonals):
            yield _curves_by_offset("Bias on scores", bias[None], OFFSETS)
        else:
            yield _pairs("Bias on scores", bias, ADDED, BIAS)

    equal = probe.repeat_content(probe.draw_contents())
    added = subtract_base(probe.call(equal), 1.0)  # [B, H, N, N]
    if not (is_fixed and same(added, bias)):
        yield _curves_by_offset("Scores of equal tokens", added, DECAY)


def _rotation_panels(probe: EncodingProbe) -> Iterator[Panel]:
    rotations = measure_rotations(probe, 1)
    if rotations is None:
        return
    sorted_angles = distinct(rotation_angles(rotations[0]))  # [H, K/2]
    # A logarithmic axis cannot show pairs that do not rotate; a note counts them.
    pairs, still = torch.arange(sorted_angles.shape[-1]) + 1, int((sorted_angles[0] < 1e-9).sum())
    groups = {
        head: (pairs, angle.where(angle > 1e-9, torch.nan))
        for head, angle in label_heads(sorted_angles).items()
    }
    yield Points(
        title="Rotation of each pair of channels",
        x="pair, sorted",
        y="radians per token",
        caption=ROTATIONS,
        steep=True,
        groups=groups,
        note=f"{still} of {len(pairs)} pairs stay" if still else "",
    )


def _weight_panels(probe: EncodingProbe) -> Iterator[Panel]:
    unit = "weight / largest of its row"
    equal = relative_weights(probe.call(probe.repeat_content(probe.draw_contents(1))))[0]
    title = f"{'Causal weights' if probe.causal else 'Weights'} of equal tokens"
    yield _pairs(title, equal, unit, WEIGHTS, signed=False)
    weights, repeated = (
        relative_weights(probe.call_constant(probe.draw_tokens(seed), 1.0)) for seed in (0, 1)
    )
    if not same(weights, repeated):
        yield _pairs("The same of random tokens", weights[0], unit, CONTENT_WEIGHTS, signed=False)


def _output_panels(probe: EncodingProbe) -> Iterator[Panel]:
    call = probe.call(probe.draw_tokens())
    if call.extra_output is None:
        return
    out = call.extra_output(weights(call), call.full_span)[0]  # [H, N, V]
    if not is_zero(out):
        shown, head = choose_head(out)
        yield _channels(f"Added to the output{head}, random tokens", shown, OUTPUT)


def _channels(title: str, values: Tensor, caption: str) -> Heatmap:
    """Return a heat map of vectors [N, channels] along a sequence."""
    return Heatmap(
        title=title,
        x="position, in tokens",
        y="channel",
        caption=caption,
        values=values.mT,
        unit="value",
        signed=True,
    )


def _curves_by_offset(title: str, values: Tensor, caption: str) -> Curves:
    """Return a panel of the means of [B, H, N, N] at each offset.

    A single line has a band with the middle 80 % of the values.
    """
    heads = distinct(values.transpose(0, 1))  # [H, B, N, N]
    offsets = _offsets(values)
    diagonals = [heads.diagonal(-offset, -2, -1).flatten(1) for offset in offsets]  # [H, ...] each
    low, high = (
        torch.stack([diagonal[0].quantile(share) for diagonal in diagonals]) for share in (0.1, 0.9)
    )
    return Curves(
        title=title,
        x="query position - key position, in tokens",
        y=ADDED,
        caption=caption,
        x_values=torch.tensor(offsets),
        lines=label_heads(torch.stack([diagonal.mean(-1) for diagonal in diagonals], dim=-1)),
        band=None if len(heads) > 1 or same(low, high) else (low, high),
    )


def _pairs(title: str, heads: Tensor, unit: str, caption: str, signed: bool = True) -> Heatmap:
    """Return a heat map of the values [H, N, N] of one head's pairs."""
    shown, head = choose_head(heads)
    return Heatmap(
        title=f"{title}{head}",
        x="key position",
        y="query position",
        caption=caption,
        values=shown,
        unit=unit,
        signed=signed,
    )


def _offsets(values: Tensor) -> list[int]:
    """Return the offsets of visible pairs, query - key, in ascending order."""
    size = values.shape[-1]
    is_causal = values[..., 0, 1].isnan().all()
    return list(range(0 if is_causal else 1 - size, size))
