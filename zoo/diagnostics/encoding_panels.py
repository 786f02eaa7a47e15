"""Panels about a trained encoding: measured from outside, and reported by the encoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from zoo.attention import AttentionCall, Tokens, repeat_kv_heads, upcast
from zoo.attention.chain import Chain
from zoo.attention.layer import hook_tokens
from zoo.diagnostics import metrics
from zoo.diagnostics.capture import LayerAttention, capture_model, evaluation_mode, list_columns
from zoo.diagnostics.portrait.portrait import collect_panels
from zoo.diagnostics.portrait.probe import EncodingProbe
from zoo.models.transformer import Block, find_transformers
from zoo.reporting.panel import HeatmapGrid, Panel, Points

# Largest grid of tokens to measure, by number of axes; one frame of a clip.
MOST = {1: (128,), 2: (15, 15), 3: (1, 15, 15)}
PARTS = (
    "Parts of the first layer's scores, averaged over samples and heads. Position to position "
    "shows which positions attend to which, regardless of content. If the two mixed parts are "
    "small, content and position are nearly independent."
)


@torch.no_grad()
def measure_encoding(chain: Chain, sizes: Sequence[int], causal: bool) -> tuple[Panel, ...]:
    """Measure the encodings of one layer with their current parameters.

    The measurement uses the first tokens of a sequence or grid of `sizes`. Encodings of the input
    are included, whichever layer is measured.
    """
    # A copy in float64 leaves the model unchanged.
    copy = deepcopy(chain).to("cpu", torch.float64).eval().requires_grad_(False)
    axes = copy.dims.axes
    # text whose positions have three coordinates has no grid: its encoding is drawn on one
    shown = MOST[axes] if len(sizes) < axes else tuple(map(min, MOST[axes], sizes))
    return tuple(collect_panels(EncodingProbe(copy, shown, causal), masked=False))


@torch.no_grad()
def draw_correlations(
    block: Block, before: Tokens, after: Tokens, call: AttentionCall
) -> tuple[Panel, ...]:
    """Draw the correlations of words and positions in the first block (arXiv:2006.15595, figure 2).

    Args:
        block: The first block.
        before: Tokens before `embed`.
        after: Tokens after `embed`.
        call: An attention call of the block.

    Returns:
        One panel, or none if nothing was added to the tokens or scores are not a sum of such parts.
    """
    if not (after.x != before.x).any() or not _is_plain_projection(block, call):
        return ()
    parts = decompose_scores(block, before, after)
    values = torch.stack([part.nanmean(0).cpu() for part in parts.values()])
    return (
        HeatmapGrid(
            title="Correlations of word and position",
            x="key position",
            y="query position",
            caption=PARTS,
            values=values,
            labels=tuple(parts),
            unit="part of the score",
        ),
    )


def _is_plain_projection(block: Block, call: AttentionCall) -> bool:
    """Return whether scores are products of plain projections, not normed, mixed or rotated."""
    layer = block.attn
    assert layer is not None
    if layer.token_shift is not None or not isinstance(layer.q_norm, nn.Identity):
        return False
    if layer.temperature is not None or layer.softcap is not None:
        return False
    unturned = call.q.shape == call.raw_query.shape and torch.equal(call.q, call.raw_query)
    return unturned and call.scale == layer.dims.head_dim**-0.5


def decompose_scores(block: Block, before: Tokens, after: Tokens) -> dict[str, Tensor]:
    """Split the scores of tokens with a position into parts [H, N, N], by name.

    The position is what `embed` added, the word is its input. Both pass the norm at the scale of
    their sum. Columns that are padding in all samples are left out; NaN for pairs that no sample
    has.
    """
    layer = block.attn
    assert layer is not None
    dims = layer.dims
    placed = torch.tensor(list_columns(after), device=after.x.device, dtype=torch.long)
    if after.has_position is not None:
        placed = placed[after.has_position[0, placed]]
    word, position = (states[:, placed] for states in (before.x, after.x - before.x))
    through = _linearize_norm(block.norm1 if block.reads_norm else None, after.x[:, placed])
    query, key = (
        projection.weight.unflatten(0, (-1, dims.head_dim))
        for projection in (layer.q_proj, layer.k_proj)
    )  # [H, K, D], [G, K, D]
    return metrics.word_position_correlations(
        through(word),
        through(position),
        query,
        repeat_kv_heads(key[None], dims.heads)[0],
        None if after.valid is None else after.valid[:, placed],
    )


def _linearize_norm(norm: nn.Module | None, whole: Tensor) -> Callable[[Tensor], Tensor]:
    """Return a norm as a linear map of parts, with the scale of their sum `whole` [B, N, D]."""
    # A norm is linear once its scale is fixed, so the parts add up to the normed sum.
    whole = upcast(whole)
    if isinstance(norm, nn.LayerNorm):
        centred = whole - whole.mean(-1, keepdim=True)
        size = (centred.square().mean(-1, keepdim=True) + norm.eps).rsqrt() * norm.weight
        return lambda part: (part - part.mean(-1, keepdim=True)) * size
    if isinstance(norm, nn.RMSNorm):
        eps = torch.finfo(whole.dtype).eps if norm.eps is None else norm.eps
        size = (whole.square().mean(-1, keepdim=True) + eps).rsqrt() * norm.weight
        return lambda part: part * size
    return lambda part: part


def draw_encodings(
    model: nn.Module,
    inputs: Sequence[Any],
    attentions: Sequence[LayerAttention],
    grid: Sequence[int],
) -> tuple[Panel, ...]:
    """Collect the panels of all encodings: measured ones, reported ones, and correlations.

    A rotation that an encoding reports is not measured again.
    """
    reported = list_reported_panels(attentions)
    turned = {panel.y for panel in reported if isinstance(panel, Points)}
    doings = [
        panel
        for panel in _draw_first_layer(attentions, grid)
        if not (isinstance(panel, Points) and panel.y in turned)
    ]
    return (*doings, *reported, *_draw_model_correlations(model, inputs, attentions))


def _draw_first_layer(attentions: Sequence[LayerAttention], grid: Sequence[int]) -> Iterator[Panel]:
    """Measure the first captured layer, and title its panels with the layer if layers differ."""
    attention = attentions[0]
    if attention.chain.dims.points:  # their coordinates have no grid on which to measure
        return
    for panel in measure_encoding(attention.chain, grid, attention.call.causal):
        yield (
            panel
            if attention.chain.shared
            else replace(panel, title=f"{panel.title}, layer {attention.layer}")
        )


def _draw_model_correlations(
    model: nn.Module, inputs: Sequence[Any], attentions: Sequence[LayerAttention]
) -> tuple[Panel, ...]:
    transformers = find_transformers(model)
    # Linear attention has no scores: it multiplies features of sums of words and positions. Points
    # of several samples share no positions.
    if not transformers or attentions[0].scores is None or attentions[0].chain.dims.points:
        return ()
    block = transformers[0].blocks[0]
    assert isinstance(block, Block)
    # a mixer has no scores
    if block.attn is None:
        return ()

    # Record the tokens before `embed` and at the input of the first block.
    seen: list[Tokens] = []

    def record(tokens: Tokens) -> Tokens:
        seen.append(tokens)
        return tokens

    block_hook = block.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    try:
        with hook_tokens(transformers[0], record), evaluation_mode(model):
            model(*inputs)
    finally:
        block_hook.remove()

    (call,) = capture_model(model, inputs, 1, [block.attn.dims.layer])
    before, after = seen
    return draw_correlations(block, before, after, call.call)


def list_reported_panels(attentions: Sequence[LayerAttention]) -> tuple[Panel, ...]:
    """Collect the panels that the encodings of each layer report, without repetitions."""
    kinds: dict[str, list[tuple[int, Panel]]] = {}
    for attention in attentions:
        for panel in attention.chain.panels(attention.call):
            kinds.setdefault(panel.title, []).append((attention.layer, panel))
    return tuple(panel for kind in kinds.values() for panel in _title_by_layer(kind))


def _title_by_layer(kind: Sequence[tuple[int, Panel]]) -> list[Panel]:
    """Add the layer to the titles of panels of one kind, unless they are the same in all layers."""
    first_panel = kind[0][1]
    if all(_is_same(first_panel, panel) for _, panel in kind):
        return [first_panel]
    return [replace(panel, title=f"{panel.title}, layer {layer}") for layer, panel in kind]


def _is_same(left: Any, right: Any) -> bool:
    """Compare two panels, or parts of them."""
    if isinstance(left, Panel):
        return type(left) is type(right) and all(
            _is_same(getattr(left, f.name), getattr(right, f.name)) for f in fields(left)
        )
    if isinstance(left, Tensor):
        return left.shape == right.shape and torch.allclose(left, right, equal_nan=True)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_is_same(left[key], right[key]) for key in left)
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(_is_same, left, right))
    return bool(left == right)
