"""Explain in plain words why text cannot be read as YAML: the line, the problem and a remedy."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import yaml

CONFLICT = re.compile(r"^(<<<<<<<|=======|>>>>>>>|\|\|\|\|\|\|\|)( |$)", re.MULTILINE)
MARKS = (
    (b"\xff\xfe\0\0", "UTF-32 text"),
    (b"\0\0\xfe\xff", "UTF-32 text"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
    (b"PK\x03\x04", "an archive, as checkpoints are"),
    (b"\x1f\x8b", "compressed"),
    (b"\x89PNG", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"%PDF", "a PDF"),
)
"""What files begin with that are no text in UTF-8."""


class YamlProblem(NamedTuple):
    """The reason why text is no YAML.

    Attributes:
        line: The line, counted from 1.
        problem: What is wrong.
        remedy: What would be right.
    """

    line: int
    problem: str
    remedy: str = ""


class _Case(NamedTuple):
    """A kind of error of the parser.

    Attributes:
        pattern: What its message matches.
        problem: What is wrong; fields are the groups of the pattern, `start`, the line where what
            it parses begins, and `open` and `close`, the brackets of a list or mapping.
        remedy: What would be right.
        is_at_start: Whether the line at fault is the one where it begins.
    """

    pattern: str
    problem: str
    remedy: str
    is_at_start: bool = False


CASES: Sequence[_Case] = (
    _Case(
        r"found character '\\t' that cannot start",
        "a tab, where YAML takes spaces",
        "indent with spaces",
    ),
    _Case(
        r"found character '(?P<sign>.+)' that cannot start",
        "a string that begins with {sign}",
        "put it in quotes",
    ),
    _Case(
        r"could not find expected ':'",
        "a line that is no `key: value`",
        "write a colon and a space after the key",
        is_at_start=True,
    ),
    _Case(
        r"quoted scalar, found unexpected end of stream",
        "a quotation mark that is not closed",
        "close it",
        is_at_start=True,
    ),
    _Case(
        r"mapping values are not allowed",
        "a colon where no key can be: it is indented deeper than the keys beside it, or one of two "
        "on the line",
        "align it with them, or put a string with a colon in quotes",
    ),
    _Case(
        r"block mapping.*but found '<(scalar|alias|anchor)>'",
        "something after the end of a string in quotes",
        "put the whole text in quotes, and write '' for a ' in it",
    ),
    _Case(
        r"expected <block end>",
        "indented otherwise than the lines above",
        "align it with the keys or dashes beside it",
    ),
    _Case(
        r"while parsing a flow .*(expected ',' or|did not find|expected the node)",
        "the {open} of line {start} is not closed",
        "close it with {close}, and separate what is in it by commas",
    ),
    _Case(
        r"found undefined alias '(?P<name>.*)'",
        "*{name} repeats an anchor &{name}, and there is none above",
        "put a string that begins with * in quotes",
    ),
    _Case(
        r"alias inside its own anchor",
        "an alias inside its own anchor, which would never end",
        "write the value out",
    ),
    _Case(
        r"(?P<tag>the tag .* is refused, a recipe is plain data)",
        "{tag}",
        "write the value itself; files are named in `extends`",
    ),
    _Case(
        r"expected a single document",
        "a second document begins here, after ---",
        "keep one in each file",
    ),
)
"""Messages of the parser, the first that matches."""


def explain_error(text: str, error: yaml.MarkedYAMLError) -> YamlProblem:
    """Explain an error of the parser in its text."""
    # first, as the parser would complain about one of its markers
    if conflict := CONFLICT.search(text):
        line = text.count("\n", 0, conflict.start()) + 1
        hint = "keep one of both sides, and remove the lines of <, = and >"
        return YamlProblem(line, "not YAML: a merge conflict of git that was not resolved", hint)

    mark = error.problem_mark or error.context_mark
    line = mark.line + 1 if mark else 1
    # a bracket that is never closed is wrong where it opens, not where the parser gives up
    start = error.context_mark.line + 1 if error.context_mark else line
    message = ", ".join(filter(None, (error.context, error.problem)))
    lines = text.splitlines()
    if "flow" in message and any("${" in content for content in lines[start - 1 : line]):
        return YamlProblem(start, "bad YAML: a bare ${...} within brackets", "put it in quotes")
    brackets = "[]" if "sequence" in message else "{}"
    for case in CASES:
        if match := re.search(case.pattern, message):
            placeholders = {**match.groupdict(), "start": start, "open": brackets[0]}
            explanation = case.problem.format(**placeholders)
            hint = case.remedy.format(close=brackets[1])
            return YamlProblem(
                start if case.is_at_start else line, f"bad YAML: {explanation}", hint
            )
    return YamlProblem(line, f"bad YAML: {message}")


def explain_character(text: str, error: yaml.reader.ReaderError) -> YamlProblem:
    """Explain a character that no text may hold."""
    line = text.count("\n", 0, error.position) + 1
    code = error.character if isinstance(error.character, int) else ord(error.character)
    message = f"not text: it holds a control character, of number {code}"
    return YamlProblem(line, message, "remove it, or name a text file")


def explain_bytes(data: bytes, position: int) -> YamlProblem:
    """Explain bytes that are no text in UTF-8, the first of them at `position`."""
    line = data.count(b"\n", 0, position) + 1
    for start, kind in MARKS:
        if data.startswith(start):
            is_text = kind.endswith("text")
            hint = "save it as UTF-8" if is_text else "name a YAML file, such as RUN/recipe.yaml"
            return YamlProblem(1, f"not UTF-8 text but {kind}", hint)
    return YamlProblem(line, "not UTF-8 text", "save it as UTF-8")
