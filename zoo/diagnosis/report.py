"""The contents of a diagnosis: metrics of each head, profiles over offsets, position ablation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from zoo.attention.backends.reference import attention_mask
from zoo.diagnostics import metrics
from zoo.diagnostics.capture import LayerAttention
from zoo.diagnostics.head_metrics import list_metrics
from zoo.reporting.panel import Curves, HeatmapGrid, Panel, label_heads


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A metric of each head in each layer, [L, H].

    `caption` is one sentence on how to read it. `even` is its value for attention spread evenly
    over all visible keys, None where that means nothing. Rows are the layers of the run's
    `attended`, or all layers.
    """

    name: str
    title: str
    unit: str
    caption: str
    values: Tensor  # [L, H]
    even: float | None = None


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A text as `tokens`, or an image or clip as `pictures` uint8 [height, width, 3]."""

    title: str
    tokens: tuple[str, ...] = ()
    pictures: tuple[Tensor, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Attended:
    """Attention of chosen queries of a few samples.

    Keys are the tokens named in `extra`, which have no position, then those of `grid`, row by row.
    """

    samples: tuple[Sample, ...]
    grid: tuple[int, ...]  # (tokens,), (rows, columns) or (frames, rows, columns)
    extra: tuple[str, ...]
    layers: tuple[int, ...]  # numbers of those shown, from 0
    queries: tuple[int, ...]  # slots among the keys
    weights: Tensor  # [S, L, H, Q, M]
    rollout: Tensor | None  # [S, Q, M], of the whole model


@dataclass(frozen=True, kw_only=True)
class Control:
    """Test metrics with changed positions, or the reason why the model refuses them."""

    name: str  # as they are, shuffled, shifted, zeroed, reversed
    metrics: Mapping[str, float]
    refused: str = ""


@dataclass(frozen=True, kw_only=True)
class DiagnosedRun:
    """The diagnosis of one checkpoint; `name` distinguishes it from others in the report."""

    name: str
    checkpoint: str
    recipe: str  # as YAML
    encoding: tuple[str, ...]
    facts: Mapping[str, str]  # {what: how much}, to be read first
    unit: Literal["tokens", "patches"]
    metrics: Mapping[str, float]  # of the test, by which the controls are judged
    training: tuple[Curves, ...]
    measures: tuple[Measure, ...]
    profiles: tuple[Panel, ...]  # weight against offset, a panel per layer
    attended: Attended | None
    encodings: tuple[Panel, ...]  # what the encodings have learned and do
    controls: tuple[Control, ...]
    extrapolation: tuple[Curves, ...]


@dataclass(frozen=True, kw_only=True)
class Report:
    """The diagnoses of one or several checkpoints."""

    version: str  # of zoo
    made: str  # UTC
    runs: tuple[DiagnosedRun, ...]


COMPARED = (
    "entropy",
    "distance",
    "near",
    "self",
    "first",
    "unplaced",
)  # with attention that is spread evenly
Others = Sequence[LayerAttention] | None


def compute_measures(
    attentions: Sequence[LayerAttention], content: Others, shifted: Others
) -> tuple[Measure, ...]:
    """Compute all metrics of the captured layers that mean something there.

    Args:
        attentions: The captured layers.
        content: The same layers with all tokens at one position; None if the model refuses that.
        shifted: The same layers with all positions shifted alike; None if the model refuses that.
    """
    return (*_measure_layers(attentions), *_compare_layers(attentions, content, shifted))


def _measure_layers(attentions: Sequence[LayerAttention]) -> Iterator[Measure]:
    even = _spread_evenly(attentions[0])
    for kind in list_metrics(attentions[0]):
        values = torch.stack([kind.compute(attention) for attention in attentions])
        if kind.name == "total" and torch.allclose(values, torch.ones_like(values), atol=1e-4):
            continue  # as of every softmax
        compared = kind.name.split("_")[0] in COMPARED
        yield Measure(
            name=kind.name,
            title=kind.title,
            unit=kind.unit,
            caption=kind.description,
            values=values.float().cpu(),
            even=float(kind.compute(even)[0]) if compared else None,
        )


def _spread_evenly(attention: LayerAttention) -> LayerAttention:
    """Return the layer with equal weights on all visible keys."""
    visible = (
        attention_mask(attention.call).expand(attention.weights.shape).to(attention.weights.dtype)
    )
    return replace(attention, weights=visible)


def _compare_layers(
    attentions: Sequence[LayerAttention], content: Others, shifted: Others
) -> Iterator[Measure]:
    if pairs := _pair_scores(attentions, content):
        yield Measure(
            name="by_content",
            title="Explained without positions",
            unit="of variance",
            caption="At 1 scores are what they would be with all tokens at one position: content, "
            "and order as far as the mask shows it, explain all of them.",
            values=_measure_pairs(pairs, metrics.squared_correlation),
        )
    if pairs := _pair_scores(attentions, shifted):
        yield Measure(
            name="departure",
            title="Change under shifts",
            unit="of scores",
            caption="How much scores change when all positions shift alike, by half a grid or half "
            "a text: at 0 only the offsets between tokens count.",
            values=_measure_pairs(pairs, metrics.shift_sensitivity),
        )


def _pair_scores(
    attentions: Sequence[LayerAttention], others: Others
) -> list[tuple[Tensor, Tensor]]:
    """Pair the scores of each layer with the others', for pairs that both have a position."""
    return [
        (_mask_special_tokens(one, one.scores), other.scores)
        for one, other in zip(attentions, others or (), strict=others is not None)
        if one.scores is not None and other.scores is not None
    ]


