"""The files that a comparison is told in, in its folder."""

from __future__ import annotations

import io
import json
from pathlib import Path

from zoo.compare import status
from zoo.compare.results import Comparison
from zoo.compare.table import table
from zoo.run import atomic_io

WRITING = ".writing"  # the lock of those who write
RESULTS, TABLE, PAGE = "results.json", "comparison.md", "index.html"


def write(comparison: Comparison, folder: Path) -> list[Path]:
    """Numbers, table, page and figures; those of before are replaced. One process at a time: their names while they are
    written are the same.
    """
    with status.lock(folder, "another process is writing its files", status.PATIENCE, WRITING):
        return _written(comparison, folder)


def _written(comparison: Comparison, folder: Path) -> list[Path]:
    from zoo.compare.figures import save_figures
    from zoo.compare.page.comparison_page import render

    numbers = json.dumps(comparison.plain(), indent=1, ensure_ascii=False, allow_nan=False)
    written = {RESULTS: numbers + "\n", TABLE: table(comparison) + "\n", PAGE: render(comparison)}
    for name, text in written.items():
        atomic_io.write(io.BytesIO(text.encode()), folder / name)
    return [*(folder / name for name in written), *save_figures(comparison, folder)]
