"""`zoo schema`: the JSON schema of recipes, for editors."""

from __future__ import annotations

import argparse
import json

SUMMARY = "print the JSON schema of recipes, by which editors complete and check them"
EXAMPLE = "zoo schema > recipe.schema.json"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command, which has none."""


def run(known: argparse.Namespace) -> None:
    """Print the schema."""
    from zoo.config.json_schema import build_schema

    print(json.dumps(build_schema(), indent=1))
