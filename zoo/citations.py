"""BibTeX entries of the papers, or the code, that encodings come from."""

from __future__ import annotations

import re
from pathlib import Path

from zoo.errors import ARGUMENT, ConfigIssue, DataError, RecipeError
from zoo.registry import find_member, names
from zoo.suggestions import nearest

REFERENCES = "references.bib"  # in the folder of the encodings, of zoo or of a plug-in

SOURCE = re.compile(r"arXiv:(\d{4}\.\d{4,5})|(github\.com/[\w./-]*\w)")
"""A paper, or what has none: code."""


def find_citations(name: str) -> list[str]:
    """Return the BibTeX entries of an encoding, in the order of its docstring.

    Raises:
        RecipeError: There is no such encoding, or it names no source.
        DataError: A source has no entry.
    """
    try:
        member = find_member("encodings", name)
    except KeyError:
        hint = nearest(name, names("encodings"))
        raise RecipeError(ConfigIssue(ARGUMENT, name, "there is no such encoding", hint)) from None

    sources = [paper or code for paper, code in SOURCE.findall(member.summary)]
    if not sources:
        remedy = "write arXiv:NUMBER in the first line of its file's docstring"
        raise RecipeError(ConfigIssue(str(member.path), "", "it names no paper", remedy))

    file = member.path.with_name(REFERENCES)
    entries = read_citations(file)
    for source in sources:
        if source not in entries:
            field = f"url = {{https://{source}}}" if "/" in source else f"eprint = {{{source}}}"
            raise DataError(f"{file}: there is no entry with {field}")
    return [entries[source] for source in sources]


def read_citations(file: Path) -> dict[str, str]:
    """Return {arXiv number or address: entry} of a BibTeX file; a missing file has no entries."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    entries = {}
    for entry in re.split(r"\n(?=@)", text):
        if found := re.search(r"(?:eprint = \{|url = \{https://)(.+?)\}", entry):
            entries[found[1]] = entry.strip()
    return entries
