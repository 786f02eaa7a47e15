"""The measures of a report: a number of each head in each layer that was looked at."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from zoo.attention import Tokens
from zoo.attention.attend import mask
from zoo.diagnostics import measures
from zoo.diagnostics.looking import Look
from zoo.diagnostics.report.contents import Measure

AXES = {1: ("",), 2: ("rows", "columns"), 3: ("time steps", "rows", "columns")}
NEAR = {"tokens": 8, "patches": 2}  # what counts as a neighbourhood


@dataclass(frozen=True)
class Pairs:
    """Queries and keys of a look, by their places. What has none is left out of `where`."""

    offsets: Tensor  # [1|B, Q, M, P]
    queries: Tensor  # bool [1|B, Q], those that have a place
    keys: Tensor  # bool [1|B, M]
    visible: Tensor  # bool [1|B, 1, Q, M]

    @classmethod
    def of(cls, look: Look) -> Pairs:
        queries, keys = look.terms.queries, look.terms.keys
        return cls(measures.offsets(queries.index, keys.index), _placed(queries), _placed(keys), mask(look.terms))

    @property
    def where(self) -> Tensor:
        """bool [1|B, 1, Q, M]"""
        return measures.both(self.queries, self.keys)


def _placed(tokens: Tokens) -> Tensor:
    return torch.ones_like(tokens.index[..., 0], dtype=torch.bool) if tokens.placed is None else tokens.placed


def measured(
    looks: Sequence[Look], content: Sequence[Look] | None, shifted: Sequence[Look] | None, unit: str
) -> tuple[Measure, ...]:
    """All measures of the layers looked at, as far as they mean something there.

    `content` is what the same layers do where all tokens are in one place, `shifted` where all have moved alike; None where
    the model cannot be asked that.
    """
    pairs = Pairs.of(looks[0])
    found = [*_spread(looks, pairs), *_reach(looks, pairs, unit), *_shares(looks, pairs, unit), *_heads(looks)]
    found += [*_scores(looks), *_parts(looks, content, shifted)]
    return tuple(replace(one, values=one.values.float().cpu()) for one in found)


def _mean(rows: Tensor) -> Tensor:
    """[B, H, Q] -> [H], without the rows that see nothing."""
    return rows.nanmean((0, 2))


def _spread(looks: Sequence[Look], pairs: Pairs) -> Iterator[Measure]:
    even = measures.entropy(pairs.visible.float()).nanmean()
    yield Measure(
        name="entropy", title="entropy", unit="nats",
        says=f"How widely a query spreads its attention: 0 where it is on one token, {even:.2f} where all that it may see "
        "have the same share.",
        values=torch.stack([_mean(measures.entropy(look.weights)) for look in looks]),
    )  # fmt: skip


def _reach(looks: Sequence[Look], pairs: Pairs, unit: str) -> Iterator[Measure]:
    def far(weights: Tensor) -> Tensor:
        """[H, 1 + P]: the distance, and that along each axis."""
        whole = measures.distance(weights, pairs.offsets, pairs.keys)[..., None]
        each = torch.cat([whole, measures.distance_by_axis(weights, pairs.offsets, pairs.keys)], dim=-1)
        return each.masked_fill(~pairs.queries[:, None, :, None], math.nan).nanmean((0, 2))

    values = torch.stack([far(look.weights) for look in looks])  # [L, H, 1 + P]
    even = far(pairs.visible.float())[0].tolist()
    axes = AXES[pairs.offsets.shape[-1]]
    told = "How far a query looks on average; a head that looks anywhere alike has"
    yield Measure(
        name="distance", title="attended distance", unit=unit, says=f"{told} {even[0]:.2f}, a local one less.",
        values=values[..., 0],
    )  # fmt: skip
    for at, axis in enumerate(axes if len(axes) > 1 else (), start=1):
        yield Measure(
            name=f"distance_{axis.split()[0]}", title=f"attended distance across {axis}", unit=axis if axis == "time steps" else unit,
            says=f"{told.replace('far', f'many {axis} away')} {even[at]:.2f}.", values=values[..., at],
        )  # fmt: skip


def _shares(looks: Sequence[Look], pairs: Pairs, unit: str) -> Iterator[Measure]:
    weights, slots = looks[0].weights, looks[0].slots

    def share(where: Tensor, name: str, title: str, says: str) -> Measure:
        even = _mean(measures.mass(pairs.visible.float(), where))[0]
        values = torch.stack([_mean(measures.mass(look.weights, where)) for look in looks])
        return Measure(
            name=name, title=title, unit="share", says=f"{says}; {even:.3f} if all had the same.", values=values
        )

    yield share(
        measures.first(weights), "first", "share on the first token",
        "What falls on the first token, where heads that need nothing are known to rest (arXiv:2309.17453)",
    )  # fmt: skip
    if not pairs.keys.all():
        yield share(
            measures.unplaced(pairs.keys), "unplaced", "share on tokens without a place",
            "What falls on class and register tokens, which stand nowhere",
        )  # fmt: skip
    yield share(
        measures.own(slots, weights.shape[-1]), "own", "share on itself", "What a query gives the token that it is of"
    )
    near = measures.near(pairs.offsets, NEAR[unit], pairs.where)
    axes = " along each axis" if pairs.offsets.shape[-1] > 1 else ""
    yield share(
        near, "near", f"share within {NEAR[unit]} {unit}",
        f"What falls on tokens at most {NEAR[unit]} {unit} away{axes}, itself among them",
    )  # fmt: skip


def _heads(looks: Sequence[Look]) -> Iterator[Measure]:
    heads, *sizes = looks[0].weights.shape[1:]
    yield Measure(
        name="effective_rank", title="effective rank", unit="ways to look",
        says=f"In how many ways queries look: 1 where all look alike, at most {min(sizes)}, each in its own.",
        values=torch.stack([measures.effective_rank(look.weights).nanmean(0) for look in looks]),
    )  # fmt: skip
    if heads > 1:
        alike = torch.stack([measures.similarity(look.weights).nanmean(0) for look in looks])  # [L, H, H]
        others = alike.masked_fill(torch.eye(heads, dtype=torch.bool, device=alike.device), math.nan)
        yield Measure(
            name="similarity", title="similarity to other heads", unit="cosine",
            says="How much a head looks where the others of its layer do: near 1 it could be spared.",
            values=others.nanmean(-1),
        )  # fmt: skip


def _scores(looks: Sequence[Look]) -> Iterator[Measure]:
    found = [look.scores for look in looks]
    known = [values for values in found if values is not None]
    if len(known) < len(found):
        return  # linear attention has none
    each = torch.stack([measures.largest(values).nan_to_num(-math.inf).amax(0) for values in known])
    yield Measure(
        name="largest", title="largest score", unit="logits", values=each,
        says="The largest score of any pair; where it grows and grows, training becomes unstable (arXiv:2302.05442).",
    )  # fmt: skip
    if len(known[0]) > 1 and all(_alike(look) for look in looks):
        yield Measure(
            name="by_position", title="scores explained by position alone", unit="share of variance",
            says=f"What is the same in all {len(known[0])} samples and so owes nothing to content: 1 where places alone "
            "decide, 0 where they decide nothing.",
            values=torch.stack([measures.explained_by_position(values) for values in known]),
        )  # fmt: skip


def _alike(look: Look) -> bool:
    """Whether a slot is the same place in all samples, where it holds any token."""
    keys = look.terms.keys
    real = torch.ones_like(keys.index[..., 0], dtype=torch.bool) if keys.document is None else keys.document >= 0
    return bool((keys.index == keys.index[:1])[real & real[:1]].all())


def _parts(looks: Sequence[Look], content: Sequence[Look] | None, shifted: Sequence[Look] | None) -> Iterator[Measure]:
    if content is not None and (pairs := _both(looks, content)):
        yield Measure(
            name="by_content", title="scores explained by content alone", unit="share of variance",
            says="How well the scores follow those of the same model with all tokens in one place: 1 where places matter to "
            "none.",
            values=torch.stack([measures.explained_by(*pair) for pair in pairs]),
        )  # fmt: skip
    if shifted is not None and (pairs := _both(looks, shifted)):
        yield Measure(
            name="departure", title="departure from relativity", unit="relative change",
            says="How much scores change when all tokens move by the same offset: 0 where only distances between tokens "
            "count.",
            values=torch.stack([measures.departure(*pair) for pair in pairs]),
        )  # fmt: skip


def _both(looks: Sequence[Look], others: Sequence[Look]) -> list[tuple[Tensor, Tensor]]:
    """Scores and other scores of each layer; none where linear attention has none."""
    return [
        (one.scores, other.scores)
        for one, other in zip(looks, others, strict=True)
        if one.scores is not None and other.scores is not None
    ]
