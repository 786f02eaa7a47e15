"""`zoo convert`."""

from __future__ import annotations

import argparse
from pathlib import Path

from zoo.reporting.json import as_json

SUMMARY = "published weights as a checkpoint of a recipe"
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("recipe", metavar="RECIPE")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument(
        "--to", type=Path, metavar="OUT", help="the checkpoint to write; else FILE as .ckpt"
    )


def run(known: argparse.Namespace) -> None:
    from zoo.convert.convert import convert

    result = convert(known.file, known.recipe, known.overrides, known.to)
    print(as_json(result) if known.json else "{checkpoint}: {weights} weights".format(**result))
