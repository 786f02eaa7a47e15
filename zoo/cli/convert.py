"""Convert published weights: `zoo convert`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.errors import ARGUMENT, ConfigIssue, RecipeError
from zoo.reporting.numbers import as_json
from zoo.utils import escape_text

if TYPE_CHECKING:
    from zoo.config import Edit

SUMMARY = "convert published weights to a run with a recipe of its own"
EXAMPLE = "zoo convert SmolLM2-135M to=smollm"
CONVERT = "zoo.formats.convert:ConvertOptions"
OPTIONS = (("", CONVERT),)
JSON = True


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument(
        "source",
        type=Path,
        metavar="FOLDER|FILE",
        help="a folder with config.json and safetensors: Llama, Mistral, Qwen2, Qwen3, Phi-3, "
        "SmolLM3, OLMo 2 and 3, Gemma 2 and 3, Cohere 2, GPT-2, BERT, ViT, DINOv3, or of "
        "zoo export to=hf; or a file: GGUF, or RoPE-ViT",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="the options below, and keys of the recipe",
    )


def read(known: argparse.Namespace) -> tuple[list[Edit], dict[str, Any]]:
    """Return the overrides and the options."""
    from zoo.config import check_edits
    from zoo.config.command_line import parse_options, parse_overrides, split_words

    for word in known.overrides:
        if "=" not in word and word[:1] not in "~+-":
            problem = "not an override, nor is a run directory named so"
            raise RecipeError(ConfigIssue(ARGUMENT, "", f"{word!r}: {problem}", f"write to={word}"))
    own, words = split_words(known.overrides, [CONVERT])
    (options,) = parse_options(own, [CONVERT])
    edits = parse_overrides(words)
    check_edits(edits)
    return edits, options


def list_packages(known: argparse.Namespace) -> tuple[str, ...]:
    """Return the packages that read the weights."""
    source: Path = known.source
    suffixes = {path.suffix for path in (source.iterdir() if source.is_dir() else [source])}
    # a folder with both is read as safetensors
    if ".safetensors" in suffixes:
        return ("safetensors",)
    return ("gguf",) if ".gguf" in suffixes else ()


def run(known: argparse.Namespace) -> None:
    """Write the run and print where it is."""
    from zoo.api.tools import convert

    edits, options = read(known)
    result = convert(known.source, edits, verbose=None, **options)
    shown = escape_text(f"{result.run}: {result.weights} weights")
    print(as_json(result.to_dict()) if known.json else shown)
