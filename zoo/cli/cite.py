"""`zoo cite`: the papers of encodings as BibTeX.

The docstring of an encoding names its papers by their arXiv numbers; references.bib, beside the
encodings of zoo or of a plug-in, has an entry for each.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from zoo import registry
from zoo.errors import ConfigIssue, DataError, RecipeError

SUMMARY = "print the papers of encodings as BibTeX"
EXAMPLE = "zoo cite rope comrope_ld"
FILE = "references.bib"
ARXIV = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("encodings", nargs="+", metavar="ENCODING")


def run(known: argparse.Namespace) -> None:
    """Print each entry once."""
    entries = [entry for name in known.encodings for entry in find_entries(name)]
    print("\n\n".join(dict.fromkeys(entries)))


def find_entries(name: str) -> list[str]:
    """Return the BibTeX entries of an encoding, in the order of its docstring.

    Raises:
        RecipeError: There is no such encoding, or it names no paper.
        DataError: A paper has no entry.
    """
    try:
        member = registry.find_member("encodings", name)
    except KeyError:
        hint = registry.nearest(name, registry.names("encodings"))
        raise RecipeError(
            ConfigIssue("command line", name, "there is no such encoding", hint)
        ) from None

    numbers = ARXIV.findall(member.summary)
    if not numbers:
        remedy = "write arXiv:NUMBER in the first line of its file's docstring"
        raise RecipeError(ConfigIssue(str(member.path), "", "it names no paper", remedy))

    file = member.path.with_name(FILE)
    entries = read_entries(file)
    for number in numbers:
        if number not in entries:
            raise DataError(f"{file}: there is no entry with eprint = {{{number}}}")
    return [entries[number] for number in numbers]


def read_entries(file: Path) -> dict[str, str]:
    """Return {arXiv number: entry} of a BibTeX file; one that is not there has no entries."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    entries = {}
    for entry in re.split(r"\n(?=@)", text):
        if found := re.search(r"eprint = \{(.+?)\}", entry):
            entries[found[1]] = entry.strip()
    return entries
