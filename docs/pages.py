"""Pages made from the code and the recipes: `python docs/pages.py` writes them, and a test holds that they are current."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

import zoo
from zoo.attention.attend import choose
from zoo.attention.chain import Chain
from zoo.attention.context import Context
from zoo.attention.encoding import Dims, Encoding
from zoo.attention.layer import SelfAttention
from zoo.attention.tokens import Tokens
from zoo.recipe import load, recipe_files

ROOT = Path(__file__).parent.parent
SIZES = {"dim": 512, "heads": 8, "depth": 6}
HEAD = f"""# Encodings

Made by `python docs/pages.py` from the docstrings, the declared facts and the recipes.

Parameters are those of a model of {SIZES["depth"]} layers, width {SIZES["dim"]} and {SIZES["heads"]} heads, trained on 512
tokens, or on patches 14 by 14 where one axis is not accepted. *Fused* says how attention is computed, under a causal
mask where there is one axis: with nothing but q, k and v; with factors that ride on q and k; with a bias for each pair
(FlexAttention on a GPU, a mask on a CPU); or over whole rows of scores, which no fused kernel does. Decoding with a cache is
exact for all that run under a causal mask.
"""


def encodings() -> str:
    """The page of all encodings, one section each."""
    used = _used()
    return "\n".join([HEAD, *(line for name in zoo.encoding_names() for line in _section(name, used.get(name, [])))])


def _section(name: str, recipes: list[str]) -> Iterator[str]:
    cls = zoo.encoding_class(name)
    about, _, rest = (inspect.getdoc(cls) or "").partition("\n\n")
    yield from (f"## {name}", "", inspect.getdoc(sys.modules[cls.__module__]) or "", "", _code(about), "")
    if rest:
        yield from (" ".join(rest.split()), "")
    count, fused = _cost(name, cls)
    named = ", ".join(f"`{one}`" for one in recipes) or "none yet"
    yield from (f"{_facts(cls)}. Parameters: {count:,}. Fused: {fused}. Recipes: {named}.", "")


def _code(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _facts(cls: type[Encoding]) -> str:
    told = [
        "One module for all layers" if cls.shared else "One module per layer",
        f"{' or '.join(map(str, cls.axes))} {'axis' if cls.axes == (1,) else 'axes'}",
        f"coordinates: {cls.coordinates}",
        "relative" if cls.relative else "not relative",
        *(["needs a causal mask"] if cls.causal else []),
        *(["takes up the biases of the links before it"] if cls.absorbs else []),
        *(["handles tokens without a place itself"] if cls.unplaced else []),
    ]
    return "; ".join(told)


def _cost(name: str, cls: type[Encoding]) -> tuple[int, str]:
    """Parameters of all layers, and how the call of the first is computed."""
    axes = 1 if 1 in cls.axes else min(cls.axes)
    shape = (512,) if axes == 1 else (14,) * axes

    def made(layer: int) -> Encoding:
        at = Dims(SIZES["dim"], SIZES["heads"], axes, shape, layer, SIZES["depth"])
        return zoo.encoding(["alibi", name] if cls.absorbs else name, at)

    layers = [made(layer) for layer in range(1 if cls.shared else SIZES["depth"])]
    count = sum(p.numel() for encoding in layers for p in encoding.parameters())
    return count, _fused(Chain.of(layers[0]), axes)


def _fused(chain: Chain, axes: int) -> str:
    tokens = Tokens.at(torch.zeros(1, 4, SIZES["dim"]), torch.arange(4.0)[:, None].expand(4, axes), ordered=axes == 1)
    layer = SelfAttention(chain.dims, causal=axes == 1)
    terms = layer.describe(chain.embed(tokens), chain, Context())[1]
    return choose(terms, "cuda")[1]


def _used() -> dict[str, list[str]]:
    """{encoding: recipes that name it}"""
    found: dict[str, list[str]] = {}
    for recipe in recipe_files():
        for entry in load(recipe).model.options.get("encoding", ()):
            found.setdefault(entry.name, []).append(recipe)
    return found


def results() -> str:
    """What the heads of all recipes record, a table for each source of data."""
    lines = ["# Recorded results", "", "Made by `python docs/pages.py` from the heads of the recipes.", ""]
    by_data: dict[str, list[str]] = {}
    for name in sorted(recipe_files()):
        by_data.setdefault(load(name).data.name, []).append(name)
    return "\n".join([*lines, *(line for data, names in sorted(by_data.items()) for line in _results(data, names))])


def _results(data: str, names: list[str]) -> Iterator[str]:
    heads = {name: _head(recipe_files()[name]) for name in names}
    conditions = {number.partition(" (")[2].rstrip(")") for number in (head["number"] for head in heads.values())}
    yield from (f"## {data}", "", "; ".join(sorted(filter(None, conditions))), "")
    yield from ("| recipe | encoding | recorded | elsewhere | cost |", "|---|---|---|---|---|")
    for name, head in heads.items():
        encodings = " + ".join(entry.name for entry in load(name).model.options["encoding"])
        number, lengths = head["number"].partition(" (")[0], head.get("lengths", "")
        yield f"| `{name}` | {encodings} | {number} | {lengths} | {head['cost']} |"
    yield ""


def _head(path: Path) -> dict[str, str]:
    """The lines of a recipe's opening comment by their first word."""
    head = [line.lstrip("# ") for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    return {line.split()[0]: " ".join(line.split()[1:]) for line in head[1:] if line}


def lengths(path: Path) -> None:
    """Draw the recorded loss of the recipes of language against the length of windows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained", dpi=150)
    axes = figure.subplots()
    curves = {}
    for name, recipe in recipe_files().items():
        points = re.findall(r"([\d.]+) at (\d+)", _head(recipe).get("lengths", "")) if name.startswith("lm_") else []
        if len(points) > 1:
            curves[name.removeprefix("lm_")] = [(int(size), float(loss)) for loss, size in points]
    below = 0.0
    for name, points in sorted(curves.items(), key=lambda curve: curve[1][-1][1]):
        (line,) = axes.plot(*zip(*points, strict=True), marker="o", markersize=3, linewidth=1.2)
        size, loss = points[-1]
        below = max(loss, below + 0.045)  # so that names do not lie on each other
        axes.annotate(name, (size, loss), (size * 1.06, below), fontsize=8, color=line.get_color(), va="center")
    axes.axvline(128, color="#999999", linestyle="--", linewidth=1)
    axes.set(xlabel="length of windows in tokens (trained at 128)", ylabel="test loss in nats per character")
    axes.set_xscale("log", base=2)
    axes.set_xticks([128, 256, 512, 1024], ["128", "256", "512", "1024"])
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


PAGES = {ROOT / "docs" / "encodings.md": encodings, ROOT / "docs" / "results.md": results}

if __name__ == "__main__":
    for path, page in PAGES.items():
        path.write_text(page(), encoding="utf-8")
        print(path.relative_to(ROOT))
    lengths(ROOT / "docs" / "images" / "lengths.png")
