"""The metrics of attention heads that are logged in training and shown in reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from zoo.attention.backends.reference import attention_mask
from zoo.diagnostics import metrics
from zoo.diagnostics.capture import LayerAttention

NEAR = {"tokens": 8, "patches": 2}  # largest offset in a neighbourhood
SIDES = {"row": "rows", "column": "columns"}
# A step in time is a tubelet, which may be several frames.
AXES: Mapping[int, Mapping[str, str]] = {1: {}, 2: SIDES, 3: {"step": "steps in time", **SIDES}}


@dataclass(frozen=True)
class HeadMetric:
    """A metric of each head.

    Attributes:
        name: The tag below that of the layer.
        title: The title in reports.
        unit: The unit of the values.
        description: One sentence on how to read it.
        compute: Returns the values [H]; NaN for heads without one.
        by_sample: Returns values [B, H] whose mean over samples is `compute`, and whose spread
            tells how precise it is; None if the metric has no interval.
    """

    name: str
    title: str
    unit: str
    description: str
    compute: Callable[[LayerAttention], Tensor]
    by_sample: Callable[[LayerAttention], Tensor] | None = None


def position_unit(attention: LayerAttention) -> str:
    """Return the unit of positions: tokens or patches; for points, units of their coordinates."""
    if attention.chain.dims.points:
        return "units"
    return "patches" if _list_axes(attention) else "tokens"


def _list_axes(attention: LayerAttention) -> Mapping[str, str]:
    """Return the axes of a grid; those of texts and points have no name."""
    dims = attention.chain.dims
    return {} if dims.points else AXES[dims.axes]


def list_metrics(attention: LayerAttention) -> Iterator[HeadMetric]:
    """Yield the metrics that apply to a layer."""
    yield from _list_spread_metrics()
    yield from _list_distance_metrics(position_unit(attention), _list_axes(attention))
    yield from _list_share_metrics(position_unit(attention), not bool(attention.grid[1].all()))
    if attention.scores is not None:
        yield from _list_score_metrics(is_comparable(attention))


def metrics_by_name(counted: str) -> dict[str, HeadMetric]:
    """Return all metrics by name, for positions in tokens or patches."""
    kinds = (
        *_list_spread_metrics(),
        *_list_distance_metrics(counted, AXES[3]),
        *_list_share_metrics(counted, some_unplaced=True),
        *_list_score_metrics(comparable=True),
    )
    return {kind.name: kind for kind in kinds}


def _list_spread_metrics() -> Iterator[HeadMetric]:
    yield HeadMetric(
        "entropy",
        "Entropy",
        "nats",
        "Low for a head that attends to few keys, high for one that attends evenly to all.",
        _average(lambda attention: metrics.entropy(attention.weights)),
    )
    yield HeadMetric(
        "effective_rank",
        "Effective rank",
        "directions",
        "At 1 all queries attend to the same keys; the higher it is, the more queries differ.",
        lambda attention: metrics.effective_rank(attention.weights).nanmean(0),
    )
    yield HeadMetric(
        "similarity",
        "Similarity to other heads",
        "cosine",
        "At 1 the heads of a layer attend to the same keys, so some of them are redundant.",
        _head_similarity,
    )
    yield HeadMetric(
        "total",
        "Total attention",
        "sum of weights",
        "1 for a softmax; less if a head may leave attention unused, by stick-breaking or a sink.",
        _average(_weight_sum),
    )


def _list_distance_metrics(counted: str, axes: Mapping[str, str]) -> Iterator[HeadMetric]:
    yield HeadMetric(
        "distance",
        "Attended distance",
        counted,
        "Mean distance of what a query attends to: low for local heads, high for global ones.",
        _average(_distance),
    )
    for number, (axis, steps) in enumerate(axes.items()):
        yield HeadMetric(
            f"distance_{axis}",
            f"Attended distance across {steps}",
            steps,
            "A head that is low here and high along another axis attends along lines.",
            _average(partial(_distance, axis=number)),
        )


def _list_share_metrics(counted: str, some_unplaced: bool) -> Iterator[HeadMetric]:
    # coordinates have scales of their own, so that no distance is near for all data
    if reach := NEAR.get(counted):
        yield HeadMetric(
            "near",
            f"Share within {reach} {counted}",
            "of attention",
            "Share of attention in the neighbourhood of the query.",
            _average(partial(_neighbourhood_share, reach=reach)),
        )
    yield HeadMetric(
        "self",
        "Share on itself",
        "of attention",
        "Share of attention of a token to itself.",
        _average(
            lambda attention: metrics.share_at(
                attention.weights,
                metrics.diagonal(attention.query_index, attention.weights.shape[-1]),
            )
        ),
    )
    yield HeadMetric(
        "first",
        "Share on the first token",
        "of attention",
        "Near 1 the first token is an attention sink, to which idle heads attend.",
        _average(_first_token_share),
    )
    if some_unplaced:
        yield HeadMetric(
            "unplaced",
            "Share on class and register tokens",
            "of attention",
            "Share of attention to tokens without a position.",
            _average(
                lambda attention: metrics.share_at(
                    attention.weights, metrics.special_tokens(attention.grid[1])
                )
            ),
        )


def _list_score_metrics(comparable: bool) -> Iterator[HeadMetric]:
    yield HeadMetric(
        "largest_score",
        "Largest score",
        "logit",
        "Mean over samples of the largest score of the measured queries: it can be compared "
        "between numbers of samples, but not of queries. If it grows to hundreds, the softmax is "
        "one-hot and training may become unstable.",
        lambda attention: metrics.max_score(_get_scores(attention)).nanmean(0),
    )
    if comparable:
        yield HeadMetric(
            "by_position",
            "Explained by position",
            "of variance",
            "At 1 scores do not depend on content; at 0 the two positions explain nothing, and "
            "estimates scatter around it.",
            lambda attention: _explain_by_position(attention).mean(0),
            _explain_by_position,
        )


def _average(measure: Callable[[LayerAttention], Tensor]) -> Callable[[LayerAttention], Tensor]:
    """Average a metric [B, H, N] over samples and queries."""
    return lambda attention: measure(attention).nanmean((0, 2))


def _weight_sum(attention: LayerAttention) -> Tensor:
    """Sum the weights, [B, H, N]; NaN for queries without visible keys, such as padding."""
    return metrics.weight_sum(attention.weights).masked_fill(
        ~attention_mask(attention.call).any(-1), float("nan")
    )


def _explain_by_position(attention: LayerAttention) -> Tensor:
    """Return what positions explain of scores, [B, H], over pairs that both have a position."""
    return metrics.position_r2_by_sample(mask_special_tokens(attention, _get_scores(attention)))


def mask_special_tokens(attention: LayerAttention, scores: Tensor) -> Tensor:
    """Return scores [B, H, Q, M] that are -inf for pairs with a token without a position."""
    return scores.masked_fill(~metrics.positioned_pairs(*attention.grid), -torch.inf)


def _get_scores(attention: LayerAttention) -> Tensor:
    assert attention.scores is not None  # such metrics are listed only if there are scores
    return attention.scores


def _first_token_share(attention: LayerAttention) -> Tensor:
    """Return the share of the first token of each query's document, [B, H, N]."""
    same, document = None, attention.document
    if document is not None:
        same = document[:, attention.query_index, None] == document[:, None]
    return metrics.share_at(attention.weights, metrics.first_keys(attention.weights, same))


