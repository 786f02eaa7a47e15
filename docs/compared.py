"""Comparisons that were recorded, each in the folder of the question that it answers.

`python docs/compared.py COMPARISON resolution/digits` records the folder of a comparison, under a name of its own, and without
words draws the figures of all anew; `python docs/pages.py` makes the pages.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

from zoo.compare.figures import draw
from zoo.compare.outputs import RESULTS
from zoo.compare.results import Comparison

QUESTIONS = Path(__file__).parent / "questions"
FIGURES = {
    "ranking": "Ranked, with 95 % intervals over seeds",
    "sizes": "By size",
    "positions": "By place in the window",
}
COLOURS = 64  # of figures that are kept, at a quarter of the size
DIGITS = 6  # of numbers that are kept: more than any seed repeats on another machine


def record(comparison: Path, to: Path) -> None:
    """Numbers and figures of a comparison, under a name of a question's folder. Its page is made of the numbers alone."""
    to.parent.mkdir(parents=True, exist_ok=True)
    found = json.loads((comparison / RESULTS).read_text(encoding="utf-8"))
    to.with_suffix(".json").write_text(
        json.dumps(_short(found), separators=(",", ":")) + "\n", encoding="utf-8"
    )
    redraw(to.with_suffix(".json"))


def redraw(path: Path) -> None:
    """The figures of what was recorded, anew."""
    with tempfile.TemporaryDirectory() as folder:
        for drawn in draw(Comparison.read(path), Path(folder)):
            if drawn.stem in FIGURES:
                _lighter(drawn, path.with_name(f"{path.stem}_{drawn.name}"))


def _lighter(drawn: Path, to: Path) -> None:
    with Image.open(drawn) as whole:
        few = whole.convert("RGB").quantize(
            COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE
        )
    few.save(to, optimize=True)


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {key: _short(each) for key, each in value.items()}
    return [_short(each) for each in value] if isinstance(value, list) else value


if __name__ == "__main__":
    if sys.argv[1:]:
        record(Path(sys.argv[1]), QUESTIONS / sys.argv[2])
    else:
        for one in sorted(QUESTIONS.glob("*/*.json")):
            redraw(one)
