"""Where heads look, as data for the page's script: weights as bytes, each row on a scale of its own."""

from __future__ import annotations

import base64
from typing import Any

import torch
from torch import Tensor

from zoo.diagnostics.drawing import pictures
from zoo.diagnostics.page.fewer import thinned
from zoo.diagnostics.report import Attended, Report, Run


def data(report: Report) -> dict[str, Any]:
    """What the script reads: runs with weights, and the pictures that their samples name by number."""
    shown = [(run, run.attended) for run in thinned(report).runs if run.attended is not None]
    measured = [len(run.attended.queries) for run in report.runs if run.attended is not None]
    places: dict[bytes, int] = {}
    found: list[Tensor] = []
    for picture in (
        one for _, attended in shown for sample in attended.samples for one in sample.pictures
    ):
        if places.setdefault(picture.contiguous().numpy().tobytes(), len(found)) == len(found):
            found.append(picture)
    packed, smaller = pictures.pack(found)
    told = [
        _run(run, attended, places, of) for (run, attended), of in zip(shown, measured, strict=True)
    ]
    return {"pictures": packed, "smaller": smaller, "runs": told}


def _run(run: Run, attended: Attended, places: dict[bytes, int], of: int) -> dict[str, Any]:
    samples = [
        {
            "title": sample.title,
            "tokens": list(sample.tokens),
            "pictures": [
                places[picture.contiguous().numpy().tobytes()] for picture in sample.pictures
            ],
        }
        for sample in attended.samples
    ]
    rollout = None if attended.rollout is None else coded(attended.rollout)
    return {
        "name": run.name,
        "unit": run.unit,
        "grid": list(attended.grid),
        "extra": list(attended.extra),
        "layers": list(attended.layers),
        "heads": attended.weights.shape[2],
        "samples": samples,
        "queries": list(attended.queries),
        "of": of,
        "weights": coded(attended.weights),
        "rollout": rollout,
    }


def coded(weights: Tensor) -> dict[str, str]:
    """`levels`: a byte for each weight, 255 for the largest of its row; `largest`: two for each row, 65 535 for 1."""
    exact = weights.detach().float().nan_to_num(0.0, 0.0, 0.0).clamp(0, 1).cpu()
    largest = exact.amax(-1, keepdim=True)
    levels = (exact / largest.clamp(min=1e-30) * 255).round().to(torch.uint8)
    scales = (largest[..., 0] * 65535).round().int()
    pairs = torch.stack([scales % 256, scales // 256], dim=-1).to(
        torch.uint8
    )  # the lower byte first
    return {"levels": _bytes(levels), "largest": _bytes(pairs)}


def _bytes(tensor: Tensor) -> str:
    return base64.b64encode(tensor.contiguous().numpy().tobytes()).decode()
