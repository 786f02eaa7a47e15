"""`zoo generate`."""

from __future__ import annotations

import argparse

from zoo.reporting.json import as_json

SUMMARY = "continue a text, token by token"
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", metavar="RUN|CHECKPOINT")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="prompt=... tokens= temperature= top_k= ...",
    )


def run(known: argparse.Namespace) -> None:
    from zoo.evaluation.generate import generate

    result = generate(known.checkpoint, known.overrides, quiet=known.json)
    if known.json:
        print(as_json(result))
