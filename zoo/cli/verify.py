"""`zoo verify`."""

from __future__ import annotations

import argparse

from zoo.reporting.json import as_json

SUMMARY = "whether an encoding keeps the laws, and what was measured of it"
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="ENCODING|all|key=value",
        help="rope ...; axes=2 laws=[...] to=DIR, its options",
    )


def run(known: argparse.Namespace) -> None:
    from zoo.laws.report import render
    from zoo.laws.run import verify, raise_if_broken

    done = verify(known.overrides, known.plugin or [])
    if known.json:
        print(as_json({"certificates": [one.to_dict() for one in done.certificates]}))
    elif done.certificates:
        print(render(done.certificates))
    raise_if_broken(done)
