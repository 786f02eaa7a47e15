"""Export trained models to other formats: `zoo export`."""

from __future__ import annotations

import argparse

from zoo.reporting.numbers import as_json
from zoo.utils import escape_text

SUMMARY = "export a trained model to a format that other programs read"
EXAMPLE = "zoo export runs/lm_rope/latest to=hf FOLDER"
OPTIONS = (("", "zoo.formats.export:ExportOptions"),)
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "checkpoint",
        metavar="RUN|CHECKPOINT",
        help="a run directory, RUN/last, RUN/best or a checkpoint file",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="FOLDER|key=value",
        help="the folder to write, the options below, and keys of the recipe",
    )


def run(known: argparse.Namespace) -> None:
    """Write the folder and print its files."""
    from zoo.formats.export import export

    result = export(known.checkpoint, known.overrides)
    files = ", ".join(result["files"])
    print(as_json(result) if known.json else escape_text(f"{result['folder']}: {files}"))
