"""Pages made from code, recipes and recorded files: `python docs/build/pages.py` writes them.

A test holds that they are current. Missing pictures of encodings are drawn too (`python
docs/build/pages.py rope fox` redraws these, `python docs/build/pages.py all` every one), and the
figures of recorded comparisons whose results have changed.
"""

from __future__ import annotations

import inspect
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import atlas_page
import choose_page
import claims_page
import conformance_page
import equip_types
import error_rates_page
import evidence_data
import extension_page
import import_graph
import measured_pages
import mixers_page
import play_page
import quoted_numbers
import recipe_heads
import record_figures
import release_page
from torch import Tensor

import zoo
from zoo import registry
from zoo.attention.chain import Chain
from zoo.attention.encoding import Dims, Encoding, describe_facts
from zoo.benchmark.recorded_layers import describe_recorded_layers, describe_recorded_memory
from zoo.cli.describe import (
    LAYER_TITLE,
    MEMORY_TITLE,
    Sizes,
    choose_dims,
    count_encoding_parameters,
    describe_options,
    describe_parameters,
    find_backend,
)
from zoo.config import Recipe, load, recipe_files
from zoo.diagnostics.portrait.portrait import draw_portrait
from zoo.encodings.common.chains import build_shortest_chain, format_chain

DOCS = Path(__file__).parents[1]
PICTURES = DOCS / "images" / "encodings"
FORMULAS = tomllib.loads((DOCS / "formulas.toml").read_text(encoding="utf-8"))
INDEX = """# Encodings

Made by `python docs/build/pages.py` from docstrings, declared facts and recipes. `zoo show NAME`
prints the same for sizes of your own.
[Play with them](play.html#rope): scores, pictures and formulas with numbers, as you move options.

"""
GROUP_NOTES = {
    "input": "A vector for each position is added to the token, before the first or each layer.",
    "rotation": "Queries and keys are rotated, or multiplied by waves, by their own positions.",
    "keys": "A key takes channels of the key of another token.",
    "bias": "A score gets a number, or a product with a vector, that depends on the two positions.",
    "rows": "Rows of scores are scaled, transformed, or normalized without the softmax.",
    "gates": "States of tokens choose rotations, how scores depend on offsets, or how much fades.",
    "nothing": "Only a causal mask tells the order.",
}
FACTS = f"""
## Facts

*Parameters* are counted for a model of {Sizes().depth} layers, width {Sizes().dim} and
{Sizes().heads} heads, with 512 tokens, or 14 by 14 patches for encodings that do not accept one
axis. *Attention* says what the backend has to compute, under a causal mask for text: q, k and v
alone; low-rank biases as extra channels; a bias for each pair (FlexAttention on a GPU, chunks of
queries elsewhere); or whole rows of scores, in chunks. Cached decoding is exact for every encoding
that runs under a causal mask.

| encoding | axes | shift-invariant | causal only | modules | coordinates | parameters | attention |
|---|---|---|---|---|---|---|---|
"""
READING = r"""
## How to read the formulas

Scores are those of one head. $q_i$ is the projected query of token $i$, $k_j$ and $v_j$ are the key
and value of token $j$, with $K$ channels each. $x_i$ is the state of token $i$, with $D$ channels,
and $p_i$ its coordinate, with a component $p_a$ for each axis $a$ of a grid. $s_{ij}$ is the score
that enters the softmax, $w_{ij}$ the weight that leaves it, $o_i$ the output, $h$ one of $H$ heads.
Where only $R(p)$ is given, $R(p_i)\,q_i$ takes the place of $q_i$, and $R(p_j)\,k_j$ that of $k_j$.
$\operatorname{rot}$ rotates a pair of channels by an angle, $\operatorname{blockdiag}$ is a matrix
of blocks along the diagonal, $\sigma$ the logistic function and $b$ the option `base`. The line of
code below a formula states the same with the names of options and parameters.

## How to read the pictures

The pictures are measured, not drawn from formulas: random tokens pass through the encoding and a
layer with identity projections, in float64 with a fixed seed.

- *Equal tokens* are copies of one random vector whose score with itself is 1 without an encoding.
  All differences between their scores and weights are the encoding's work. A line is the mean over
  sixteen such vectors, a band the middle 80 %.
- *Bias on scores* is what remains when queries and keys are zero, *of random tokens* if the bias
  depends on the tokens.
- *Causal weights* are relative to the largest of their row: a row is all dark if every key weighs
  the same.
- *Rotation of each pair of channels*: the angle by which one step rotates queries and keys, found
  by rotating unit vectors. On an image, commuting rotations give each pair of channels an angle per
  row and per column, a *wave vector*.
- *Scores of the centre with all* shows an image of 15 by 15 patches; the square marks the query.
- Parameters have their initial values. If these show little, as tables of small random numbers do,
  all are perturbed at random, and the picture says so.
"""


