"""`zoo bench`."""

from __future__ import annotations

import argparse

from zoo.errors import Stopped
from zoo.reporting.json import as_json

SUMMARY = "time and memory of encodings on this machine, beside each other"
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="ENCODING|key=value",
        help="rope kerple+dape ...; rounds=5 measures=[train,decode] ...",
    )
    parser.add_argument(
        "--shape",
        default="lm_small",
        metavar="NAME",
        help="vit_s, vit_b, lm_small, lm_base, lm_wide, ...",
    )
    parser.add_argument("--device", default="auto", metavar="auto|cpu|cuda")
    parser.add_argument(
        "--lengths", metavar="N,N,...", help="tokens of texts, or pixels along a side of images"
    )


def run(known: argparse.Namespace) -> None:
    from zoo.bench.bench import bench
    from zoo.bench.table import table

    result, stopped = bench(
        known.overrides, known.shape, known.device, known.lengths, known.plugin or []
    )
    print(as_json(result.plain()) if known.json else table(result))
    if stopped is not None:
        raise Stopped(
            stopped, f"stopped by {stopped.name}; what was done before is written, and says so"
        )
