"""The recorded part of the page about speed, from the files of `zoo bench` in docs/speed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from zoo.bench.report import format_result
from zoo.bench.result import BenchResult

MARK = "## Recorded\n"


def write_speed_page(page: Path) -> str:
    """Return the page: its own text up to the mark, then a section for each recorded file."""
    text = page.read_text(encoding="utf-8").partition(MARK)[0]
    lines = ["", "Made by `python docs/pages.py` from the files in docs/speed.", ""]
    for path in sorted(page.with_suffix("").glob("*.json")):
        lines += _recorded_section(path)
    return text + MARK + "\n".join(lines)


def _recorded_section(path: Path) -> Iterator[str]:
    result, picture = BenchResult.read(path), path.with_suffix(".png")
    yield from (f"### {path.stem}", "", f"    {result.command}", "")
    yield from (re.sub(r"^## ", "#### ", format_result(result), flags=re.MULTILINE), "")
    if picture.exists():
        link = f"{path.parent.name}/{picture.name}"
        yield from (f"![Costs relative to {result.reference}: {path.stem}]({link})", "")