def _offsets(attention: LayerAttention) -> Tensor:
    return metrics.offsets(attention.call.queries.index, attention.call.keys.index)


def _distance(attention: LayerAttention, axis: int | None = None) -> Tensor:
    """Return the distance [B, H, N]; NaN for queries that do not belong to the text or image."""
    rows, columns = attention.grid
    if axis is None:
        means = metrics.distance(attention.weights, _offsets(attention), columns)
    else:
        means = metrics.distance_by_axis(attention.weights, _offsets(attention), columns)[..., axis]
    return means.masked_fill(~rows[:, None], float("nan"))


def _neighbourhood_share(attention: LayerAttention, reach: int) -> Tensor:
    """Return the share near the query [B, H, N]; NaN for special tokens."""
    rows, columns = attention.grid
    near = metrics.neighbourhood(
        _offsets(attention), reach, metrics.positioned_pairs(rows, columns)
    )
    return metrics.share_at(attention.weights, near).masked_fill(~rows[:, None], float("nan"))


def _head_similarity(attention: LayerAttention) -> Tensor:
    """Return the mean similarity of each head to the others; 1 for a single head."""
    heads = attention.weights.shape[1]
    # All queries count equally, also where samples have different numbers of them.
    queries = attention.weights.transpose(0, 1).flatten(1, 2)[None]  # [1, H, B Q, M]
    pairs = metrics.head_similarity(queries)[0]  # [H, H]
    return (pairs.sum(-1) - pairs.diagonal()) / (heads - 1) if heads > 1 else pairs[0]


def is_comparable(attention: LayerAttention) -> bool:
    """Return whether there are several samples whose pairs have the same positions."""
    index = attention.call.keys.index
    # Keys [M] that some query sees in every sample; the positions of others do not matter.
    seen = _get_scores(attention).isfinite().all(0).any(0).any(0)
    return attention.weights.shape[0] > 1 and bool((index == index[:1])[:, seen].all())
