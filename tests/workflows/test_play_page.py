"""The scripts of docs/play.html compute what zoo computes, for every encoding."""

import importlib
import json
import math
import re
from pathlib import Path

import pytest
import torch
from py_mini_racer import MiniRacer

import zoo
from zoo.attention.chain import Chain
from zoo.attention.coordinates import apply_convention, grid, grid_shape
from zoo.attention.tokens import Tokens

DOCS = Path(__file__).parent.parent.parent / "docs"
HEAD_DIM, HEADS = 16, 4
SIZES = {1: (8, 18), 2: (3, 5)}  # training size and size, by the number of axes
COMPARE = """
const compare = (text) => {
  const { name, s } = JSON.parse(text), made = encodings[name].make(s), isText = s.axes === 1;
  const places = range(s.n ** s.axes, (k) => (isText ? k : [Math.floor(k / s.n), k % s.n]));
  const pairs = places.flatMap((i) => places.filter((j) => !isText || j <= i).map((j) => [i, j]));
  const kept = (x) => (Number.isFinite(x) ? x : x === -Infinity ? "-Infinity" : "NaN");
  const filled = pairs.filter((_, k) => k % 37 === 0).map(([i, j]) => [made.score(i, j), made.explain(i, j).at(-1), result(made.score(i, j))]);
  return JSON.stringify({
    scores: places.map((i) => places.map((j) => (isText && j > i ? "-Infinity" : kept(made.score(i, j))))),
    filled: filled.filter(([value]) => Number.isFinite(value)),
    options: made.options, chain: made.chain ?? [name], dims: made.dims ?? {}, parameters: made.parameters(),
    places: made.place ? places.map((i) => made.place(i)) : null, keys: made.keys ? places.map(made.keys) : null,
    states: encodings[name].content ? states(places.length, s.K * s.H) : null,
  });
};
const listKnobs = (name) => JSON.stringify(encodings[name].knobs ?? []);
"""


@pytest.fixture(scope="module")
def play_page():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS / "build"))
        yield importlib.import_module("play_page")


@pytest.fixture(scope="module")
def engine(play_page):
    """JavaScript with the scripts of the page that compute, without a page."""
    with MiniRacer() as javascript:
        javascript.eval(play_page.read_formulas() + COMPARE)
        yield javascript


def settings(engine, name, axes):
    """Settings of the page: the first ones, each other choice, and knobs near both ends."""
    knobs = [
        one for one in json.loads(engine.call("listKnobs", name)) if one.get("axes", axes) == axes
    ]
    length, size = SIZES[axes]
    s = {"axes": axes, "K": HEAD_DIM, "H": HEADS, "h": 2, "L": length, "n": size, "c": 1.7}
    s |= {one["key"]: one["value"] for one in knobs}
    if "block" in s:
        s["block"] = 4
    yield s
    for one in knobs:
        if "values" in one and one["key"] != "block":
            yield from (
                {**s, one["key"]: value} for value in one["values"] if value != one["value"]
            )
    for share in (0.1, 0.8):
        moved = {
            one["key"]: one["low"] + share * (one["high"] - one["low"])
            for one in knobs
            if "low" in one
        }
        if moved:
            yield s | {
                key: round(value) if isinstance(s[key], int) and value > 1 else value
                for key, value in moved.items()
            }


def axes_of(name):
    return [axes for axes in (1, 2) if axes in zoo.encoding_class(name).axes] or [2]


