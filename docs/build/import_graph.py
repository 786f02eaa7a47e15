"""Draw the packages of zoo and their imports, read with `ast`: docs/images/architecture.svg.

Rows are floors: a package stands one row above the highest package that it imports. Arrows that
follow from others are left out, so an arrow from `run` to `models` and one from `models` to
`attention` also say that `run` may import `attention`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "zoo"
PICTURE = Path(__file__).parents[1] / "images" / "architecture.svg"
# Everybody imports the last three, and the front door `zoo/__init__.py` imports only on first use.
OMITTED = {"__init__", "__main__", "__version__", "errors", "packages", "utils"}

BOX_WIDTH, BOX_HEIGHT = 116, 34
GAP_X, GAP_Y, MARGIN = 26, 44, 20

Graph = Mapping[str, set[str]]

STYLE = """
  svg { background: #fff; color-scheme: light }
  rect { fill: #eef3f8; stroke: #5b7083; rx: 6 }
  text { font: 14px system-ui, sans-serif; text-anchor: middle; fill: #1c2733 }
  path { fill: none; stroke: #9aa9b7; stroke-width: 1.2 }
"""


def read_imports(package: Path = PACKAGE) -> dict[str, set[str]]:
    """Return {part of zoo: parts that it imports}, for packages and modules at the top."""
    graph: dict[str, set[str]] = {}
    for path in sorted(package.rglob("*.py")):
        part = _part_of(path.relative_to(package).parts[0])
        if part in OMITTED:
            continue
        found = {_part_of(name) for name in _imported_parts(path)}
        graph.setdefault(part, set()).update(found - {part} - OMITTED)
    return graph


def _part_of(name: str) -> str:
    return name.removesuffix(".py")


def _imported_parts(path: Path) -> Iterator[str]:
    """Yield the part of zoo that each import of a file names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            top, *rest = name.split(".")
            if top == "zoo" and rest:
                yield rest[0]


def compute_floors(graph: Graph) -> dict[str, int]:
    """Return the floor of each part: 0 without imports, else one above the highest import."""
    floors: dict[str, int] = {}

    def visit(part: str, above: tuple[str, ...]) -> int:
        if part in above:
            raise ValueError(f"import cycle: {' -> '.join([*above, part])}")
        if part not in floors:
            below = [visit(one, (*above, part)) for one in sorted(graph.get(part, ()))]
            floors[part] = 1 + max(below, default=-1)
        return floors[part]

    for part in graph:
        visit(part, ())
    return floors


def reduce_edges(graph: Graph) -> list[tuple[str, str]]:
    """Return the imports that do not follow from others."""

    def reach(part: str) -> set[str]:
        found: set[str] = set()
        for one in graph.get(part, ()):
            found |= {one} | reach(one)
        return found

    edges = []
    for part, imported in sorted(graph.items()):
        indirect = set().union(*(reach(one) for one in imported)) if imported else set()
        edges += [(part, one) for one in sorted(imported - indirect)]
    return edges


def draw_graph(graph: Graph) -> str:
    """Return the picture as SVG text."""
    floors = compute_floors(graph)
    top = max(floors.values())
    rows = [sorted(part for part in floors if floors[part] == top - row) for row in range(top + 1)]

    width = 2 * MARGIN + max(map(len, rows)) * (BOX_WIDTH + GAP_X) - GAP_X
    height = 2 * MARGIN + len(rows) * (BOX_HEIGHT + GAP_Y) - GAP_Y
    centres = {
        part: (
            width / 2 + (column - (len(row) - 1) / 2) * (BOX_WIDTH + GAP_X),
            MARGIN + number * (BOX_HEIGHT + GAP_Y) + BOX_HEIGHT / 2,
        )
        for number, row in enumerate(rows)
        for column, part in enumerate(row)
    }

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
        "<title>Packages of zoo; arrows point to what a package imports</title>",
        f"<style>{STYLE}</style>",
        '<marker id="tip" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="7" markerHeight="7"'
        ' orient="auto"><path d="M0 0 6 3 0 6z" style="fill: #9aa9b7"/></marker>',
    ]
    lines += [_draw_edge(centres[start], centres[end]) for start, end in reduce_edges(graph)]
    lines += [_draw_box(part, *centre) for part, centre in centres.items()]
    return "\n".join([*lines, "</svg>", ""])


def _draw_edge(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x1, y1), (x2, y2) = start, end
    y1, y2 = y1 + BOX_HEIGHT / 2, y2 - BOX_HEIGHT / 2
    middle = (y1 + y2) / 2
    curve = f"M{x1:g} {y1:g} C{x1:g} {middle:g} {x2:g} {middle:g} {x2:g} {y2:g}"
    return f'<path d="{curve}" marker-end="url(#tip)"/>'


def _draw_box(part: str, x: float, y: float) -> str:
    left, top = x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2
    box = f'<rect x="{left:g}" y="{top:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}"/>'
    return f'{box}<text x="{x:g}" y="{y + 5:g}">{escape(part)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(draw_graph(read_imports()), encoding="utf-8")
