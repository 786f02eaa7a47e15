"""Lines and points over two axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zoo.diagnostics.drawing.axes import Frame, colour, framed, legend, stacked
from zoo.diagnostics.drawing.markup import Markup, tag
from zoo.diagnostics.drawing.scales import Scale, calm, spanning, widened
from zoo.reporting.spec import Curves, Panel, Points

BUCKETS = 160  # of a long line, each drawn by its lowest and its highest number
FEW = 12  # points that are marked on their line


@dataclass(frozen=True)
class Line:
    """One line, with places of its own, a band around it, and the class of its colour where it does not go by its number."""

    label: str
    x: Tensor  # [N]
    y: Tensor  # [N]
    band: tuple[Tensor, Tensor] | None = None  # [N] each
    look: str = ""


def curves(panel: Curves) -> Markup:
    """Each line in a colour of its own, and the band around the first."""
    pairs = enumerate(panel.lines.items())
    return plot(
        panel,
        [
            Line(label, panel.places, line, None if number else panel.band)
            for number, (label, line) in pairs
        ],
    )


def plot(
    panel: Panel,
    lines: Sequence[Line],
    across: Scale | None = None,
    up: Scale | None = None,
    mark: tuple[float, str] | None = None,
) -> Markup:
    """Lines under the names of the panel's axes, on scales of their own or on given ones; `mark` is a place and its name."""
    frame = framed(
        across or spanning(line.x for line in lines), up or upward(lines), panel.x, panel.y
    )
    looks = [
        (line, number, line.look or colour(number, len(lines))) for number, line in enumerate(lines)
    ]
    drawn = [*_mark(frame, mark), *(_band(frame, *look) for look in looks if look[0].band)]
    for look in looks:
        drawn += _line(frame, *look)
    return stacked(
        legend([(look, line.label) for line, _, look in looks]),
        frame.draw(*drawn, title=panel.title),
    )


def upward(lines: Sequence[Line]) -> Scale:
    """A scale that holds the lines and their bands."""
    held = [part for line in lines for part in (line.y, *(line.band or ()))]
    scale = calm(widened(spanning(held)))
    if 0 <= scale.low < 0.4 * scale.high:  # near enough that the axis may begin at 0
        return spanning([*held, torch.tensor([0.0, scale.high])])
    return scale


def points(panel: Points) -> Markup:
    """Dots by group, the note in a corner."""
    xs, ys = zip(*panel.groups.values(), strict=True) if panel.groups else ((), ())
    x, y = widened(spanning(xs)), widened(spanning(ys, log=panel.steep))
    if panel.square:
        reach = max(abs(end) for scale in (x, y) for end in (scale.low, scale.high))
        x, y = (
            spanning([torch.tensor([-one, one])]) for one in (reach * 1.95, reach)
        )  # the frame is wider than high
    frame = framed(x, y, panel.x, panel.y)
    count = len(panel.groups)
    drawn = [
        _dots(frame, *pair, number, colour(number, count), label)
        for number, (label, pair) in enumerate(panel.groups.items())
    ]
    if panel.note:
        drawn.append(tag("text", panel.note, x=frame.x.end, y=12, class_="name end"))
    names = [(colour(number, count), label) for number, label in enumerate(panel.groups)]
    return stacked(legend(names), frame.draw(*drawn, title=panel.title))


def _line(frame: Frame, line: Line, number: int, look: str) -> list[Markup]:
    x, y = thinned(line.x.double(), line.y.double())
    where = _placed(frame, x, y)
    marks = [
        tag(
            "path",
            d=_path(where),
            class_=f"line {look}",
            data_series=str(number),
            data_label=line.label,
        )
    ]
    if len(where) <= FEW:
        marks += [
            tag("circle", cx=p[0], cy=p[1], r=2.6, class_=f"dot {look}", data_series=str(number))
            for p in where
            if p
        ]
    return marks


def _dots(frame: Frame, x: Tensor, y: Tensor, number: int, look: str, label: str) -> Markup:
    where = _placed(frame, x.double(), y.double())
    path = "".join(f"M{p[0]:.1f} {p[1]:.1f}h0" for p in where if p)
    return tag("path", d=path, class_=f"dots {look}", data_series=str(number), data_tip=label)


def _band(frame: Frame, line: Line, number: int, look: str) -> Markup:
    low, high = line.band or (line.y, line.y)
    there = _placed(frame, line.x.double(), high.double())
    back = _placed(frame, line.x.double(), low.double())[::-1]
    path = "L".join(f"{p[0]:.1f} {p[1]:.1f}" for p in [*there, *back] if p)
    return tag(
        "path", d=f"M{path}Z" if path else "", class_=f"band {look}", data_series=str(number)
    )


def _mark(frame: Frame, mark: tuple[float, str] | None) -> list[Markup]:
    """A line upwards at a place, if that is seen, with its name at the top."""
    if mark is None or not frame.x.low <= mark[0] <= frame.x.high:
        return []
    x, right = frame.x(mark[0]), frame.x(mark[0]) > (frame.x.start + frame.x.end) / 2
    name = tag(
        "text",
        mark[1],
        x=x + (-5 if right else 5),
        y=frame.y.end + 9,
        class_=f"tick{' end' if right else ''}",
    )
    return [tag("path", d=f"M{x:.1f} {frame.y.start:g}V{frame.y.end:g}", class_="cross"), name]


def _placed(frame: Frame, x: Tensor, y: Tensor) -> list[tuple[float, float] | None]:
    """Where points lie on the paper, None where there is no number."""
    seen = x.isfinite() & y.isfinite() & ((y > 0) | (not frame.y.log))
    return [
        (frame.x(a), frame.y(b)) if there else None
        for a, b, there in zip(x.tolist(), y.tolist(), seen.tolist(), strict=True)
    ]


def _path(where: Sequence[tuple[float, float] | None]) -> str:
    """A line that is broken where there is no number; a number alone is a dot."""
    words, begun = [], False
    for point in where:
        if point is not None:
            words.append(
                f"{'L' if begun else 'M'}{point[0]:.1f} {point[1]:.1f}{'' if begun else 'h0'}"
            )
        begun = point is not None
    return "".join(words)


def thinned(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A long line by the lowest and the highest number of each of its stretches, in their order."""
    if len(x) <= 2 * BUCKETS:
        return x, y
    kept = []
    for stretch in torch.arange(len(x)).chunk(BUCKETS):
        values = y[stretch]
        kept += [
            values.nan_to_num(torch.inf).argmin() + stretch[0],
            values.nan_to_num(-torch.inf).argmax() + stretch[0],
        ]
    places = torch.cat([torch.stack(kept), torch.tensor([0, len(x) - 1])]).unique()
    return x[places], y[places]
