"""`zoo eval`."""

from __future__ import annotations

import argparse

from zoo.reporting.json import as_json

SUMMARY = "measure a checkpoint"
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="RUN|CHECKPOINT")
    parser.add_argument("overrides", nargs="*", metavar="key=value")


def run(known: argparse.Namespace) -> None:
    from zoo.evaluation.evaluate import evaluate
    from zoo.evaluation.report import table

    result = evaluate(known.checkpoint, known.overrides, known.words)
    if result:
        print(as_json(result) if known.json else table(result))
