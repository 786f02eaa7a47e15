"""Curves of a report: what training logged, and what an evaluation at other sizes found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from zoo.panels import Curves

MOST = 400  # points of a curve
Points = Sequence[tuple[float, float]]


def training(rows: Sequence[Mapping[str, str]]) -> tuple[Curves, ...]:
    """Curves over steps of what stands in `metrics.csv`, given as its rows: losses together, each other metric by itself."""
    names = dict.fromkeys(name for row in rows for name in row)
    found = {name: points for name in names if name.startswith(("train/", "val/")) and (points := _points(rows, name))}
    return tuple(_drawn(found))


def _points(rows: Sequence[Mapping[str, str]], name: str) -> Points:
    return [(float(row["step"]), float(row[name])) for row in rows if row.get(name)]


def _drawn(found: Mapping[str, Points]) -> Iterator[Curves]:
    train, val = found.get("train/loss", ()), found.get("val/loss", ())
    if train:
        yield _curves("training loss", {"train": train}, "It falls fast, then slowly; a jump up is a step too far.")
    if train and len(val) > 1:
        lines = {"train": _meanwhile(train, val), "val": val}
        yield _curves(
            "loss, trained on and not", lines, "Where val rises while train falls, the model learns by heart."
        )
    for name, points in found.items():
        if name not in ("train/loss", "val/loss") or (name == "val/loss" and not (train and len(val) > 1)):
            yield _curves(name.replace("/", " "), {name: points}, "One point for each time that it was measured.")


def _meanwhile(train: Points, val: Points) -> Points:
    """The mean of the training loss between one validation and the next, at the latter."""
    steps = [-1.0, *(step for step, _ in val)]
    spans = [[loss for step, loss in train if low < step <= high] for low, high in pairwise(steps)]
    return [
        (high, sum(span) / len(span) if span else float("nan")) for high, span in zip(steps[1:], spans, strict=True)
    ]


def _curves(title: str, lines: Mapping[str, Points], says: str) -> Curves:
    """Lines over the same steps."""
    first = next(iter(lines.values()))
    places = _thinned([step for step, _ in first])
    drawn = {name: _thinned([value for _, value in points]) for name, points in lines.items()}
    return Curves(title=title, x="step", y=title.split(",")[0], says=says, places=places, lines=drawn)


def _thinned(values: Sequence[float]) -> Tensor:
    """At most so many numbers, each the mean of as many neighbours."""
    run = -(-len(values) // MOST)
    return torch.stack([part.mean() for part in torch.tensor(values).split(run)])


def extrapolation(result: Mapping[str, Any], trained: int) -> tuple[Curves, ...]:
    """Curves of what `zoo eval` found at other resolutions or lengths; `trained` is the size of training."""
    return tuple(
        panel for kind in ("resolutions", "lengths") if kind in result for panel in _swept(result, kind, trained)
    )


def _swept(result: Mapping[str, Any], kind: str, trained: int) -> Iterator[Curves]:
    sizes = {int(size): metrics for size, metrics in result[kind].items()} | {trained: result["metrics"]}
    refused = sorted(size for size, metrics in sizes.items() if "refused" in metrics)
    known = {size: sizes[size] for size in sorted(sizes) if size not in refused}
    x = "resolution in pixels" if kind == "resolutions" else "length of windows in tokens"
    told = f"Trained at {trained}" + (f"; refused at {', '.join(map(str, refused))}" if refused else "")
    for name in result["metrics"]:
        values = {size: float(metrics[name]) for size, metrics in known.items() if name in metrics}
        yield Curves(
            title=f"{name.replace('/', ' ')} at other {kind}", x=x, y=name, says=f"{told}: what is level there carries on.",
            places=torch.tensor([float(size) for size in values]), lines={name: torch.tensor([*values.values()])},
        )  # fmt: skip
