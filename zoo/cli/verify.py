"""Verify encodings against the laws: `zoo verify`."""

from __future__ import annotations

import argparse

from zoo.reporting.numbers import as_json

SUMMARY = "check encodings against the laws and report what was measured"
EXAMPLE = "zoo verify liere block=4 axes=2"
OPTIONS = (("", "zoo.laws.run:VerifyOptions"),)
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="ENCODING|all|key=value",
        help="names of encodings, options of a single encoding, or the options below",
    )


def run(known: argparse.Namespace) -> None:
    """Print the certificates; fail if a law is broken."""
    from zoo.laws.run import raise_if_broken, render, verify

    result = verify(known.overrides, known.plugin or [])
    if known.json:
        print(as_json({"certificates": [one.to_dict() for one in result.certificates]}))
    elif result.certificates:
        print(render(result.certificates))
    raise_if_broken(result)
