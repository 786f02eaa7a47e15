"""Text for terminals: wrapped to their width, with bold headings and coloured states.

Text that goes to a file or another program stays as it is, one line for each entry, so that it can
be searched. `NO_COLOR` (no-color.org) and `FORCE_COLOR` decide about colours.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator

BOLD, RED, GREEN, YELLOW, RESET = "\033[1m", "\033[1;31m", "\033[32m", "\033[33m", "\033[0m"
STATES = {"ok": GREEN, "kept": GREEN, "absent": YELLOW, "not asked": YELLOW, "broken": RED}
"""Colours of the states that a line or a cell of a table may have."""
NARROWEST = 40
"""Width below which lines are wrapped as if the terminal were wider."""
STUMP = 60
"""Shortest line that continues in the next one, in a paragraph that is wrapped already."""


def print_text(text: str) -> None:
    """Print text of a command to standard output, for a terminal if it is one."""
    width = find_width()
    if width is not None:
        text = wrap(text, width)
    print(paint(text) if uses_colour() else text, flush=True)


def find_width() -> int | None:
    """Return the columns of the terminal; None for a file or pipe."""
    if not sys.stdout.isatty():
        return None
    return max(shutil.get_terminal_size().columns, NARROWEST)


def uses_colour() -> bool:
    """Return whether standard output shows colours, and the user wants them."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or sys.stdout.isatty()


def wrap(text: str, width: int) -> str:
    """Wrap the lines that are longer than `width`, with a hanging indent.

    A line of a table continues below its last column. Paragraphs that are wrapped to a larger width
    are joined before. Rows of Markdown tables stay whole.
    """
    lines: list[str] = []
    for line in _join_paragraphs(text.splitlines(), width):
        lines += [line] if line.startswith("|") else _wrap_line(line, width)
    return "\n".join(lines)


def paint(text: str) -> str:
    """Colour states, and make headings and warnings bold."""
    lines = text.splitlines()
    painted = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if warning := re.fullmatch(r"\*\*(.*)\*\*", line):
            painted.append(f"{RED}{warning[1]}{RESET}")
        elif _is_heading(line, following):
            painted.append(f"{BOLD}{line}{RESET}")
        else:
            painted.append(_paint_states(line))
    return "\n".join(painted)


def _is_heading(line: str, following: str) -> bool:
    """Return whether a line stands above lines that belong to it."""
    if not line or line[0] in " |" or len(line) > STUMP:
        return False
    return line.endswith(":") or following.startswith("  ")


def _paint_states(line: str) -> str:
    """Colour a state that is the first word of a line, or a whole cell of a Markdown table."""
    for state, colour in STATES.items():
        line = re.sub(rf"^{state}(?=  )", f"{colour}{state}{RESET}", line)
        line = re.sub(rf"(?<=\| ){state}(?= +\|)", f"{colour}{state}{RESET}", line)
    return line


def _join_paragraphs(lines: list[str], width: int) -> Iterator[str]:
    """Join lines that continue a line longer than `width`, so that no short rest is left of it."""
    current = ""
    for line in lines:
        if _continues(current, line, width):
            current = f"{current} {line.strip()}"
            continue
        if current:
            yield current
        # an empty line ends a paragraph, and is printed
        if not line:
            yield line
        current = line
    if current:
        yield current


def _continues(current: str, line: str, width: int) -> bool:
    """Return whether a line goes on with the sentence of the one before."""
    if not line or current.startswith("|") or len(current) < STUMP:
        return False
    if max(len(current), len(line)) <= width:
        return False
    same = _measure_indent(current) == _measure_indent(line)
    return same and not _find_columns(current) and not _find_columns(line)


def _wrap_line(line: str, width: int) -> list[str]:
    """Wrap a line with a hanging indent."""
    if len(line) <= width:
        return [line]
    columns = [start for start in _find_columns(line) if start <= 0.6 * width]
    indent = columns[-1] if columns else _measure_indent(line) + 2
    head = line[:indent] if columns else " " * _measure_indent(line)
    wrapped = textwrap.wrap(
        line[len(head) :],
        width,
        initial_indent=" " * len(head),
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    wrapped[0] = head + wrapped[0][len(head) :]
    return wrapped


def _find_columns(line: str) -> list[int]:
    """Return where the columns of a line begin, after two spaces or more."""
    return [match.end() for match in re.finditer(r"(?<=\S) {2,}(?=\S)", line)]


def _measure_indent(line: str) -> int:
    return len(line) - len(line.lstrip())
