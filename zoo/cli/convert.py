"""Convert published weights: `zoo convert`."""

from __future__ import annotations

import argparse
from pathlib import Path

from zoo.reporting.numbers import as_json
from zoo.utils import escape_text

SUMMARY = "convert published weights to a run with a recipe of its own"
EXAMPLE = "zoo convert SmolLM2-135M to=smollm"
OPTIONS = (("", "zoo.formats.convert:ConvertOptions"),)
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "source",
        type=Path,
        metavar="FOLDER|FILE",
        help="a folder with config.json and safetensors: Llama, Mistral, Qwen2, Qwen3, GPT-2, "
        "BERT, ViT, DINOv3, or of zoo export to=hf; or a file: GGUF, or RoPE-ViT",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="the options below, and keys of the recipe",
    )


def run(known: argparse.Namespace) -> None:
    """Write the run and print where it is."""
    from zoo.formats.convert import convert

    result = convert(known.source, known.overrides)
    shown = escape_text("{run}: {weights} weights".format(**result))
    print(as_json(result) if known.json else shown)
