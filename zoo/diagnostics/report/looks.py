"""Where heads look, as data for the page's script: weights as bytes, each row on a scale of its own."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from zoo.diagnostics.report import pictures
from zoo.diagnostics.report.contents import Attended, Run

ROOM = 1_600_000  # bytes of weights, of all runs together


def data(runs: Sequence[Run]) -> dict[str, Any]:
    """What the script reads: runs with weights, and the pictures that their samples name by number."""
    shown = [(run, run.attended) for run in runs if run.attended is not None]
    places: dict[bytes, int] = {}
    found: list[Tensor] = []
    for picture in (one for _, attended in shown for sample in attended.samples for one in sample.pictures):
        if places.setdefault(picture.contiguous().numpy().tobytes(), len(found)) == len(found):
            found.append(picture)
    packed, smaller = pictures.pack(found)
    each = ROOM // max(len(shown), 1)
    told = [_run(run, attended, places, each) for run, attended in shown]
    return {"pictures": packed, "smaller": smaller, "runs": told}


def chosen(attended: Attended, room: int) -> list[int]:
    """Which queries are shown, evenly: as many as there is room for, at least one."""
    count = len(attended.queries)
    most = max(1, min(count, room * count // max(attended.weights.numel(), 1)))
    return sorted(set(torch.linspace(0, count - 1, most).round().long().tolist()))


def _run(run: Run, attended: Attended, places: dict[bytes, int], room: int) -> dict[str, Any]:
    kept = chosen(attended, room)
    samples = [
        {
            "title": sample.title,
            "tokens": list(sample.tokens),
            "pictures": [places[picture.contiguous().numpy().tobytes()] for picture in sample.pictures],
        }
        for sample in attended.samples
    ]
    rollout = None if attended.rollout is None else coded(attended.rollout[:, kept])
    return {
        "name": run.name, "unit": run.unit, "grid": list(attended.grid), "extra": list(attended.extra),
        "layers": list(attended.layers), "heads": attended.weights.shape[2], "samples": samples,
        "queries": [attended.queries[place] for place in kept], "of": len(attended.queries),
        "weights": coded(attended.weights[..., kept, :]), "rollout": rollout,
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
