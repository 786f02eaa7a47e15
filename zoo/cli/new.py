"""`zoo new`: create a recipe or an encoding from a template."""

from __future__ import annotations

import argparse
import keyword
import os
import re
from pathlib import Path

from zoo import registry
from zoo.cli.commands import Command
from zoo.cli.hints import log_next, write_command
from zoo.errors import ARGUMENT, ConfigIssue, RecipeError
from zoo.suggestions import nearest

RECIPE = """\
# yaml-language-server: $schema=recipe.schema.json
# What this recipe shows, in one sentence.
#
# paper    none
# command  zoo fit {file}
# cost     not recorded yet
# number   not recorded yet
extends: vit_none
model:
  encoding: [rope_axial]
optim:
  lr: 0.001
trainer:
  max_epochs: 20
"""
ENCODING = '''\
"""A bias for near tokens, learned per head (describe yours; cite its paper as arXiv:NUMBER)."""

import torch
from torch import Tensor, nn

from zoo.attention import AttentionCall, Dims, Encoding
from zoo.registry import register


@register
class {title}(Encoding):
    """scores + gain_h exp(-(distance / width)^2), the distance between query and key"""

    part = "bias"
    shared = False
    shift_invariant = True
    axes = (1, 2, 3)

    def __init__(self, dims: Dims, *, width: float = 2.0) -> None:
        super().__init__(dims)
        self.width = width
        self.gain = nn.Parameter(torch.full((dims.heads,), 0.1))

    def modify(self, call: AttentionCall) -> AttentionCall:
        """Add the bias to the scores of query i and key j."""

        def bias(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
            distance = call.offset(b, i, j) / self.width  # [.., P]
            return self.gain[h] * torch.exp(-distance.square().sum(-1))

        return call.add_bias(bias)
'''
KINDS = ("recipe", "encoding")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("kind", metavar="|".join(KINDS))
    parser.add_argument(
        "name",
        metavar="NAME",
        help="of the recipe, or of the encoding; PACKAGE/NAME puts it into a plug-in package",
    )


def run(known: argparse.Namespace) -> None:
    """Write the file and print its path."""
    if known.kind not in KINDS:
        hint = nearest(known.kind, KINDS)
        raise _refuse(known.kind, "no such kind of file", hint)
    write = write_recipe if known.kind == "recipe" else write_encoding
    print(write(known.name))


def write_recipe(name: str) -> str:
    """Write NAME.yaml to the current folder, log the next steps and return its path."""
    name = name.removesuffix(registry.RECIPE_SUFFIX)
    if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
        raise _refuse(name, "not a name of a recipe", "use letters, digits, _ and -")
    file = Path(f"{name}{registry.RECIPE_SUFFIX}")
    _write(file, RECIPE.format(file=file))
    schema = f"{write_command('show', 'schema')} > recipe.schema.json"
    log_next(write_command("show", str(file)), schema, write_command("fit", str(file)))
    return str(file)


def write_encoding(name: str) -> str:
    """Write PACKAGE/encodings/NAME.py, as `write_recipe` does."""
    package, _, name = name.rpartition("/")
    package = package or "my_zoo"
    for word in (package, name):
        if not word.isidentifier() or keyword.iskeyword(word) or word != word.lower():
            raise _refuse(word, "not a name of a Python module", "use lower case, digits and _")
    folder = Path(package)
    file = folder / "encodings" / f"{name}.py"
    # before the registry, which refuses a plug-in whose file is not finished
    if file.exists():
        raise _refuse(str(file), "it exists already", "choose another name")
    if name in registry.names("encodings"):
        raise _refuse(name, "zoo has an encoding of this name", "choose another")
    title = "".join(part.capitalize() for part in name.split("_"))
    _write(file, ENCODING.format(title=title))

    start = folder / "__init__.py"
    if not start.exists():
        _write(start, '"""Encodings, data and recipes of my own for zoo."""\n')
    words = (name, "--plugin", package)
    log_next(write_command("verify", *words), write_command("show", *words))
    return str(file)


def _write(file: Path, text: str) -> None:
    """Write a new file. Raises RecipeError if there is one already."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        # created and claimed in one step, so that no existing file is ever overwritten
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        raise _refuse(str(file), "it exists already", "choose another name") from None
    with open(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)


def _refuse(word: str, problem: str, remedy: str) -> RecipeError:
    return RecipeError(ConfigIssue(ARGUMENT, word, problem, remedy))


COMMAND = Command(
    summary="create a recipe or encoding from a template",
    example="zoo new encoding window",
    add_arguments=add_arguments,
    run=run,
)
