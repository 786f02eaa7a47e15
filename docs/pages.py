"""Pages made from the code and the recipes: `python docs/pages.py` writes them, and a test holds that they are current.

Pictures that are missing are drawn; `python docs/pages.py rope fox` draws these anew, `python docs/pages.py all` every one.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import certificates
import comparison_pages
import recorded
import timed

import zoo
from zoo import registry
from zoo.attention.chain import Chain
from zoo.attention.encoding import Dims, Encoding
from zoo.bench.models import alone
from zoo.cli.explain_encoding import Sizes, choosable, counted, interpreter, parameters, sized
from zoo.config import Recipe, load, recipe_files
from zoo.diagnostics.portrait import draw
from zoo.encodings.facts import declared

DOCS = Path(__file__).parent
PICTURES = DOCS / "images" / "encodings"
HEAD = """# Encodings

Made by `python docs/pages.py` from the docstrings, the declared facts and the recipes. `zoo show NAME` tells the same on
the command line, in sizes of your own, with the time that a layer takes on your machine.

"""
FACTS = f"""
Parameters are those of a model of {Sizes().depth} layers, width {Sizes().dim} and {Sizes().heads} heads, trained on 512
tokens, or on patches 14 by 14 where one axis is not accepted. *Fused* says how attention is computed, under a causal
mask where there is one axis: with nothing but q, k and v; with factors that ride on q and k; with a bias for each pair
(FlexAttention on a GPU, chunks of queries elsewhere); or over whole rows of scores, in chunks too. Decoding with a cache is
exact for all that run under a causal mask.

| encoding | axes | relative | needs a causal mask | layers | coordinates | parameters | fused |
|---|---|---|---|---|---|---|---|
"""
READING = """
## How to read the pictures

They are measured, not drawn from the formula: tokens are passed through the encoding and a layer whose projections are the
identity, in float64 and with a fixed seed, and what has something to show is shown.

- *Equal tokens* are all one random vector, of which the score with itself is 1 without an encoding. Whatever their scores and
  weights differ by is the work of the encoding. A line is a mean over sixteen such vectors, a band the middle 80 % of them.
- *Bias on scores* is what is left when queries and keys are zero, *of random tokens* where the bias depends on the tokens.
- *Causal weights* are relative to the largest of their row, so that a row is all yellow where every key weighs the same.
- *Turn of each pair of channels*: the angles by which one step turns queries and keys, found by turning unit vectors. On
  an image each pair of channels has an angle for a row and one for a column, a *wave vector*, if the turns commute.
- *Scores of the centre with all* show an image of 15 by 15 patches; the square is the query.
- Parameters are those that an encoding starts with. Where they hardly tell, as in tables of small random numbers, all are
  moved at random, and the picture says so.