def compute_scores(s, page, count):
    """Return what zoo computes for equal tokens, as the page does: scores [N, N] of a head.

    Args:
        s: Settings of the page.
        page: What the page found.
        count: Number of tokens N; all have the coordinates of the full size.
    """
    more = {"depth": 2, **page["dims"]}
    *before, own = page["chain"]
    # what reads clips alone sees one frame
    frames = () if s["axes"] in zoo.encoding_class(own).axes else (1,)
    length = (*frames, *(s["L"],) * s["axes"])
    dims = zoo.Dims(HEAD_DIM * HEADS, HEADS, len(length), length, **more)
    link = zoo.encoding([*before, {"name": own, **page["options"]}], dims)
    chain = Chain.of(link.double().eval().requires_grad_(False))
    (*_, module) = chain
    tensors = dict([*module.named_parameters(), *module.named_buffers()])
    for key, value in page["parameters"].items():
        fill(tensors[key], value)

    is_text, size = s["axes"] == 1, (*frames, *(s["n"],) * s["axes"])
    index = grid(size, torch.zeros(0, dtype=torch.float64))
    tokens = Tokens.at(torch.zeros(1, len(index), dims.dim, dtype=torch.float64), index)
    tokens = tokens.replace(grid_size=grid_shape(size, tokens.x))
    pos = apply_convention(tokens, module.coordinates, dims.sizes).pos[0, :count]
    if page["places"] is not None:
        pos = torch.tensor(page["places"], dtype=torch.float64)
    if module.adds_to_input:
        given = None if page["places"] is not None or is_text else tokens.grid_size
        placed = Tokens.at(tokens.x[:, :count], pos).replace(grid_size=given)
        table = module.embed(placed).x[0]
        products = table @ table.mT / math.sqrt(dims.dim)
        return products.masked_fill(hidden(count), -math.inf) if is_text else products
    equal = torch.full((1, HEADS, count, HEAD_DIM), 1.0, dtype=torch.float64)
    equal *= math.sqrt(s["c"] / math.sqrt(HEAD_DIM))
    keys = equal
    if page["keys"] is not None:
        keys = equal * torch.tensor(page["keys"], dtype=torch.float64)[:, None]
    x = None if page["states"] is None else torch.tensor(page["states"], dtype=torch.float64)[None]
    compute = zoo.functional.weights if own == "stickbreaking" else zoo.functional.scores
    found = compute(link, equal, keys, pos, x=x, causal=is_text)[0, s["h"]]
    return found.masked_fill(hidden(count), -math.inf) if is_text else found


def hidden(count):
    return torch.ones(count, count).triu(1).bool()


def read(text):
    return float(text.replace("\u2212", "-"))


def evaluate(filled):
    """Return the value of the last line of a formula with its numbers."""
    python = re.sub(r"√(\d+)", r"sqrt(\1)", filled)
    python = re.sub(r"log (\d[\d.]*)", r"log(\1)", python)
    for sign, word in {"\N{MINUS SIGN}": "-", "·": "*", "²": "**2", "^": "**"}.items():
        python = python.replace(sign, word)
    return eval(python, {"exp": math.exp, "log": math.log, "sqrt": math.sqrt})


def fill(parameter, value):
    value = torch.tensor(value, dtype=torch.float64)
    value = value.view((1,) * (parameter.dim() - value.dim()) + value.shape)
    parameter.copy_(
        value.repeat(
            [whole // part for whole, part in zip(parameter.shape, value.shape, strict=True)]
        )
    )


def test_the_page_has_every_encoding(engine):
    assert sorted(json.loads(engine.eval("JSON.stringify(Object.keys(encodings))"))) == [
        *zoo.encoding_names()
    ]


@pytest.mark.parametrize("name", zoo.encoding_names())
def test_the_page_computes_what_zoo_computes(engine, name):
    for axes in axes_of(name):
        for s in settings(engine, name, axes):
            page = json.loads(engine.call("compare", json.dumps({"name": name, "s": s})))
            found = torch.tensor(
                [[float(one) for one in row] for row in page["scores"]], dtype=torch.float64
            )
            # what the page refuses, zoo refuses too
            count = int((~found.diagonal().isnan()).sum())
            if count < len(found):
                with pytest.raises(zoo.OptionError, match="past the table"):
                    compute_scores(s, page, len(found))
            expected = compute_scores(s, page, count)
            torch.testing.assert_close(
                found[:count, :count], expected, atol=1e-6, rtol=0, msg=str(s)
            )
            for value, filled, shown in page["filled"]:
                assert math.isclose(evaluate(filled), value, rel_tol=1e-4, abs_tol=1e-4), (
                    s,
                    filled,
                )
                assert abs(read(shown) - value) <= 1e-6


def test_the_page_asks_for_nothing(play_page):
    page = play_page.PAGE.read_text(encoding="utf-8")
    assert "default-src 'none'" in page
    asking = r"<link|<img|<iframe|\bsrc=|@import|url\(|fetch\(|XMLHttpRequest|WebSocket|sendBeacon|\bimport\("
    assert re.findall(asking, page) == []
    assert len(page.encode()) < 1.5e6


def test_every_page_of_an_encoding_leads_to_it(engine):
    for name in zoo.encoding_names():
        page = (DOCS / "encodings" / f"{name}.md").read_text(encoding="utf-8")
        assert f"](../play.html#{name})" in page
