"""`zoo compare`."""

from __future__ import annotations

import argparse
from pathlib import Path

from zoo.reporting.json import as_json

SUMMARY = "which encoding, or other key, is best: a controlled experiment"
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", nargs="?", metavar="RECIPE")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="encodings=[...] vary.model.depth=[4,8] seeds=3 jobs=auto ...",
    )
    parser.add_argument(
        "--from", dest="source", type=Path, metavar="DIR", help="tell anew what finished cells have"
    )
    parser.add_argument(
        "--cell", type=Path, help=argparse.SUPPRESS
    )  # how a comparison starts its own processes
    parser.add_argument("--tied", action="store_true", help=argparse.SUPPRESS)


def run(known: argparse.Namespace) -> None:
    if known.cell is not None:
        from zoo.compare.runner import run_cell

        run_cell(known.cell, known.tied)
        return
    from zoo.compare.runner import compare, rebuild
    from zoo.compare.table import table

    if known.source is not None:
        comparison, unfinished = (
            rebuild(known.source, [known.recipe, *known.overrides] if known.recipe else []),
            None,
        )
    else:
        comparison, unfinished = compare(known.recipe, known.overrides, known.plugin or [])
    print(as_json(comparison.plain()) if known.json else table(comparison))
    if unfinished is not None:
        raise unfinished