def _mask_special_tokens(attention: LayerAttention, scores: Tensor) -> Tensor:
    """Mask scores of tokens without a position: no change of positions can affect them."""
    return scores.masked_fill(~metrics.positioned_pairs(*attention.grid), -torch.inf)


def _measure_pairs(
    pairs: Sequence[tuple[Tensor, Tensor]], measure: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    return torch.stack([measure(*pair) for pair in pairs]).float().cpu()


FARTHEST = 256  # tokens or patches to either side that are drawn


def draw_profiles(attentions: Sequence[LayerAttention]) -> tuple[Panel, ...]:
    """Draw mean weight against offset for each layer; of clips in time and in space."""
    return tuple(
        panel
        for attention in attentions
        for panel in _draw_profile(attention, f"layer {attention.layer}")
    )


def _draw_profile(attention: LayerAttention, title: str) -> Iterator[Panel]:
    axes = attention.call.keys.index.shape[-1]
    if axes == 1:
        yield _draw_offset_curves(
            attention, slice(None), title, "tokens that the key stands before the query"
        )
    elif axes == 2:
        yield _draw_offset_map(attention, slice(None), title)
    else:
        yield _draw_offset_curves(
            attention,
            slice(0, 1),
            f"{title}, in time",
            "steps in time that the key stands before the query",
        )
        yield _draw_offset_map(attention, slice(1, None), f"{title}, in space")


def _compute_profile(attention: LayerAttention, axes: slice) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return offsets along some axes, query less key, and mean weights [H, ...]."""
    queries, keys = attention.call.queries, attention.call.keys
    offsets = metrics.offsets(queries.index, keys.index)[..., axes]
    near = (offsets.abs() <= FARTHEST).all(-1)[:, None]
    where = metrics.positioned_pairs(*attention.grid) & near
    x_values, values = metrics.offset_profile(
        attention.weights, offsets, attention_mask(attention.call), where
    )
    return tuple(one.float().cpu() for one in x_values), values.float().cpu()


def _draw_offset_curves(attention: LayerAttention, axes: slice, title: str, x: str) -> Curves:
    (x_values,), values = _compute_profile(attention, axes)
    met = values.isfinite().any(0)
    return Curves(
        title=title,
        x=x,
        y="mean weight",
        x_values=x_values[met],
        lines=label_heads(values[:, met]),
        caption="A peak at 0 is attention to oneself, one beside it to a neighbour; a flat line "
        "ignores distance.",
    )


def _draw_offset_map(attention: LayerAttention, axes: slice, title: str) -> HeatmapGrid:
    (rows, columns), values = _compute_profile(attention, axes)
    turned = torch.flip(values, (1, 2))  # a key further right has a smaller offset
    return HeatmapGrid(
        title=title,
        x="patches to the right of the query",
        y="patches below the query",
        values=turned,
        labels=tuple(label_heads(turned)),
        unit="mean weight",
        mark=(0, 0),
        corner=(-(len(rows) // 2), -(len(columns) // 2)),
        caption="The query is at the mark, each cell is a key at that offset: a strong middle is a "
        "local head.",
    )


AS_THEY_ARE = "as they are"
SAME = 0.00005  # a change that is smaller says nothing


def describe_ablation(controls: Sequence[Control], metric: str, causal: bool) -> str:
    """Describe in a sentence what happens to a metric when positions change."""
    own, *others = controls
    evaluated = [control for control in others if not control.refused]
    if not evaluated:
        return "not measured" if not others else "unknown: the model refuses every change"
    if all(control.metrics == own.metrics for control in evaluated):
        return f"none: no metric changes at all when positions do. {_explain_no_change(causal)}"
    before = own.metrics[metric]
    lost = [control.name for control in evaluated if not math.isfinite(control.metrics[metric])]
    if lost or not math.isfinite(before):
        return f"{metric} is not finite with positions {', '.join(lost or [own.name])}"
    most = max(evaluated, key=lambda control: abs(control.metrics[metric] - before))
    by = abs(most.metrics[metric] - before)
    if by < SAME:
        change = "though other metrics change" if by == 0 else f"to within {SAME:.5f}"
        return f"{metric} stays at {before:.4f} wherever tokens are, {change}"
    after = most.metrics[metric]
    return (
        f"{metric} goes from {before:.4f} to {after:.4f} with positions {most.name}, "
        "the largest change"
    )


def _explain_no_change(causal: bool) -> str:
    if causal:
        return (
            "Its encoding reads none. What the model knows of order comes from sums along the "
            "text or from the causal mask alone, and this ablation cannot tell how much that is"
        )
    return (
        "Its encoding reads none, or the model has learned to do without: "
        "it treats its tokens as a set"
    )
