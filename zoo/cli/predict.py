"""`zoo predict`."""

from __future__ import annotations

import argparse

from zoo.reporting.json import as_json

SUMMARY = "what a trained model says of files and folders"
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="RUN|CHECKPOINT")
    parser.add_argument(
        "overrides", nargs="*", metavar="PATH|key=value", help="images or texts; top=3, ..."
    )


def run(known: argparse.Namespace) -> None:
    from zoo.evaluation.predict import predict

    result = predict(known.checkpoint, known.overrides, quiet=known.json)
    if known.json:
        print(as_json(result))
