"""Pages of questions: prose up to a mark, then the comparisons that were recorded in the folder of the page's name.

`python docs/compared.py COMPARISON resolution/digits` records the folder of a comparison, under a name of its own, and without
words draws the figures of all anew; `python docs/pages.py` makes the pages.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from zoo.compare.figures import draw
from zoo.compare.files import RESULTS
from zoo.compare.result import Comparison
from zoo.compare.table import table

QUESTIONS = Path(__file__).parent / "questions"
MARK = "## Recorded\n"
FIGURES = {
    "ranking": "Ranked, with 95 % intervals over seeds",
    "sizes": "By size",
    "positions": "By place in the window",
}
COLOURS = 64  # of figures that are kept, at a quarter of the size
DIGITS = 6  # of numbers that are kept: more than any seed repeats on another machine


def questions() -> dict[Path, str]:
    """{path: text} of all pages, each as it is written up to its mark, then a section for each file of its folder."""
    return {page: _page(page) for page in sorted(QUESTIONS.glob("*.md"))}


def _page(page: Path) -> str:
    written, mark, _ = page.read_text(encoding="utf-8").partition(MARK)
    if not mark:
        return written
    sections = [line for path in sorted(page.with_suffix("").glob("*.json")) for line in _section(path)]
    told = f"Made by `python docs/pages.py` from the files in docs/questions/{page.stem}."
    return written + MARK + "\n".join(["", told, "", *(sections or ["Nothing yet.", ""])])


def _section(path: Path) -> Iterator[str]:
    title, *rest = table(Comparison.read(path)).split("\n", 1)
    yield from (f"### {path.stem.replace('_', ' ')}: {title.removeprefix('# ')}", "")
    yield from (re.sub(r"^## ", "#### ", "".join(rest).strip(), flags=re.MULTILINE), "")
    yield from (f"[The whole page]({path.parent.name}/{path.stem}.html), with each seed.", "")
    for name, told in FIGURES.items():
        picture = path.with_name(f"{path.stem}_{name}.png")
        if picture.exists():
            yield from (f"![{told}: {path.stem}]({path.parent.name}/{picture.name})", "")


def record(comparison: Path, to: Path) -> None:
    """Numbers and figures of a comparison, under a name of a question's folder. Its page is made of the numbers alone."""
    to.parent.mkdir(parents=True, exist_ok=True)
    found = json.loads((comparison / RESULTS).read_text(encoding="utf-8"))
    to.with_suffix(".json").write_text(json.dumps(_short(found), separators=(",", ":")) + "\n", encoding="utf-8")
    redraw(to.with_suffix(".json"))


def redraw(path: Path) -> None:
    """The figures of what was recorded, anew."""
    with tempfile.TemporaryDirectory() as folder:
        for drawn in draw(Comparison.read(path), Path(folder)):
            if drawn.stem in FIGURES:
                _lighter(drawn, path.with_name(f"{path.stem}_{drawn.name}"))


def _lighter(drawn: Path, to: Path) -> None:
    with Image.open(drawn) as whole:
        few = whole.convert("RGB").quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
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
