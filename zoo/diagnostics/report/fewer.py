"""Fewer queries than were measured, where all would make the page too large."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from itertools import product
from math import prod

import torch

from zoo.diagnostics.report.contents import Attended, Report

ROOM = 1_600_000  # bytes of weights in the page, of all runs together


def thinned(report: Report) -> Report:
    """The report with as many queries as there is room for."""
    room = ROOM // max(sum(run.attended is not None for run in report.runs), 1)
    runs = (run if run.attended is None else replace(run, attended=_thin(run.attended, room)) for run in report.runs)
    return replace(report, runs=tuple(runs))


def _thin(attended: Attended, room: int) -> Attended:
    kept = chosen(attended, room)
    return replace(
        attended, queries=tuple(attended.queries[place] for place in kept), weights=attended.weights[..., kept, :],
        rollout=None if attended.rollout is None else attended.rollout[:, kept],
    )  # fmt: skip


def chosen(attended: Attended, room: int) -> list[int]:
    """Which queries are shown, evenly over the grid: as many as there is room for, at least one."""
    count = len(attended.queries)
    most = max(1, min(count, room * count // max(attended.weights.numel(), 1)))
    if most == count:
        return list(range(count))
    extra = len(attended.extra)
    slots = {*range(extra), *(extra + slot for slot in _lattice(attended.grid, most - extra))}
    if len(slots) <= most and slots <= set(attended.queries):
        return [place for place, slot in enumerate(attended.queries) if slot in slots]
    return sorted(set(torch.linspace(0, count - 1, most).round().long().tolist()))


def _lattice(grid: tuple[int, ...], most: int) -> list[int]:
    """At most so many slots of a grid, as far apart along each axis as along the others."""
    if most < 1:
        return []
    counts = [1] * len(grid)
    while room := [
        a for a, side in enumerate(grid) if counts[a] < side and prod(counts) * (counts[a] + 1) <= most * counts[a]
    ]:
        counts[max(room, key=lambda axis: grid[axis] / counts[axis])] += 1
    along = (_middles(side, count) for side, count in zip(grid, counts, strict=True))
    return [_slot(at, grid) for at in product(*along)]


def _middles(side: int, count: int) -> list[int]:
    """Of so many equal parts of a side."""
    return [(2 * part + 1) * side // (2 * count) for part in range(count)]


def _slot(at: tuple[int, ...], grid: tuple[int, ...]) -> int:
    """The number of a place, row by row."""
    return reduce(lambda slot, step: slot * step[1] + step[0], zip(at, grid, strict=True), 0)
