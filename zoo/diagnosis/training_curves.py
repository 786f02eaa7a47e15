"""Curves of a report: logged metrics of training, and evaluations at other sizes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from zoo.config.schema import format_size
from zoo.diagnostics.head_metrics import HeadMetric, metrics_by_name
from zoo.evaluation.results import FILES, Evaluation, find_unit, get_positions, has_equal_sides
from zoo.reporting.numbers import name_metric
from zoo.reporting.panel import Curves

# Largest number of points of a curve, and of one whose points are losses of single tokens.
MOST, BINS = 400, 48
NONE = float("nan")
ATTENTION = re.compile(r"attention/\d+/.+")
Points = Sequence[tuple[float, float]]


def draw_training_curves(rows: Sequence[Mapping[str, str]], unit: str) -> tuple[Curves, ...]:
    """Draw the rows of `metrics.csv` over steps: losses together, every other metric separately.

    What was measured once is left out: a chart of one point says nothing of a course.

    Args:
        rows: The rows, {column: text}.
        unit: The unit of positions: "tokens" or "patches".
    """
    names = dict.fromkeys(name for row in rows for name in row)
    found = {
        name: points
        for name in names
        if name.startswith(("train/", "val/")) and len(points := _read_points(rows, name)) > 1
    }
    return (
        *_draw_losses(found),
        *_draw_attention_metrics(
            rows, [name for name in names if ATTENTION.fullmatch(name)], metrics_by_name(unit)
        ),
    )


def _read_points(rows: Sequence[Mapping[str, str]], name: str) -> Points:
    return [(float(row["step"]), float(row[name])) for row in rows if row.get(name)]


def _draw_attention_metrics(
    rows: Sequence[Mapping[str, str]], names: Sequence[str], known: Mapping[str, HeadMetric]
) -> Iterator[Curves]:
    """Draw the logged attention metrics that vary, with a line for each layer."""
    # {metric: {layer: points}}; a metric that is the same everywhere is not drawn.
    kinds: dict[str, dict[str, Points]] = {}
    for name in names:
        _, layer, kind = name.split("/", 2)
        if points := _read_points(rows, name):
            kinds.setdefault(kind, {})[f"layer {layer}"] = points
    for kind, layers in kinds.items():
        if len({value for points in layers.values() for _, value in points}) == 1:
            continue
        steps = sorted({step for points in layers.values() for step, _ in points})
        if len(steps) == 1:
            continue
        found = {layer: dict(points) for layer, points in layers.items()}
        lines = {
            layer: [(step, points.get(step, NONE)) for step in steps]
            for layer, points in found.items()
        }
        message = "The mean over heads in training: layers that diverge take on different tasks."
        title, y = (
            (known[kind].title, known[kind].unit)
            if kind in known
            else (kind.replace("_", " "), "mean over heads")
        )
        yield _make_curves(title, y, lines, message)


def _draw_losses(found: Mapping[str, Points]) -> Iterator[Curves]:
    train, val = found.get("train/loss", ()), found.get("val/loss", ())
    if train:
        yield _make_curves(
            "training loss",
            "loss",
            {"train": train},
            "It falls fast, then slowly; a jump up is a step that was too large.",
        )
    if train and len(val) > 1:
        lines = {"train": _average_between(train, val), "val": val}
        yield _make_curves(
            "training and validation loss",
            "loss",
            lines,
            "If val rises while train falls, the model overfits. Dropout, augmentation and label "
            "smoothing raise only the training loss.",
        )
    for name, points in found.items():
        if name not in ("train/loss", "val/loss") or (
            name == "val/loss" and not (train and len(val) > 1)
        ):
            yield _make_curves(
                name_metric(name),
                name_metric(name),
                {name_metric(name): points},
                "One point for each measurement.",
            )


def _average_between(train: Points, val: Points) -> Points:
    """Average the training loss between consecutive validations."""
    # The mean of a span is compared with the validation at its end.
    steps = [-1.0, *(step for step, _ in val)]
    spans = [[loss for step, loss in train if low < step <= high] for low, high in pairwise(steps)]
    return [
        (high, sum(span) / len(span) if span else NONE)
        for high, span in zip(steps[1:], spans, strict=True)
    ]


def _make_curves(title: str, y: str, lines: Mapping[str, Points], caption: str) -> Curves:
    """Make a panel of lines that share their steps."""
    first = next(iter(lines.values()))
    x_values = _thin([step for step, _ in first])
    drawn = {name: _thin([value for _, value in points]) for name, points in lines.items()}
    return Curves(title=title, x="step", y=y, caption=caption, x_values=x_values, lines=drawn)


def _thin(values: Sequence[float], most: int = MOST) -> Tensor:
    """Reduce values to at most `most` means of neighbouring values."""
    run = -(-len(values) // most)
    return torch.stack([part.nanmean() for part in torch.tensor(values).split(run)])


def draw_extrapolation(result: Evaluation) -> tuple[Curves, ...]:
    """Draw the results of an evaluation at other resolutions or lengths, and by position."""
    return *_draw_sizes(result), *_draw_positions(result)


def _draw_sizes(result: Evaluation) -> Iterator[Curves]:
    """Draw metrics by size, for the unchanged model and for each extrapolation method."""
    # Sizes of images that are not square have no place on the axis.
    unit = find_unit(result)
    if not unit:
        return
    lines = {
        method: {size[0]: one for size, one in line.items() if has_equal_sides(size)}
        for method, line in result.list_lines().items()
    }
    refused = [size for size, one in lines[""].items() if one.refused]
    message = f"Trained at {format_size(result.trained_size)}" + (
        f"; refused at {', '.join(map(str, refused))}" if refused else ""
    )
    for name in result.metrics:
        points = {
            method or name_metric(name): {
                size: one.metrics[name] for size, one in line.items() if name in one.metrics
            }
            for method, line in lines.items()
        }
        x_values = sorted({size for line in points.values() for size in line})
        if not x_values:
            continue
        yield Curves(
            title=f"{name_metric(name)} at other {FILES[unit]}",
            x="resolution in pixels" if unit == "pixels" else "length in tokens",
            y=name_metric(name),
            caption=f"{message}: a model that extrapolates has a flat line.",
            x_values=torch.tensor([float(size) for size in x_values]),
            lines={
                label: torch.tensor([line.get(size, NONE) for size in x_values])
                for label, line in points.items()
                if line
            },
        )


def _draw_positions(result: Evaluation) -> Iterator[Curves]:
    """Draw loss and accuracy by position in the longest windows that the model could process."""
    for metric, caption in (
        ("test/loss", "if the curve rises beyond that length, the model does not extrapolate"),
        ("test/accuracy", "if the curve falls beyond that length, the model does not extrapolate"),
    ):
        sweeps = {
            one.condition.size: found
            for one in result.conditions
            if one.condition.kind == "size"
            and one.condition.size
            and (found := get_positions(one, metric))
        }
        if not sweeps:
            continue
        # The longest windows contain the positions of all shorter ones.
        longest, found = max(sweeps.items())
        points = [
            (float(position), value) for position, value in enumerate(found) if value is not None
        ]
        yield Curves(
            title=f"{metric.partition('/')[2]} by position in windows of {format_size(longest)}",
            x="position in the window",
            y=name_metric(metric),
            caption=f"Trained on windows of {format_size(result.trained_size)}: {caption}.",
            x_values=_thin([position for position, _ in points], BINS),
            lines={name_metric(metric): _thin([value for _, value in points], BINS)},
        )
