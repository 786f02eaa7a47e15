"""The figure of each recorded comparison, drawn anew as soon as its cells have changed.

`python docs/build/pages.py` draws them into docs/images/records. A figure keeps the SHA-256 of the
cells that it shows, so that a test finds one that is older.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

from evidence_data import read_record
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from zoo.comparison.figures import draw_figures
from zoo.comparison.hypotheses import HYPOTHESES
from zoo.comparison.plan import PLAN
from zoo.comparison.record_file import CELLS_FILE
from zoo.reporting.charts import to_png, to_svg

DOCS = Path(__file__).parents[1]
FOLDER = DOCS / "images" / "records"
SOURCE = "cells"
"""The text of a PNG that has the SHA-256 of plan, hypotheses and cells."""


def list_records() -> list[Path]:
    """List the folders of all recorded comparisons but those of suites."""
    return [path.parent for path in sorted(DOCS.glob(f"records/*/{PLAN}"))]


def list_figures() -> Iterator[tuple[Path, Path]]:
    """Yield (folder, figure) of each comparison that has a tested cell."""
    for folder in list_records():
        if any(cell.measurements for cell in read_record(folder).cells):
            yield folder, locate_figure(folder.name)


def locate_figure(name: str) -> Path:
    """Return the path of the figure of a recorded comparison."""
    return FOLDER / f"{name}.png"


def is_current(folder: Path, figure: Path) -> bool:
    """Return whether a figure shows the cells of a comparison."""
    if not figure.exists():
        return False
    with Image.open(figure) as image:
        return image.info.get(SOURCE) == _hash(folder)


def draw_stale() -> list[Path]:
    """Draw what is missing or older than its cells; return the paths."""
    stale = [pair for pair in list_figures() if not is_current(*pair)]
    FOLDER.mkdir(exist_ok=True)
    for folder, figure in stale:
        charts = draw_figures(read_record(folder))
        # against resolution or length, where more than one is measured
        png = to_png(to_svg(charts.get("sizes", charts["ranking"])))
        text = PngInfo()
        text.add_text(SOURCE, _hash(folder))
        with Image.open(io.BytesIO(png)) as image:
            image.save(figure, optimize=True, pnginfo=text)
    return [figure for _, figure in stale]


def _hash(folder: Path) -> str:
    files = (folder / name for name in (PLAN, HYPOTHESES, CELLS_FILE))
    content = b"".join(path.read_bytes() for path in files if path.exists())
    return hashlib.sha256(content).hexdigest()