def write_pages() -> dict[Path, str]:
    """Return {path: text} of everything this script writes, the pictures of encodings aside."""
    recipes = {name: load(name) for name in recipe_files()}
    names = zoo.encoding_names()
    pages = {
        DOCS / "encodings.md": _index(names),
        DOCS / "mixers.md": mixers_page.write_mixers_page(),
        DOCS / "results.md": recipe_heads.write_results_page(recipes),
        DOCS / "conformance.md": conformance_page.write_conformance_page(DOCS / "conformance"),
        DOCS / "install.md": measured_pages.write_install_page(DOCS / "install.md"),
        DOCS / "speed.md": measured_pages.write_speed_page(DOCS / "speed.md"),
        import_graph.PICTURE: import_graph.draw_graph(import_graph.read_imports()),
    }
    pages[play_page.PAGE] = play_page.write_play_page()
    pages[DOCS / "error_rates.md"] = error_rates_page.write_error_rates_page()
    pages[DOCS / "atlas.md"] = atlas_page.write_atlas_page(DOCS / "atlas.md")
    pages[DOCS / "weights.md"] = release_page.write_weights_page(DOCS / "weights.md")
    extend = DOCS / "extend.md"
    pages[extend] = extension_page.write_extension_page(extend)
    pretrained = DOCS / "questions" / "pretrained.md"
    quotes = quoted_numbers.read_quotes()
    own = quotes.pop("docs/questions/pretrained.md")
    pages[pretrained] = measured_pages.write_pretrained_page(pretrained, own)
    pages[equip_types.PAGE] = equip_types.write_page(equip_types.read_record())
    for name_of_page, own in quotes.items():
        page = DOCS.parent / name_of_page
        text = page.read_text(encoding="utf-8")
        pages[page] = quoted_numbers.update_numbers(text, own)
    evidence = evidence_data.read_evidence()
    readme = DOCS.parent / "README.md"
    pages[readme] = choose_page.replace_results(pages[readme], evidence)
    pages |= claims_page.write_pages(evidence) | choose_page.write_pages(evidence)
    pages |= {DOCS / "encodings" / f"{name}.md": _encoding_page(name, recipes) for name in names}
    return pages


def _index(names: Sequence[str]) -> str:
    """Return docs/encodings.md: a line for each encoding, their facts, how to read pictures."""
    summaries = registry.summaries("encodings")
    lines = []
    for group, listed in registry.group_encodings().items():
        lines += [f"## {registry.GROUPS[group]}", "", GROUP_NOTES[group], ""]
        lines += ["| picture | encoding | what it does |", "|---|---|---|"]
        lines += [
            f"| [{_portrait(name)}](encodings/{name}.md) | {_link(name)} "
            f"| {escape_prose(summaries[name])} |"
            for name in listed
        ]
        lines += [""]
    table = "\n".join(lines)
    return INDEX + table + FACTS + "\n".join(map(_facts_row, names)) + "\n" + READING


def _portrait(name: str) -> str:
    """Return a small picture of an encoding, as HTML, since Markdown has no width of images."""
    address = f"images/encodings/{name}.png"
    return f'<img src="{address}" width="160" loading="lazy" alt="what {name} does">'


def _link(name: str) -> str:
    return f"[{name}](encodings/{name}.md)"


def _facts_row(name: str) -> str:
    cls = zoo.encoding_class(name)
    dims = choose_dims(Sizes(), cls)
    shared, layers = count_encoding_parameters(build_shortest_chain(cls), dims)
    cells = [
        _link(name),
        ", ".join(map(str, cls.axes)),
        "yes" if cls.shift_invariant else "no",
        "yes" if cls.causal_only else "no",
        "one for all layers" if cls.shared else "one per layer",
        cls.coordinates,
        f"{shared + sum(layers):,}",
        find_backend(build_shortest_chain(cls), dims, "cuda")[1],
    ]
    return f"| {' | '.join(cells)} |"


