"""The contents of a diagnosis: metrics of each head, profiles over offsets, position ablation."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from zoo.attention.backends.reference import attention_mask
from zoo.attention.tokens import upcast
from zoo.diagnostics import metrics
from zoo.diagnostics.capture import LayerAttention
from zoo.diagnostics.head_metrics import list_metrics
from zoo.reporting.panel import Curves, HeatmapGrid, Panel, label_heads


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A metric of each head in each layer.

    Attributes:
        name: Name of the metric.
        title: Title in the report.
        unit: Unit of the values.
        caption: One sentence on how to read it.
        values: Values [L, H]. Rows are the layers of the run's `attended`, or all layers.
        even: Value for attention spread evenly over all visible keys; None if it is not meaningful.
    """

    name: str
    title: str
    unit: str
    caption: str
    values: Tensor
    even: float | None = None


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A text as `tokens`, or an image or a clip as `pictures`, uint8 [height, width, 3] each."""

    title: str
    tokens: tuple[str, ...] = ()
    pictures: tuple[Tensor, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SegmentedImage:
    """An image with its mask and the classes that a model predicts.

    Attributes:
        title: The title in the report.
        picture: The image, uint8 [height, width, 3].
        mask: Class numbers [height, width]; -100 for pixels without a class.
        predicted: The predicted classes [height, width].
    """

    title: str
    picture: Tensor
    mask: Tensor
    predicted: Tensor


@dataclass(frozen=True, kw_only=True)
class Attended:
    """Attention of chosen queries of a few samples.

    Attributes:
        samples: The samples.
        grid: Size of the grid: (tokens,), (rows, columns) or (frames, rows, columns).
        extra: Names of the tokens without a position. They are the first keys, followed by those
            of the grid, row by row.
        layers: Indices of the layers, from 0.
        queries: Indices of the queries among the keys.
        weights: Attention weights [S, L, H, Q, M].
        rollout: Attention rollout of all layers [S, Q, M], or None.
    """

    samples: tuple[Sample, ...]
    grid: tuple[int, ...]
    extra: tuple[str, ...]
    layers: tuple[int, ...]
    queries: tuple[int, ...]
    weights: Tensor
    rollout: Tensor | None


@dataclass(frozen=True, kw_only=True)
class Control:
    """Test metrics with changed positions, or the reason why the model refuses them.

    Attributes:
        name: Unchanged, shuffled, shifted, zeroed or reversed.
        metrics: The metrics by name.
        refused: The reason of a refusal.
    """

    name: str
    metrics: Mapping[str, float]
    refused: str = ""


@dataclass(frozen=True, kw_only=True)
class DiagnosedRun:
    """The diagnosis of one checkpoint.

    Attributes:
        name: A name that is unique in the report.
        checkpoint: The path of the checkpoint.
        recipe: The recipe as YAML.
        encoding: The names of the encodings.
        facts: Main facts, {name: value}.
        unit: The unit of positions.
        metrics: Test metrics.
        training: Curves of training.
        measures: Metrics of attention heads.
        profiles: Mean weight against offset, a panel per layer.
        attended: Attention of some samples, or None.
        encodings: Panels about the encodings.
        controls: Test metrics with changed positions.
        extrapolation: Test metrics at other sizes.
        layer_types: The type of each layer of the model; empty if all are alike.
        segmented: Images with predicted masks; empty for other tasks.
        classes: Names of the classes of these masks.
    """

    name: str
    checkpoint: str
    recipe: str
    encoding: tuple[str, ...]
    facts: Mapping[str, str]
    unit: Literal["tokens", "patches", "points"]
    metrics: Mapping[str, float]
    training: tuple[Curves, ...]
    measures: tuple[Measure, ...]
    profiles: tuple[Panel, ...]
    attended: Attended | None
    encodings: tuple[Panel, ...]
    controls: tuple[Control, ...]
    extrapolation: tuple[Curves, ...]
    layer_types: tuple[str, ...] = ()
    segmented: tuple[SegmentedImage, ...] = ()
    classes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    """The diagnoses of one or several checkpoints."""

    version: str  # version of zoo
    made: str  # time in UTC
    runs: tuple[DiagnosedRun, ...]


# Metrics that are compared with evenly spread attention.
COMPARED = ("entropy", "distance", "near", "self", "first", "unplaced")
Others = Sequence[LayerAttention] | None


def compute_measures(
    attentions: Sequence[LayerAttention], content: Others, shifted: Others
) -> tuple[Measure, ...]:
    """Compute all metrics that are meaningful for the captured layers.

    Args:
        attentions: The captured layers.
        content: The same layers with all tokens at one position; None if the model refuses it.
        shifted: The same layers with all positions shifted equally; None if the model refuses it.
    """
    return (*_measure_layers(attentions), *_compare_layers(attentions, content, shifted))


def _measure_layers(attentions: Sequence[LayerAttention]) -> Iterator[Measure]:
    even = _spread_evenly(attentions[0])
    for kind in list_metrics(attentions[0]):
        values = torch.stack([kind.compute(attention) for attention in attentions])
        # The weights of a softmax always sum to 1.
        if kind.name == "total" and torch.allclose(values, torch.ones_like(values), atol=1e-4):
            continue
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
    # Metrics use shares of a row, so the weights need no normalization.
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
            caption="At 1 scores are the same as with all tokens at one position: content, and the "
            "order that the mask reveals, explain all of them.",
            values=_measure_pairs(pairs, metrics.squared_correlation),
        )
    if pairs := _pair_scores(attentions, shifted):
        yield Measure(
            name="departure",
            title="Change under shifts",
            unit="of scores",
            caption="Change of scores when all positions shift by half the size of the grid or "
            "text: at 0 only the offsets between tokens count.",
            values=_measure_pairs(pairs, metrics.shift_sensitivity),
        )


def _pair_scores(
    attentions: Sequence[LayerAttention], others: Others
) -> list[tuple[Tensor, Tensor]]:
    """Pair the scores of each layer with those of the others, without special tokens."""
    return [
        (_mask_special_tokens(one, one.scores), other.scores)
        for one, other in zip(attentions, others or (), strict=others is not None)
        if one.scores is not None and other.scores is not None
    ]


def _mask_special_tokens(attention: LayerAttention, scores: Tensor) -> Tensor:
    """Mask scores of tokens without a position, which no change of positions affects."""
    return scores.masked_fill(~metrics.positioned_pairs(*attention.grid), -torch.inf)


def _measure_pairs(
    pairs: Sequence[tuple[Tensor, Tensor]], measure: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    return torch.stack([measure(*pair) for pair in pairs]).float().cpu()


FARTHEST = 256  # largest offset that is drawn, in tokens or patches
INTERVALS = 20  # on each side of offset 0, for points at real coordinates


def draw_profiles(attentions: Sequence[LayerAttention]) -> tuple[Panel, ...]:
    """Draw the mean weight against the offset for each layer; for clips in time and in space."""
    return tuple(
        panel
        for attention in attentions
        for panel in _draw_profile(attention, f"layer {attention.layer}")
    )


def _draw_profile(attention: LayerAttention, title: str) -> Iterator[Panel]:
    # Curves for one axis, maps for two; clips have both.
    axes = attention.call.keys.index.shape[-1]
    if attention.chain.dims.points:
        yield _draw_distance_curves(attention, title)
    elif axes == 1:
        yield _draw_offset_curves(
            attention, slice(None), title, "query position - key position, in tokens"
        )
    elif axes == 2:
        yield _draw_offset_map(attention, slice(None), title)
    else:
        yield _draw_offset_curves(
            attention,
            slice(0, 1),
            f"{title}, in time",
            "query position - key position, in time steps",
        )
        yield _draw_offset_map(attention, slice(1, None), f"{title}, in space")


def _compute_profile(attention: LayerAttention, axes: slice) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return offsets along some axes, query - key, and mean weights [H, ...]."""
    # Far pairs would make the profile of a long text very wide.
    queries, keys = attention.call.queries, attention.call.keys
    offsets = metrics.offsets(queries.index, keys.index)[..., axes]
    near = (offsets.abs() <= FARTHEST).all(-1)[:, None]
    where = metrics.positioned_pairs(*attention.grid) & near
    x_values, values = metrics.offset_profile(
        attention.weights, offsets, attention_mask(attention.call), where
    )
    return tuple(one.float().cpu() for one in x_values), values.float().cpu()