"""


def pages() -> dict[Path, str]:
    """{path: text} of all pages that are made."""
    recipes = {name: load(name) for name in recipe_files()}
    names = zoo.encoding_names()
    found = {DOCS / "encodings.md": index(names), DOCS / "results.md": recorded.results(recipes)}
    found[DOCS / "overview.md"] = comparison_pages.write_overview()
    found[DOCS / "conformance.md"] = certificates.conformance(DOCS / "conformance")
    found |= {
        DOCS / "speed.md": timed.speed(DOCS / "speed.md"),
        **comparison_pages.write_question_pages(),
    }
    return found | {DOCS / "encodings" / f"{name}.md": page(name, recipes) for name in names}


def index(names: Sequence[str]) -> str:
    """All encodings: a line each, their facts, and how their pictures are read."""
    told = registry.summaries("encodings")
    lines = [
        "| encoding | |",
        "|---|---|",
        *(f"| {_link(name)} | {_prose(told[name])} |" for name in names),
    ]
    return HEAD + "\n".join(lines) + "\n" + FACTS + "\n".join(map(_facts, names)) + "\n" + READING


def _link(name: str) -> str:
    return f"[{name}](encodings/{name}.md)"


def _facts(name: str) -> str:
    cls = zoo.encoding_class(name)
    dims = sized(Sizes(), cls)
    shared, layers = parameters(alone(cls), dims)
    told = [
        _link(name),
        ", ".join(map(str, cls.axes)),
        "yes" if cls.shift_invariant else "no",
        "yes" if cls.causal_only else "no",
        "one for all" if cls.shared else "one each",
        cls.coordinates,
        f"{shared + sum(layers):,}",
        interpreter(alone(cls), dims, "cuda")[1],
    ]
    return f"| {' | '.join(told)} |"


def page(name: str, recipes: Mapping[str, Recipe]) -> str:
    """One encoding: what it does, its options, facts and parameters, and what was recorded with it."""
    cls = zoo.encoding_class(name)
    formula, _, rest = (inspect.getdoc(cls) or "").partition("\n\n")
    about = _prose(inspect.getdoc(sys.modules[cls.__module__]) or "")
    picture = f"[![What {name} does](../images/encodings/{name}.png)](../encodings.md#how-to-read-the-pictures)"
    lines = [
        f"# {name}",
        "",
        about,
        "",
        _code(formula),
        "",
        *([_prose(rest), ""] if rest else []),
        picture,
        "",
    ]
    using = [recipe for recipe, found in recipes.items() if name in _named(found)]
    parts = (_options(cls), _declared(cls), _parameters(cls), _recipes(sorted(using)))
    return "\n".join([*lines, *(line for part in parts for line in part)])


def _named(recipe: Recipe) -> list[str]:
    return [entry.name for entry in recipe.model.options["encoding"]]


def _options(cls: type[Encoding]) -> Iterator[str]:
    yield from ("## Options", "", "| option | value |", "|---|---|")
    yield from (f"| `{key}` | {told} |" for key, told in choosable(cls).items())
    yield ""


def _declared(cls: type[Encoding]) -> Iterator[str]:
    yield from ("## Facts", "", "| fact | |", "|---|---|")
    yield from (f"| {key} | {told} |" for key, told in declared(cls).items())
    yield ""


def _parameters(cls: type[Encoding]) -> Iterator[str]:
    """Names and shapes in the first layer, and numbers of all."""
    dims = sized(Sizes(), cls)
    made = [*Chain.of(zoo.encoding(alone(cls), dims))][-1].named_parameters()
    rows = [
        f"| `{name}` | {' x '.join(map(str, value.shape)) or 'one number'} |"
        for name, value in made
    ]
    yield from ("## Parameters and cost", "")
    if rows:
        yield from ("| parameter | shape |", "|---|---|", *rows, "")
    yield f"Parameters of a model of {_sizes(dims)}: {counted(alone(cls), dims)}."
    devices = {device: interpreter(alone(cls), dims, device) for device in ("cpu", "cuda")}
    how = ", ".join(f"`{how}` on {device} ({why})" for device, (how, why) in devices.items())
    yield from ("", f"Attention is computed by {how}.", "")


def _sizes(dims: Dims) -> str:
    tokens = " by ".join(map(str, dims.sizes))
    return f"{dims.depth} layers, width {dims.dim} and {dims.heads} heads, for {tokens} tokens"


def _recipes(names: Sequence[str]) -> Iterator[str]:
    yield from ("## Recipes", "")
    if not names:
        yield from ("None yet.", "")
        return
    yield from ("| recipe | | recorded | elsewhere |", "|---|---|---|---|")
    for name in names:
        head = recorded.head(recipe_files()[name])
        yield f"| `{name}` | {head['claim']} | {head['number']} | {head.get('lengths', '')} |"
    yield ""


def _code(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _prose(text: str) -> str:
    """A docstring's text as Markdown: what is not between backticks is taken as it stands, papers are linked."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*<])", r"\\\1", part) for part in parts[::2]]
    return re.sub(r"arXiv:(\d+\.\d+)", r"[arXiv:\1](https://arxiv.org/abs/\1)", "`".join(parts))


def pictures(anew: Sequence[str]) -> None:
    """Draw the pictures that are missing, and those of encodings that are named."""
    PICTURES.mkdir(exist_ok=True)
    for name in zoo.encoding_names():
        path = PICTURES / f"{name}.png"
        if name in anew or "all" in anew or not path.exists():
            draw(alone(zoo.encoding_class(name)), path)
            print(path.relative_to(DOCS))


if __name__ == "__main__":
    (DOCS / "encodings").mkdir(exist_ok=True)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
    pictures(sys.argv[1:])
