"""What is measured of every layer: a number for each head, from a look at some queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from zoo.attention.backends.reference import attention_mask
from zoo.diagnostics import metrics
from zoo.diagnostics.capture import Look

NEAR = {"tokens": 8, "patches": 2}  # how far a neighbourhood reaches
SIDES = {"row": "rows", "column": "columns"}
# a step is some frames
AXES: Mapping[int, Mapping[str, str]] = {1: {}, 2: SIDES, 3: {"step": "steps in time", **SIDES}}


@dataclass(frozen=True)
class Kind:
    """A measure. `name` is its tag beneath that of the layer; `says` is a sentence: what one should see in it."""

    name: str
    title: str
    unit: str
    says: str
    of: Callable[[Look], Tensor]  # [H]; NaN where nothing can be said


def unit(look: Look) -> str:
    """What places are counted in."""
    return "tokens" if look.call.keys.index.shape[-1] == 1 else "patches"


def kinds(look: Look) -> Iterator[Kind]:
    """The measures that looks like this one have."""
    yield from _spread()
    yield from _far(unit(look), AXES[look.call.keys.index.shape[-1]])
    yield from _masses(unit(look), not bool(look.grid[1].all()))
    if look.scores is not None:
        yield from _of_scores(_comparable(look))


def named(counted: str) -> dict[str, Kind]:
    """All measures by name, where places are counted in tokens or patches."""
    every = (
        *_spread(),
        *_far(counted, AXES[3]),
        *_masses(counted, some_unplaced=True),
        *_of_scores(comparable=True),
    )
    return {kind.name: kind for kind in every}


def _spread() -> Iterator[Kind]:
    yield Kind(
        "entropy",
        "Entropy",
        "nats",
        "Low where a head looks at few keys, high where it looks at all of them alike.",
        _mean(lambda look: metrics.entropy(look.weights)),
    )
    yield Kind(
        "effective_rank",
        "Effective rank",
        "directions",
        "At 1 all queries look at the same keys; the higher, the more it matters which query looks.",
        lambda look: metrics.effective_rank(look.weights).nanmean(0),
    )
    yield Kind(
        "similarity",
        "Likeness to other heads",
        "cosine",
        "At 1 the heads of a layer look at the same keys, so that some of them could be spared.",
        _likeness,
    )
    yield Kind(
        "total",
        "Attention in all",
        "sum of weights",
        "1 for a softmax; less where a head may keep what it does not spend, as in stick-breaking.",
        _mean(_total),
    )


def _far(counted: str, axes: Mapping[str, str]) -> Iterator[Kind]:
    yield Kind(
        "distance",
        "Attended distance",
        counted,
        "How far away that lies what a query looks at: low for local heads, high for global ones.",
        _mean(_distance),
    )
    for number, (axis, steps) in enumerate(axes.items()):
        yield Kind(
            f"distance_{axis}",
            f"Attended distance across {steps}",
            steps,
            "Low here and high along another axis, a head looks along lines.",
            _mean(partial(_distance, axis=number)),
        )


def _masses(counted: str, some_unplaced: bool) -> Iterator[Kind]:
    reach = NEAR[counted]
    yield Kind(
        "near",
        f"Share within {reach} {counted}",
        "of attention",
        "The share of attention that stays in the neighbourhood of the query.",
        _mean(partial(_near, reach=reach)),
    )
    yield Kind(
        "self",
        "Share on itself",
        "of attention",
        "The share of attention that a token gives to itself.",
        _mean(
            lambda look: metrics.mass(look.weights, metrics.own(look.slots, look.weights.shape[-1]))
        ),
    )
    yield Kind(
        "first",
        "Share on the first token",
        "of attention",
        "Near 1 the first token is a sink: where heads rest that need nothing.",
        _mean(_first),
    )
    if some_unplaced:
        yield Kind(
            "unplaced",
            "Share on class and register tokens",
            "of attention",
            "The share of attention that goes to tokens without a place.",
            _mean(lambda look: metrics.mass(look.weights, metrics.unplaced(look.grid[1]))),
        )


def _of_scores(comparable: bool) -> Iterator[Kind]:
    yield Kind(
        "largest_score",
        "Largest score",
        "logit",
        "Where it grows to hundreds, the softmax is one-hot and training may become unstable.",
        _largest,
    )
    if comparable:
        yield Kind(
            "by_position",
            "Explained by position alone",
            "of variance",
            "At 1 scores are the same whatever tokens say; at 0 the two places alone tell nothing of them.",
            lambda look: metrics.explained_by_position(_scores(look)),
        )


def _mean(measure: Callable[[Look], Tensor]) -> Callable[[Look], Tensor]:
    """Over samples and queries of what gives [B, H, N]."""
    return lambda look: measure(look).nanmean((0, 2))


def _total(look: Look) -> Tensor:
    """[B, H, N], NaN for padding, which sees nothing."""
    return metrics.total(look.weights).masked_fill(~attention_mask(look.call).any(-1), float("nan"))


def _largest(look: Look) -> Tensor:
    found = metrics.largest(_scores(look)).nan_to_num(-float("inf")).amax(0)
    return found.masked_fill(found.isinf(), float("nan"))


def _scores(look: Look) -> Tensor:
    assert look.scores is not None  # asked for where there are some
    return look.scores


def _first(look: Look) -> Tensor:
    """[B, H, N], of the first token of each query's document."""
    queries, keys = look.call.queries.document, look.call.keys.document
    same = None if queries is None or keys is None else queries[:, :, None] == keys[:, None]
    return metrics.mass(look.weights, metrics.first(look.weights, same))


def _offsets(look: Look) -> Tensor:
    return metrics.offsets(look.call.queries.index, look.call.keys.index)


def _distance(look: Look, axis: int | None = None) -> Tensor:
    """[B, H, N], NaN for queries that are no piece of the text or the image."""
    rows, columns = look.grid
    if axis is None:
        found = metrics.distance(look.weights, _offsets(look), columns)
    else:
        found = metrics.distance_by_axis(look.weights, _offsets(look), columns)[..., axis]
    return found.masked_fill(~rows[:, None], float("nan"))


def _near(look: Look, reach: int) -> Tensor:
    """[B, H, N], NaN for queries that are no piece of the text or the image."""
    rows, columns = look.grid
    near = metrics.near(_offsets(look), reach, metrics.both(rows, columns))
    return metrics.mass(look.weights, near).masked_fill(~rows[:, None], float("nan"))


def _likeness(look: Look) -> Tensor:
    """Mean similarity of each head to the others, 1 for a head that is alone."""
    heads = look.weights.shape[1]
    found = metrics.similarity(look.weights).nanmean(0)  # [H, H]
    return (found.sum(-1) - found.diagonal()) / (heads - 1) if heads > 1 else found[0]


def _comparable(look: Look) -> bool:
    """Whether there are several samples, whose pairs stand at the same places."""
    index = look.call.keys.index
    seen = (
        _scores(look).isfinite().all(0).any(0).any(0)
    )  # [M] keys that some query sees in every sample
    return look.weights.shape[0] > 1 and bool((index == index[:1])[:, seen].all())
