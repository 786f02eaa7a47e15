"""What a trained encoding does: measured as a portrait measures one that is new, and beside the words of a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from zoo.attention import AttentionCall, Tokens, repeat_kv_heads, upcast
from zoo.attention.chain import Chain
from zoo.diagnostics import metrics
from zoo.diagnostics.capture import LayerAttention, capture_attention, evaluation_mode
from zoo.diagnostics.portrait.portrait import collect_panels
from zoo.diagnostics.portrait.probe import EncodingProbe
from zoo.models.transformer import Block, find_transformers, hook_tokens
from zoo.reporting.panel import HeatmapGrid, Panel, Points

MOST = {1: (128,), 2: (15, 15), 3: (1, 15, 15)}  # tokens by the number of axes: of clips one frame
PARTS = (
    "Parts of the first layer's scores, the mean over samples and heads: position to position tells which places attend to"
    " which, whatever stands there; where the two parts of word and position are faint, they have little to do with each other."
)


@torch.no_grad()
def measure_encoding(chain: Chain, sizes: Sequence[int], causal: bool) -> tuple[Panel, ...]:
    """What the encodings of one layer do, their parameters as they are, to a text or a grid of `sizes`, or to its beginning.

    Measured in float64 on a copy. What is added to the input is added before the first layer, whichever one is asked.
    """
    copy = deepcopy(chain).to("cpu", torch.float64).eval().requires_grad_(False)
    shown = tuple(map(min, MOST[len(sizes)], sizes))
    return tuple(collect_panels(EncodingProbe(copy, shown, causal), masked=False))


@torch.no_grad()
def draw_correlations(
    block: Block, before: Tokens, after: Tokens, call: AttentionCall
) -> tuple[Panel, ...]:
    """The four correlations of word and position in the first block of a model (TUPE, arXiv:2006.15595, figure 2).

    `before` and `after` are the tokens as `embed` found and left them, `terms` is a call of the block's attention. Nothing
    where nothing was added to the tokens, or where scores are no sum of such parts.
    """
    if not (after.x != before.x).any() or not _is_plain_projection(block, call):
        return ()
    parts = decompose_scores(block, before, after)
    values = torch.stack([part.mean(0).cpu() for part in parts.values()])
    return (
        HeatmapGrid(
            title="Correlations of word and position",
            x="key's place",
            y="query's place",
            says=PARTS,
            values=values,
            labels=tuple(parts),
            unit="part of the score",
        ),
    )


def _is_plain_projection(block: Block, call: AttentionCall) -> bool:
    """Whether queries and keys are projections of the tokens, not normed, mixed, turned or scaled by anything."""
    layer = block.attn
    if layer.token_shift is not None or not isinstance(layer.q_norm, nn.Identity):
        return False
    unturned = call.q.shape == call.raw_query.shape and torch.equal(call.q, call.raw_query)
    return unturned and call.scale == layer.dims.head_dim**-0.5


def decompose_scores(block: Block, before: Tokens, after: Tokens) -> dict[str, Tensor]:
    """Each part [H, N, N] by name, of tokens that have a place; their sum is the scores but for what biases add to them.

    What `embed` added is the position, what it found the word; both go through the norm at the scale of their sum.
    """
    layer, dims = block.attn, block.attn.dims
    placed = slice(None) if after.has_position is None else after.has_position[0]
    word, position = (one[:, placed] for one in (before.x, after.x - before.x))
    through = _linearize_norm(None if block.post else block.norm1, after.x[:, placed])
    query, key = (
        one.weight.unflatten(0, (-1, dims.head_dim)) for one in (layer.q_proj, layer.k_proj)
    )  # [H, K, D], [G, K, D]
    return metrics.word_position_correlations(
        through(word), through(position), query, repeat_kv_heads(key[None], dims.heads)[0]
    )


def _linearize_norm(norm: nn.Module | None, whole: Tensor) -> Callable[[Tensor], Tensor]:
    """What a norm multiplies parts of [B, N, D] by, where the whole has the size that it has; its own bias is left out."""
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


def encodings(
    model: nn.Module, inputs: Sequence[Any], looks: Sequence[LayerAttention], grid: Sequence[int]
) -> tuple[Panel, ...]:
    """What encodings do, then what they found, then the correlations of words and positions where they are added.

    Turns that an encoding tells of itself are not measured from outside once more.
    """
    told = findings(looks)
    turned = {panel.y for panel in told if isinstance(panel, Points)}
    doings = [
        panel
        for panel in _doings(looks, grid)
        if not (isinstance(panel, Points) and panel.y in turned)
    ]
    return (*doings, *told, *_correlations(model, inputs, looks))


def _doings(looks: Sequence[LayerAttention], grid: Sequence[int]) -> Iterator[Panel]:
    """Of the first layer that was looked at; the others' are the same only where all layers share one encoding."""
    first = looks[0]
    for panel in measure_encoding(first.chain, grid, first.call.causal):
        yield (
            panel
            if first.chain.shared
            else replace(panel, title=f"{panel.title}, layer {first.layer}")
        )


def _correlations(
    model: nn.Module, inputs: Sequence[Any], looks: Sequence[LayerAttention]
) -> tuple[Panel, ...]:
    transformers = find_transformers(model)
    # linear attention multiplies features of words and positions
    if not transformers or looks[0].scores is None:
        return ()
    first = transformers[0].blocks[0]
    assert isinstance(first, Block)

    seen: list[Tokens] = []

    def record(tokens: Tokens) -> Tokens:
        seen.append(tokens)
        return tokens

    block_hook = first.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    try:
        with hook_tokens(transformers[0], record), evaluation_mode(model):
            model(*inputs)
    finally:
        block_hook.remove()

    (call,) = capture_attention(model, inputs, 1, [first.attn.dims.layer])
    before, after = seen
    return draw_correlations(first, before, after, call.call)


def findings(looks: Sequence[LayerAttention]) -> tuple[Panel, ...]:
    """The findings of each layer's encodings, those that are the same in all layers once; kinds of panels together."""
    kinds: dict[str, list[tuple[int, Panel]]] = {}
    for one in looks:
        for panel in one.chain.panels(one.call):
            kinds.setdefault(panel.title, []).append((one.layer, panel))
    return tuple(panel for kind in kinds.values() for panel in _told(kind))


def _told(kind: Sequence[tuple[int, Panel]]) -> list[Panel]:
    """Panels of one kind, each with its layer unless one stands for all."""
    first = kind[0][1]
    if all(_is_same(first, panel) for _, panel in kind):
        return [first]
    return [replace(panel, title=f"{panel.title}, layer {layer}") for layer, panel in kind]


def _is_same(one: Any, other: Any) -> bool:
    """Whether two panels, or parts of them, are equal."""
    if isinstance(one, Panel):
        return type(one) is type(other) and all(
            _is_same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one)
        )
    if isinstance(one, Tensor):
        return one.shape == other.shape and torch.allclose(one, other, equal_nan=True)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same(one[key], other[key]) for key in one)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_is_same, one, other))
    return bool(one == other)