def _draw_distance_curves(attention: LayerAttention, title: str) -> Curves:
    """Draw the mean weight against offsets of points or, with several axes, distances."""
    queries, keys = attention.call.queries, attention.call.keys
    offsets = upcast(metrics.offsets(queries.index, keys.index))
    x = "query coordinate - key coordinate, in units of the data"
    if offsets.shape[-1] > 1:
        offsets, x = offsets.norm(dim=-1, keepdim=True), "distance, in units of the data"
    visible, pairs = attention_mask(attention.call), metrics.positioned_pairs(*attention.grid)
    counted, lengths = torch.broadcast_tensors((visible & pairs)[:, 0], offsets[..., 0].abs())
    # equal intervals of offsets take the place of whole tokens
    width = float(lengths.where(counted, 0).amax()) / INTERVALS or 1.0
    (numbers,), values = metrics.offset_profile(
        attention.weights, (offsets / width).round(), visible, pairs
    )
    met = values.isfinite().any(0).cpu()
    return Curves(
        title=title,
        x=x,
        y="mean weight",
        x_values=width * numbers.float().cpu()[met],
        lines=label_heads(values.float().cpu()[:, met]),
        caption="Means over the pairs of points in equal intervals; a flat line ignores distance.",
    )


def _draw_offset_curves(attention: LayerAttention, axes: slice, title: str, x: str) -> Curves:
    (x_values,), values = _compute_profile(attention, axes)
    met = values.isfinite().any(0)
    return Curves(
        title=title,
        x=x,
        y="mean weight",
        x_values=x_values[met],
        lines=label_heads(values[:, met]),
        caption="A peak at 0 is attention of a token to itself, a peak next to it attention to a "
        "neighbour; a flat line ignores distance.",
    )


