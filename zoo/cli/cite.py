"""`zoo cite`: the papers of encodings as BibTeX.

The docstring of an encoding names its papers by their arXiv numbers; references.bib, beside the
encodings of zoo or of a plug-in, has an entry for each.
"""

from __future__ import annotations

import argparse

from zoo.citations import find_citations

SUMMARY = "print the papers of encodings as BibTeX"
EXAMPLE = "zoo cite rope comrope_ld"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("encodings", nargs="+", metavar="ENCODING")


def run(known: argparse.Namespace) -> None:
    """Print each entry once."""
    entries = [entry for name in known.encodings for entry in find_citations(name)]
    print("\n\n".join(dict.fromkeys(entries)))
