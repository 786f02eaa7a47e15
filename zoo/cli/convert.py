"""Convert published weights: `zoo convert`."""

from __future__ import annotations

import argparse
from pathlib import Path

from zoo.reporting.numbers import as_json

SUMMARY = "convert published weights to a checkpoint of a recipe"
EXAMPLE = "zoo convert rope_vit.pth vit_s16_rope_mixed_imagenet data.path=FOLDER to=rope_vit.ckpt"
OPTIONS = (("", "zoo.convert.convert:ConvertOptions"),)
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("file", type=Path, metavar="FILE", help="the published weights")
    parser.add_argument("recipe", metavar="RECIPE", help="the recipe of the same model")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="the options below, and keys of the recipe",
    )


def run(known: argparse.Namespace) -> None:
    """Write the checkpoint and print where it is."""
    from zoo.convert.convert import convert

    result = convert(known.file, known.recipe, known.overrides)
    print(as_json(result) if known.json else "{checkpoint}: {weights} weights".format(**result))
