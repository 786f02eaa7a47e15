"""`zoo bench`."""

from __future__ import annotations

import argparse

from zoo.errors import Stopped
from zoo.reporting.numbers import as_json

SUMMARY = "measure time and memory of encodings on this machine, side by side"
EXAMPLE = "zoo bench rope alibi kerple+dape shape=lm_small measures=[train,decode] rounds=10"
OPTIONS = (("", "zoo.benchmark.runner:BenchOptions"),)
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `zoo bench`."""
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="ENCODING|key=value",
        help="encodings, several joined by +, all by default; and options",
    )


def run(known: argparse.Namespace) -> None:
    """Measure, and print the table or JSON."""
    from zoo.benchmark.report import format_result
    from zoo.benchmark.result import BenchResult
    from zoo.benchmark.runner import run_bench

    def show(result: BenchResult) -> None:
        print(as_json(result.plain()) if known.json else format_result(result), flush=True)

    _, stopped = run_bench(known.overrides, known.plugin or [], show)
    if stopped is not None:
        raise Stopped(stopped, f"stopped by {stopped.name}; what was measured before is written")