def _draw_offset_map(attention: LayerAttention, axes: slice, title: str) -> HeatmapGrid:
    (rows, columns), values = _compute_profile(attention, axes)
    # Offsets are query - key; on the map, keys are where they are relative to the query.
    turned = torch.flip(values, (1, 2))
    return HeatmapGrid(
        title=title,
        x="patches to the right of the query",
        y="patches below the query",
        values=turned,
        labels=tuple(label_heads(turned)),
        unit="mean weight",
        mark=(0, 0),
        corner=(-(len(rows) // 2), -(len(columns) // 2)),
        caption="The query is at the mark, and each cell is a key at that offset: a local head is "
        "strong in the middle.",
    )


UNCHANGED = "unchanged"
SAME = 0.00005  # smaller changes are not meaningful


def describe_ablation(controls: Sequence[Control], metric: str, causal: bool) -> str:
    """Return a sentence about the change of a metric when positions change."""
    # From the clearest case to the weakest: not measured, no change, not finite, small, large.
    own, *others = controls
    evaluated = [control for control in others if not control.refused]
    if not evaluated:
        return "not measured" if not others else "unknown: the model refuses every change"
    if all(control.metrics == own.metrics for control in evaluated):
        return f"none: no metric changes when positions do. {_explain_no_change(causal)}"
    before = own.metrics[metric]
    lost = [control.name for control in evaluated if not math.isfinite(control.metrics[metric])]
    if lost or not math.isfinite(before):
        return f"{metric} is not finite with positions {', '.join(lost or [own.name])}"
    most = max(evaluated, key=lambda control: abs(control.metrics[metric] - before))
    by = abs(most.metrics[metric] - before)
    if by < SAME:
        change = "though other metrics change" if by == 0 else f"to within {SAME:.5f}"
        return f"{metric} stays at {before:.4f} for all positions, {change}"
    after = most.metrics[metric]
    return (
        f"{metric} goes from {before:.4f} to {after:.4f} with positions {most.name}, "
        "the largest change"
    )


def _explain_no_change(causal: bool) -> str:
    if causal:
        return (
            "Its encoding does not read positions. The model can know the order only from sums "
            "along the text or from the causal mask, which this ablation cannot measure"
        )
    return (
        "Its encoding does not read positions, or the model has learned to ignore them: "
        "it treats its tokens as a set"
    )
