"""Fewer samples and queries than were measured, where all would make the page too large."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod

import torch

from zoo.diagnostics.report import Attended, Report

Place = tuple[int, ...]

ROOM = 1_600_000  # bytes of weights in the page, of all runs together
TOKENS, MOST = 40_000, 32  # of samples in the page, of all runs together, and samples of each
FEWEST = 4  # queries that a sample is worth showing with


def thinned(report: Report) -> Report:
    """The report with as many samples and queries as there is room for."""
    several = max(sum(run.attended is not None for run in report.runs), 1)
    runs = (
        run
        if run.attended is None
        else replace(run, attended=_thin(_first(run.attended, several), ROOM // several))
        for run in report.runs
    )
    return replace(report, runs=tuple(runs))


def _first(attended: Attended, several: int) -> Attended:
    """The first samples, so few that there is room for some queries of each, at least one; of several runs."""
    samples, layers, heads, queries, keys = attended.weights.shape
    weights = layers * heads * min(queries, FEWEST + len(attended.extra)) * keys
    most = max(1, min(samples, MOST, ROOM // (several * weights), TOKENS // (several * keys)))
    return replace(
        attended,
        samples=attended.samples[:most],
        weights=attended.weights[:most],
        rollout=None if attended.rollout is None else attended.rollout[:most],
    )


def _thin(attended: Attended, room: int) -> Attended:
    kept = chosen(attended, room)
    return replace(
        attended,
        queries=tuple(attended.queries[place] for place in kept),
        weights=attended.weights[..., kept, :],
        rollout=None if attended.rollout is None else attended.rollout[:, kept],
    )


def chosen(attended: Attended, room: int) -> list[int]:
    """Which queries are shown, evenly over the grid: as many as there is room for, at least one."""
    count, extra = len(attended.queries), len(attended.extra)
    most = max(1, min(count, room * count // max(attended.weights.numel(), 1)))
    if most == count:
        return list(range(count))
    places = [
        _place(slot - extra, attended.grid) if slot >= extra else None for slot in attended.queries
    ]
    on_grid = [place for place in places if place is not None]
    kept = _sparser(on_grid, most - (count - len(on_grid)))
    if kept:
        return [number for number, place in enumerate(places) if place is None or place in kept]
    return sorted(set(torch.linspace(0, count - 1, most).round().long().tolist()))


def _sparser(places: Sequence[Place], most: int) -> set[Place]:
    """At most so many places of a grid, as far apart along each axis as along the others; none if they are no grid."""
    axes = [sorted(set(axis)) for axis in zip(*places, strict=True)]
    if most < 1 or prod(map(len, axes)) != len(places):
        return set()
    counts = [1] * len(axes)
    while room := [
        a for a, axis in enumerate(axes) if counts[a] < len(axis) and _more(counts, a) <= most
    ]:
        counts[max(room, key=lambda a: len(axes[a]) / counts[a])] += 1
    return set(product(*(_middles(axis, count) for axis, count in zip(axes, counts, strict=True))))


def _more(counts: Sequence[int], axis: int) -> int:
    """How many places there are with one more along an axis."""
    return prod(counts) // counts[axis] * (counts[axis] + 1)


def _middles(axis: Sequence[int], count: int) -> list[int]:
    """Of so many equal parts of an axis."""
    return [axis[(2 * part + 1) * len(axis) // (2 * count)] for part in range(count)]


def _place(slot: int, grid: tuple[int, ...]) -> Place:
    """Where a slot lies that is counted row by row."""
    place: Place = ()
    for side in reversed(grid):
        slot, at = divmod(slot, side)
        place = (at, *place)
    return place
