"""`zoo fit`."""

from __future__ import annotations

import argparse
from pathlib import Path

from zoo.reporting.json import as_json

SUMMARY = "train a recipe, then test its best checkpoint"
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="this run's own directory")
    parser.add_argument(
        "--resume", default="never", metavar="auto|never|PATH", help="go on from a checkpoint"
    )


def run(known: argparse.Namespace) -> None:
    from zoo import config

    # a wrong recipe is reported before lightning and the data libraries are imported
    config.load(known.recipe, known.overrides)
    from zoo.run.fit import fit

    result = fit(known.recipe, known.overrides, known.run_dir, known.resume, known.words)
    if known.json and result:
        print(as_json(result))
