"""`zoo diff`."""

from __future__ import annotations

import argparse

from zoo.reporting.json import as_json

SUMMARY = "what differs between two recipes once they are resolved"
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("one", metavar="RECIPE|RUN|CHECKPOINT")
    parser.add_argument("other", metavar="RECIPE|RUN|CHECKPOINT")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes of both")


def run(known: argparse.Namespace) -> None:
    from zoo.cli.diff_recipes import diff, table

    result = diff(known.one, known.other, known.overrides)
    print(as_json(result) if known.json else table(result))
