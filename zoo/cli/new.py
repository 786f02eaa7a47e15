"""`zoo new`: create a recipe, an encoding or a mixer from a template."""

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
MIXER = '''\
"""A fading sum of earlier tokens, by channel (describe yours; cite its paper as arXiv:NUMBER)."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from zoo.attention import Dims, upcast
from zoo.attention.mixer import Mixer, MixerStream
from zoo.registry import register


@register
class {title}(Mixer):
    """s_t = sigmoid(keep) s_(t-1) + W_in x_t;   y_t = W_out s_t

    The state s [D] is 0 at the start of a document.

    Args:
        dims: The sizes of the layer.
        keep: Initial value of `keep`, a number for each channel.
    """

    no_export_reason = "its tokens follow each other in a loop as long as the text"

    def __init__(self, dims: Dims, *, keep: float = 2.0) -> None:
        super().__init__(dims)
        self.in_proj = nn.Linear(dims.dim, dims.dim, bias=False)
        self.keep = nn.Parameter(torch.full((dims.dim,), keep))
        self.out_proj = nn.Linear(dims.dim, dims.dim, bias=False)

    @property
    def output_projection(self) -> nn.Module:
        """The layer that ends the residual branch."""
        return self.out_proj

    def mix(
        self, stream: MixerStream, past: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Follow the tokens one by one; a scan over chunks would be faster."""
        x, factor = upcast(self.in_proj(stream.x)), upcast(self.keep).sigmoid()  # [B, N, D], [D]
        state, segment = past.get("state", torch.zeros_like(x[:, 0])), stream.segment
        outputs = []
        for t in range(x.shape[1]):
            if segment is not None:
                # The last token of earlier calls has number 0.
                before = segment[:, t - 1] if t else torch.zeros_like(segment[:, 0])
                state = state.masked_fill((segment[:, t] > before)[:, None], 0)
            after = factor * state + x[:, t]
            if stream.is_real is not None:
                # Padding leaves the state as it is.
                after = torch.where(stream.is_real[:, t, None], after, state)
            state = after
            outputs.append(state)
        return self.out_proj(torch.stack(outputs, 1).to(stream.x.dtype)), {{"state": state}}
'''
# By kind: the folder of a package, and the template.
MEMBERS = {"encoding": ("encodings", ENCODING), "mixer": ("mixers", MIXER)}
KINDS = ("recipe", *MEMBERS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("kind", metavar="|".join(KINDS))
    parser.add_argument(
        "name",
        metavar="NAME",
        help="of the recipe, encoding or mixer; PACKAGE/NAME puts it into a plug-in package",
    )


def run(args: argparse.Namespace) -> None:
    """Write the file and print its path."""
    if args.kind not in KINDS:
        hint = nearest(args.kind, KINDS)
        raise _refuse(args.kind, "no such kind of file", hint)
    is_recipe = args.kind == "recipe"
    print(write_recipe(args.name) if is_recipe else write_member(args.kind, args.name))


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


def write_member(kind: str, name: str) -> str:
    """Write the file of an encoding or a mixer in a package, as `write_recipe` does.

    Args:
        kind: One of MEMBERS.
        name: NAME or PACKAGE/NAME.

    Raises:
        RecipeError: The name cannot be, is taken, or the file exists already.
    """
    kinds, template = MEMBERS[kind]
    package, _, name = name.rpartition("/")
    package = package or "my_zoo"
    for word in (package, name):
        if not word.isidentifier() or keyword.iskeyword(word) or word != word.lower():
            raise _refuse(word, "not a name of a Python module", "use lower case, digits and _")
    folder = Path(package)
    file = folder / kinds / f"{name}.py"
    # before the registry, which refuses a plug-in whose file is not finished
    if file.exists():
        raise _refuse(str(file), "it exists already", "choose another name")
    for other_kind, (members, _) in MEMBERS.items():
        # `zoo show NAME` finds either
        if name in registry.names(members):
            article = "an" if other_kind == "encoding" else "a"
            raise _refuse(name, f"zoo has {article} {other_kind} of this name", "choose another")
    title = "".join(part.capitalize() for part in name.split("_"))
    _write(file, template.format(title=title))

    start = folder / "__init__.py"
    if not start.exists():
        _write(start, '"""Encodings, data and recipes of my own for zoo."""\n')
    arguments = (name, "--plugin", package)
    show = write_command("show", *arguments)
    if kind == "encoding":
        log_next(write_command("verify", *arguments), show)
    else:
        arguments = (f"model.layer_types.linear.mixer={name}", "--plugin", package)
        log_next(show, write_command("fit", "lm_hybrid", *arguments))
    return str(file)


def _write(file: Path, content: str) -> None:
    """Write a new file. Raises RecipeError if there is one already."""
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        # created and claimed in one step, so that no existing file is ever overwritten
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    except FileExistsError:
        raise _refuse(str(file), "it exists already", "choose another name") from None
    with open(descriptor, "w", encoding="utf-8") as stream:
        stream.write(content)


def _refuse(word: str, message: str, hint: str) -> RecipeError:
    return RecipeError(ConfigIssue(ARGUMENT, word, message, hint))


COMMAND = Command(
    summary="create a recipe, encoding or mixer from a template",
    example="zoo new encoding window",
    add_arguments=add_arguments,
    run=run,
)
