"""The figure of each recorded comparison, drawn anew as soon as its results have changed.

`python docs/pages.py` draws them into docs/images/records. A figure keeps the SHA-256 of the
results that it shows, so that a test finds one that is older.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from zoo.comparison.figures import draw_figures
from zoo.comparison.results import Comparison
from zoo.reporting.charts import to_png, to_svg

DOCS = Path(__file__).parent
FOLDER = DOCS / "images" / "records"
SOURCE = "results"
"""The text of a PNG that has the SHA-256."""


def list_results() -> list[Path]:
    """List the results of all recorded comparisons; a suite has another kind of results."""
    found = sorted(DOCS.glob("records/*/results.json"))
    return [path for path in found if path.with_name("plan.json").exists()]


def list_figures() -> Iterator[tuple[Path, Path]]:
    """Yield (results, figure) of each comparison that has a tested cell."""
    for results in list_results():
        if any(one.measurements for one in Comparison.read(results).cells):
            yield results, locate_figure(results.parent.name)


def locate_figure(name: str) -> Path:
    """Return the path of the figure of a recorded comparison."""
    return FOLDER / f"{name}.png"


def is_current(results: Path, figure: Path) -> bool:
    """Return whether a figure shows these results."""
    if not figure.exists():
        return False
    with Image.open(figure) as image:
        return image.info.get(SOURCE) == _hash(results)


def draw_stale() -> list[Path]:
    """Draw what is missing or older than its results; return the paths."""
    stale = [pair for pair in list_figures() if not is_current(*pair)]
    FOLDER.mkdir(exist_ok=True)
    for results, figure in stale:
        charts = draw_figures(Comparison.read(results))
        # against resolution or length, where more than one is measured
        png = to_png(to_svg(charts.get("sizes", charts["ranking"])))
        text = PngInfo()
        text.add_text(SOURCE, _hash(results))
        with Image.open(io.BytesIO(png)) as image:
            image.save(figure, optimize=True, pnginfo=text)
    return [figure for _, figure in stale]


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