def _encoding_page(name: str, recipes: Mapping[str, Recipe]) -> str:
    """Return the page of one encoding: formula, options, facts, parameters and recipes."""
    cls = zoo.encoding_class(name)
    text, _, _ = (inspect.getdoc(cls) or "").partition("\n\nArgs:\n")
    formula, _, notes = text.partition("\n\n")
    about = inspect.getdoc(sys.modules[cls.__module__]) or ""
    picture = f"![What {name} does](../images/encodings/{name}.png)"

    lines = [f"# {name}", "", escape_prose(about), "", f"$$\n{FORMULAS[name].strip()}\n$$", ""]
    lines += [_indent(formula), ""]
    if notes:
        lines += [escape_prose(notes), ""]
    lines += [f"[{picture}](../encodings.md#how-to-read-the-pictures)", ""]
    lines += [f"[Play with {name}](../play.html#{name}): move its options and see its scores.", ""]

    lines += [*_options(cls), *_facts(cls), *_parameters(cls)]
    lines += _recipes(sorted(one for one, found in recipes.items() if name in _encodings_of(found)))
    return "\n".join(lines)


def _encodings_of(recipe: Recipe) -> list[str]:
    return [entry.name for entry in recipe.model.options["encoding"]]


def _options(cls: type[Encoding]) -> Iterator[str]:
    yield from ("## Options", "", "| option | value |", "|---|---|")
    for key, value in describe_options(cls).items():
        cell = value.replace("|", "\\|")
        yield f"| `{key}` | {cell} |"
    yield ""


def _facts(cls: type[Encoding]) -> Iterator[str]:
    yield from ("## Facts", "", "| fact | |", "|---|---|")
    yield from (f"| {key} | {value} |" for key, value in describe_facts(cls).items())
    yield ""


def _parameters(cls: type[Encoding]) -> Iterator[str]:
    """Yield names and shapes of the first layer's parameters, their number, and the backends."""
    dims = choose_dims(Sizes(), cls)
    (*_, link) = Chain.of(zoo.encoding(build_shortest_chain(cls), dims))

    yield from ("## Parameters and cost", "")
    rows = [f"| `{name}` | {_shape(value)} |" for name, value in link.named_parameters()]
    if rows:
        yield from ("| parameter | shape |", "|---|---|", *rows, "")
    counts = describe_parameters(build_shortest_chain(cls), dims)
    yield f"Parameters of a model of {_sizes(dims)}: {counts}."

    backends = {
        device: find_backend(build_shortest_chain(cls), dims, device) for device in ("cpu", "cuda")
    }
    used = [f"`{backend}` on {device} ({why})" for device, (backend, why) in backends.items()]
    yield from ("", f"Attention backend: {', '.join(used)}.", "")
    times = describe_recorded_layers(format_chain(build_shortest_chain(cls)))
    if times:
        yield f"{LAYER_TITLE[:1].upper()}{LAYER_TITLE[1:]}:"
        yield from ("", *(f"- {key}: {text}" for key, text in times.items()), "")
    yield f"{MEMORY_TITLE[:1].upper()}{MEMORY_TITLE[1:]}:"
    memory = describe_recorded_memory(cls.name)
    yield from ("", *(f"- {key}: {text}" for key, text in memory.items()), "")


def _shape(value: Tensor) -> str:
    return " x ".join(map(str, value.shape)) or "one number"


def _sizes(dims: Dims) -> str:
    tokens = " by ".join(map(str, dims.sizes))
    return f"{dims.depth} layers, width {dims.dim} and {dims.heads} heads, for {tokens} tokens"


def _recipes(names: Sequence[str]) -> Iterator[str]:
    yield from ("## Recipes", "")
    if not names:
        yield from ("None yet.", "")
        return
    yield from ("| recipe | | recorded | best baseline | other sizes |", "|---|---|---|---|---|")
    for name in names:
        head = recipe_heads.read_head(recipe_files()[name])
        others = (head.get(key, "") for key in ("baseline", "lengths"))
        yield f"| `{name}` | {head['claim']} | {head['number']} | {' | '.join(others)} |"
    yield ""


def _indent(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def escape_prose(text: str) -> str:
    """Return a docstring's text as Markdown: escape markup outside backticks, link arXiv papers."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*<])", r"\\\1", part) for part in parts[::2]]
    return re.sub(r"arXiv:(\d+\.\d+)", r"[arXiv:\1](https://arxiv.org/abs/\1)", "`".join(parts))


def draw_pictures(names: Sequence[str]) -> None:
    """Draw the pictures of the named encodings (`all` for every one), and missing ones."""
    PICTURES.mkdir(exist_ok=True)
    for name in zoo.encoding_names():
        path = PICTURES / f"{name}.png"
        if name in names or "all" in names or not path.exists():
            draw_portrait(build_shortest_chain(zoo.encoding_class(name)), path)
            print(path.relative_to(DOCS))


if __name__ == "__main__":
    (DOCS / "encodings").mkdir(exist_ok=True)
    for path, text in write_pages().items():
        path.write_text(text, encoding="utf-8")
    draw_pictures(sys.argv[1:])
    for figure in record_figures.draw_stale():
        print(figure.relative_to(DOCS))
