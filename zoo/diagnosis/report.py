"""The contents of a diagnosis: metrics of each head, profiles over offsets, position ablation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from zoo.attention.backends.reference import attention_mask
from zoo.attention.tokens import upcast
from zoo.diagnosis.intervals import estimate_mean
from zoo.diagnostics import metrics
from zoo.diagnostics.capture import LayerAttention
from zoo.diagnostics.head_metrics import HeadMetric, list_metrics, mask_special_tokens
from zoo.errors import OptionError
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
        samples: Number of samples that the values are of.
        low: Lower ends of 95 % intervals over samples [L, H]; None for measures without intervals.
        high: Their upper ends.
        layers: The mean over heads of each layer and its interval, [L, 3]: mean, low, high.
    """

    name: str
    title: str
    unit: str
    caption: str
    values: Tensor
    even: float | None = None
    samples: int = 0
    low: Tensor | None = None
    high: Tensor | None = None
    layers: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A text as `tokens`, or an image or a clip as `pictures`, uint8 [height, width, 3] each.

    Attributes:
        title: The title in the report.
        tokens: The names of the tokens.
        pictures: The pictures.
        places: Where tokens lie in a chart [N, 2], NaN for padding; None if they have no places.
        axes: The names of the axes of this chart.
    """

    title: str
    tokens: tuple[str, ...] = ()
    pictures: tuple[Tensor, ...] = ()
    places: Tensor | None = None
    axes: tuple[str, str] = ("", "")


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
class PairedChange:
    """The mean change of a metric over samples that were measured before and after.

    Attributes:
        metric: The name of the metric.
        mean: The mean change.
        low: Lower end of its interval; NaN if there are too few samples.
        high: Upper end. All intervals of a run contain their means together in 95 % of runs.
        samples: Number of samples.
        is_signed: Whether noise alone changes the metric up and down. Otherwise every change is
            one of the model.
    """

    metric: str
    mean: float
    low: float
    high: float
    samples: int
    is_signed: bool = True

    @property
    def is_visible(self) -> bool:
        """True if the change is more than noise: its interval excludes 0."""
        return self.low > 0 or self.high < 0 or not (self.is_signed or self.mean == 0)


@dataclass(frozen=True, kw_only=True)
class Control:
    """Test metrics with changed positions, or the reason why the model refuses them.

    Attributes:
        name: Unchanged, shuffled, shifted, zeroed or reversed.
        metrics: The metrics by name.
        refused: The reason of a refusal.
        change: The change of one metric from unchanged positions, sample by sample; None where the
            samples have no values of their own.
    """

    name: str
    metrics: Mapping[str, float]
    refused: str = ""
    change: PairedChange | None = None


@dataclass(frozen=True, kw_only=True)
class PositionUse:
    """The use of positions by a model, as far as changes of positions show it.

    Attributes:
        verdict: "uses", "hardly" or "not visible"; "unknown" if nothing was measured.
        control: The change of positions that the verdict rests on; empty if there is none.
        text: The verdict with its numbers, as a sentence.
    """

    verdict: Literal["uses", "hardly", "not visible", "unknown"]
    text: str
    control: str = ""


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
        class_ious: Intersection over union of each class in the test; empty for other tasks.
        position_use: Whether the controls show that the model uses positions.
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
    class_ious: Mapping[str, float] = field(default_factory=dict)
    position_use: PositionUse = PositionUse(verdict="unknown", text="not measured")


@dataclass(frozen=True, kw_only=True)
class Report:
    """The diagnoses of one or several checkpoints."""

    version: str  # version of zoo
    made: str  # time in UTC
    runs: tuple[DiagnosedRun, ...]


# Metrics that are compared with evenly spread attention.
COMPARED = ("entropy", "distance", "near", "self", "first", "unplaced")
Others = Sequence[LayerAttention] | None


MEASURED = 32
"""Samples that are measured at least, where there are as many."""


class LayerMeasures:
    """The metrics of layers, one layer after another, so that only one is in memory at a time.

    Args:
        names: The names of the metrics to compute; None: all.
    """

    def __init__(self, names: Collection[str] | None = None) -> None:
        self.names = names
        self.kinds: list[HeadMetric] = []
        self.samples = 0
        self._even: dict[str, float] = {}
        self._values: dict[str, list[Tensor]] = {}

    def add(self, attention: LayerAttention) -> None:
        """Measure the next layer."""
        if not self.kinds:
            # All layers have the metrics that the first one has.
            self.samples = len(attention.weights)
            self.kinds = [
                kind
                for kind in list_metrics(attention)
                if self.names is None or kind.name in self.names
            ]
            even = _spread_evenly(attention)
            self._even = {
                kind.name: float(kind.compute(even)[0])
                for kind in self.kinds
                if kind.name.split("_")[0] in COMPARED
            }
        for kind in self.kinds:
            # [H], or [B, H] where the spread over samples gives an interval
            values = (kind.by_sample or kind.compute)(attention).double().cpu()
            layers = self._values.setdefault(kind.name, [])
            if layers and values.shape != layers[0].shape:
                problem = f"layers have {layers[0].shape[-1]} and {values.shape[-1]} heads"
                raise OptionError("layers", f"{problem}; choose layers of one kind, as layers=[0]")
            layers.append(values)

    def list_measures(self) -> Iterator[Measure]:
        """Yield the measures of all layers."""
        for kind in self.kinds:
            found = torch.stack(self._values[kind.name])
            parts: dict[str, Tensor] = {}
            if kind.by_sample is not None:
                heads, means = estimate_mean(found), estimate_mean(found.mean(-1, keepdim=True))
                parts = {"low": heads.low.float(), "high": heads.high.float()}
                parts["layers"] = torch.cat([*means], -1).float()
                found = heads.mean
            # The weights of a softmax always sum to 1.
            if kind.name == "total" and torch.allclose(found, torch.ones_like(found), atol=1e-4):
                continue
            yield Measure(
                name=kind.name,
                title=kind.title,
                unit=kind.unit,
                caption=kind.description,
                values=found.float(),
                even=self._even.get(kind.name),
                samples=self.samples,
                **parts,
            )


def _spread_evenly(attention: LayerAttention) -> LayerAttention:
    """Return the layer with equal weights on all visible keys."""
    # Metrics use shares of a row, so the weights need no normalization.
    visible = (
        attention_mask(attention.call).expand(attention.weights.shape).to(attention.weights.dtype)
    )
    return replace(attention, weights=visible)


def compare_layers(
    attentions: Sequence[LayerAttention], content: Others, shifted: Others
) -> Iterator[Measure]:
    """Yield the measures that compare layers with the same at other positions.

    Args:
        attentions: The captured layers.
        content: The same layers with all tokens at one position; None if the model refuses it.
        shifted: The same layers with all positions shifted equally; None if the model refuses it.
    """
    count = len(attentions[0].weights)
    if pairs := _pair_scores(attentions, content):
        yield Measure(
            name="by_content",
            title="Explained without positions",
            unit="of variance",
            caption="At 1 scores are the same as with all tokens at one position: content, and the "
            "order that the mask reveals, explain all of them.",
            values=_measure_pairs(pairs, metrics.squared_correlation),
            samples=count,
        )
    if pairs := _pair_scores(attentions, shifted):
        yield Measure(
            name="departure",
            title="Change under shifts",
            unit="of scores",
            caption="Change of scores when all positions shift by half the size of the grid or "
            "text: at 0 only the offsets between tokens count.",
            values=_measure_pairs(pairs, metrics.shift_sensitivity),
            samples=count,
        )


def _pair_scores(
    attentions: Sequence[LayerAttention], others: Others
) -> list[tuple[Tensor, Tensor]]:
    """Pair the scores of each layer with those of the others, without special tokens."""
    return [
        (mask_special_tokens(one, one.scores), other.scores)
        for one, other in zip(attentions, others or (), strict=others is not None)
        if one.scores is not None and other.scores is not None
    ]


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
