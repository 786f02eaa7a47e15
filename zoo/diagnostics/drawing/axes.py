"""The frame of a drawing with two axes: grid, ticks and names."""

from __future__ import annotations

from dataclasses import dataclass

from zoo.diagnostics.drawing.markup import Markup, breaking, tag, together
from zoo.diagnostics.drawing.scales import Scale

WIDTH, HEIGHT = 400.0, 232.0
TOP, RIGHT, BOTTOM = 26.0, 14.0, 42.0
LETTER = 7.0  # room for a letter of a tick, which is written larger where the drawing is small


@dataclass(frozen=True)
class Frame:
    """Scales that know where on the paper they lie, and the names of the axes."""

    x: Scale
    y: Scale
    across: str
    up: str

    def draw(self, *content: Markup, title: str) -> Markup:
        """An SVG with `content` over the grid. Attributes say how to read numbers off it."""
        return tag(
            "svg",
            *self._grid(),
            *content,
            *self._names(),
            viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
            role="img",
            aria_label=title,
            class_="plot",
            data_x=_ends(self.x),
            data_y=_ends(self.y),
        )

    def _grid(self) -> list[Markup]:
        left, right, bottom = self.x.start, self.x.end, self.y.start
        lines = []
        for number, label in self.y.ticks(5):
            y = self.y(number)
            lines.append(
                tag(
                    "path",
                    d=f"M{left:g} {y:.1f}H{right:g}",
                    class_="zero" if number == 0 else "grid",
                )
            )
            lines.append(tag("text", label, x=left - 7, y=y + 3.6, class_="tick end"))
        for number, label in self.x.ticks(6):
            x = self.x(number)
            lines.append(tag("path", d=f"M{x:.1f} {bottom:g}v4", class_="tick"))
            if number == 0 > self.x.low:
                lines.append(tag("path", d=f"M{x:.1f} {bottom:g}V{self.y.end:g}", class_="zero"))
            lines.append(tag("text", label, x=x, y=bottom + 17, class_="tick middle"))
        lines.append(tag("path", d=f"M{left:g} {bottom:g}H{right:g}", class_="axis"))
        return lines

    def _names(self) -> list[Markup]:
        return [
            tag("text", self.up, x=2, y=12, class_="name"),
            tag(
                "text",
                self.across,
                x=(self.x.start + self.x.end) / 2,
                y=HEIGHT - 6,
                class_="name middle",
            ),
        ]


def framed(x: Scale, y: Scale, across: str, up: str) -> Frame:
    """A frame with as much room on the left as the labels of the ticks need."""
    widest = max((len(label) for _, label in y.ticks(5)), default=1)
    left = 12 + LETTER * widest
    return Frame(x.over(left, WIDTH - RIGHT), y.over(HEIGHT - BOTTOM, TOP), across, up)


def legend(labels: list[tuple[str, str]]) -> Markup | None:
    """(class of the colour, label) of each of several things; of one, nothing needs to be told."""
    if len(labels) < 2:
        return None
    items = (
        tag("li", tag("i", class_=f"swatch {colour}"), breaking(label), data_series=str(number))
        for number, (colour, label) in enumerate(labels)
    )
    return tag("ul", *items, class_="legend")


def colour(number: int, count: int) -> str:
    """The class of one of `count` colours: those of a few are told apart by name, those of many lie on a ramp."""
    return f"s{number}" if count <= 8 else f"w{round(4 + 12 * number / (count - 1))}"


def _ends(scale: Scale) -> str:
    return f"{scale.start:g} {scale.end:g} {scale.low:.6g} {scale.high:.6g} {'log' if scale.log else 'even'}"


def stacked(*parts: Markup | None) -> Markup:
    """A drawing under its legend."""
    return tag("div", together(parts), class_="drawing")
