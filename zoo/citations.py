"""BibTeX entries of the papers that encodings come from."""

from __future__ import annotations

import re
from pathlib import Path

from zoo.errors import ARGUMENT, ConfigIssue, DataError, RecipeError
from zoo.registry import find_member, names
from zoo.suggestions import nearest

REFERENCES = "references.bib"  # in the folder of the encodings, of zoo or of a plug-in

ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def find_citations(name: str) -> list[str]:
    """Return the BibTeX entries of an encoding, in the order of its docstring.

    Raises:
        RecipeError: There is no such encoding, or it names no paper.
        DataError: A paper has no entry.
    """
    try:
        member = find_member("encodings", name)
    except KeyError:
        hint = nearest(name, names("encodings"))
        raise RecipeError(ConfigIssue(ARGUMENT, name, "there is no such encoding", hint)) from None

    numbers = ARXIV.findall(member.summary)
    if not numbers:
        remedy = "write arXiv:NUMBER in the first line of its file's docstring"
        raise RecipeError(ConfigIssue(str(member.path), "", "it names no paper", remedy))

    file = member.path.with_name(REFERENCES)
    entries = read_citations(file)
    for number in numbers:
        if number not in entries:
            raise DataError(f"{file}: there is no entry with eprint = {{{number}}}")
    return [entries[number] for number in numbers]


def read_citations(file: Path) -> dict[str, str]:
    """Return {arXiv number: entry} of a BibTeX file; one that is not there has no entries."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    entries = {}
    for entry in re.split(r"\n(?=@)", text):
        if found := re.search(r"eprint = \{(.+?)\}", entry):
            entries[found[1]] = entry.strip()
    return entries
