"""The end of the page of speed: what runs of `zoo bench` recorded in docs/speed/*.json, with pictures of the same name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from zoo.bench.result import Result
from zoo.bench.table import table

MARK = "## Recorded\n"


def speed(page: Path) -> str:
    """The page as it is written up to its mark, then a section for each file of the folder of its name."""
    written = page.read_text(encoding="utf-8").partition(MARK)[0]
    sections = [
        line for path in sorted(page.with_suffix("").glob("*.json")) for line in _section(path)
    ]
    lines = [
        "",
        "Made by `python docs/pages.py` from the files in docs/speed.",
        "",
        *(sections or ["Nothing yet.", ""]),
    ]
    return written + MARK + "\n".join(lines)


def _section(path: Path) -> Iterator[str]:
    result, picture = Result.read(path), path.with_suffix(".png")
    yield from (f"### {path.stem}", "", f"    {result.command}", "")
    yield from (re.sub(r"^## ", "#### ", table(result), flags=re.MULTILINE), "")
    if picture.exists():
        place = f"{path.parent.name}/{picture.name}"
        yield from (f"![Costs relative to {result.against}: {path.stem}]({place})", "")
