"""Where heads look, as data for the page's script: weights as bytes, each row on a scale of its own."""

from __future__ import annotations

import base64
from dataclasses import replace
from functools import reduce
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor

from zoo.diagnostics.report import pictures
from zoo.diagnostics.report.contents import Attended, Report, Run

ROOM = 1_600_000  # bytes of weights, of all runs together


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


def data(report: Report) -> dict[str, Any]:
    """What the script reads: runs with weights, and the pictures that their samples name by number."""
    shown = [(run, run.attended) for run in thinned(report).runs if run.attended is not None]
    measured = [len(run.attended.queries) for run in report.runs if run.attended is not None]
    places: dict[bytes, int] = {}
    found: list[Tensor] = []
    for picture in (one for _, attended in shown for sample in attended.samples for one in sample.pictures):
        if places.setdefault(picture.contiguous().numpy().tobytes(), len(found)) == len(found):
            found.append(picture)
    packed, smaller = pictures.pack(found)
    told = [_run(run, attended, places, of) for (run, attended), of in zip(shown, measured, strict=True)]
    return {"pictures": packed, "smaller": smaller, "runs": told}


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
    while room := [a for a, side in enumerate(grid) if counts[a] < side and prod(counts) // counts[a] * (counts[a] + 1) <= most]:
        sparsest = max(room, key=lambda axis: grid[axis] / counts[axis])
        counts[sparsest] += 1
    along = [[(2 * place + 1) * side // (2 * count) for place in range(count)] for side, count in zip(grid, counts, strict=True)]
    return [reduce(lambda slot, step: slot * step[1] + step[0], zip(at, grid, strict=True), 0) for at in product(*along)]


def _run(run: Run, attended: Attended, places: dict[bytes, int], of: int) -> dict[str, Any]:
    samples = [
        {
            "title": sample.title,
            "tokens": list(sample.tokens),
            "pictures": [places[picture.contiguous().numpy().tobytes()] for picture in sample.pictures],
        }
        for sample in attended.samples
    ]
    rollout = None if attended.rollout is None else coded(attended.rollout)
    return {
        "name": run.name, "unit": run.unit, "grid": list(attended.grid), "extra": list(attended.extra),
        "layers": list(attended.layers), "heads": attended.weights.shape[2], "samples": samples,
        "queries": list(attended.queries), "of": of, "weights": coded(attended.weights), "rollout": rollout,
    }  # fmt: skip


def coded(weights: Tensor) -> dict[str, str]:
    """`levels`: shares of the largest of a row, in 255 parts, a byte each; `largest`: of each row, in 65 535 parts of 1, two bytes."""
    exact = weights.detach().float().nan_to_num(0.0, 0.0, 0.0).clamp(0, 1).cpu()
    largest = exact.amax(-1, keepdim=True)
    levels = (exact / largest.clamp(min=1e-30) * 255).round().to(torch.uint8)
    scales = (largest[..., 0] * 65535).round().int()
    pairs = torch.stack([scales % 256, scales // 256], dim=-1).to(torch.uint8)  # the lower byte first
    return {"levels": _bytes(levels), "largest": _bytes(pairs)}


def _bytes(tensor: Tensor) -> str:
    return base64.b64encode(tensor.contiguous().numpy().tobytes()).decode()
