"""`zoo diagnose`."""

from __future__ import annotations

import argparse

SUMMARY = "a page about what the attention of trained models does"
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "overrides", nargs="*", metavar="RUN|key=value", help="runs or checkpoints; samples=4, ..."
    )


def run(known: argparse.Namespace) -> None:
    from zoo.evaluation.diagnose import diagnose

    path = diagnose(known.overrides)
    print(path.with_suffix(".json").read_text(encoding="utf-8") if known.json else path)
