"""Whatever a recipe, an override or a call holds: it works, or the error is one of zoo's own.

    ZOO_EXAMPLES=2000 python -m pytest tests/test_properties.py

tries as many of each, other ones every time. Without the variable a few that are always the same are tried.
"""

import contextlib
import copy
import math
import os
import string

import torch
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import TINY

import zoo
from zoo import config
from zoo.config.command_line import parse_overrides
from zoo.errors import OptionError, ZooError
from zoo.run.preflight import build_experiment

EXAMPLES = int(os.environ.get("ZOO_EXAMPLES", "0"))
SETTINGS = settings(
    max_examples=EXAMPLES or 25,
    derandomize=not EXAMPLES,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

# a huge number of layers or samples would be built in earnest
numbers = st.sampled_from([-1, 0, 1, 2, 3, 7, 8, 16, 64, True, False])
floats = st.sampled_from([0.0, -0.5, 0.1, 1.0, 1.5, 1e-30, 1e30, math.nan, math.inf, -math.inf])
words = st.sampled_from(
    [
        "rope",
        "alibi",
        "auto",
        "none",
        "vit",
        "",
        "~",
        "a: b",
        "${seed}",
        "${x}",
        "a.b",
        "[",
        "é\u202e",
    ]
)
leaves = st.none() | numbers | floats | words | st.text(max_size=8)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(words | st.text(string.ascii_lowercase, max_size=5), inner, max_size=3)
    ),
    max_leaves=4,
)
RECIPE = config.load("vit_comrope", parse_overrides(TINY)).plain() | {"evaluate": {}}


def list_places(tree, path=()):
    """The paths of all values of a recipe, sections included."""
    for key, value in tree.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from list_places(value, (*path, key))


PLACES = [place for place in list_places(RECIPE) if place[0] not in ("name", "init_from")]


@st.composite
def recipes(draw):
    """A recipe of which a few values are replaced or removed, or have another beside them."""
    recipe = copy.deepcopy(RECIPE)
    for _ in range(draw(st.integers(1, 3))):
        *path, last = draw(st.sampled_from(PLACES))
        holder = recipe
        for key in path:
            holder = holder.get(key) if isinstance(holder, dict) else None
        if not isinstance(holder, dict):
            continue
        kind = draw(st.sampled_from(["replace", "remove", "add"]))
        if kind == "remove":
            holder.pop(last, None)
        else:
            key = last if kind == "replace" else draw(words | st.text(max_size=5))
            holder[key] = draw(values)
    return recipe


@SETTINGS
@given(recipe=recipes())
def test_a_recipe_works_or_is_refused(tmp_path_factory, recipe):
    path = tmp_path_factory.getbasetemp() / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe, allow_unicode=True), encoding="utf-8")
    with contextlib.suppress(ZooError):
        build_experiment(config.load(str(path)))


keys = st.sampled_from([".".join(place) for place in PLACES]) | st.text(max_size=8)
overrides = (
    st.builds("{}={}".format, keys, st.text(max_size=10) | words)
    | st.builds("~{}".format, keys)
    | st.text(max_size=10)
)


@SETTINGS
@given(changes=st.lists(overrides, min_size=1, max_size=3))
def test_overrides_work_or_are_refused(changes):
    with contextlib.suppress(ZooError):
        config.load("vit_comrope", parse_overrides(changes))


@st.composite
def calls(draw):
    """An encoding and the arguments of zoo.functional.attend; now and then one of them is wrong."""
    name = draw(st.sampled_from(zoo.encoding_names()))
    heads, axes = draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 1, 2]))
    head_dim, kv_heads = draw(st.sampled_from([4, 8, 16])), draw(st.sampled_from([None, 1]))
    keys = draw(st.integers(0, 12))
    queries = draw(st.integers(0, keys)) if draw(st.booleans()) else keys
    batch = draw(st.integers(0, 3))
    length = (3, 4) if axes == 2 else 12
    dims = {"heads": heads, "axes": axes, "length": length, "kv_heads": kv_heads}
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))

    def random(*shape):
        return torch.randn(shape, generator=generator)

    pos = random(keys, axes).cumsum(0).abs().cumsum(0) if axes == 1 else random(keys, axes)
    groups = kv_heads or heads
    arguments = {
        "q": random(batch, heads, queries, head_dim),
        "k": random(batch, groups, keys, head_dim),
        "v": random(batch, groups, keys, draw(st.sampled_from([head_dim, 3]))),
        "pos": draw(st.sampled_from([pos, pos[None], pos.long()])),
        "x": draw(st.sampled_from([None, random(batch, keys, heads * head_dim)])),
        "causal": draw(st.booleans()),
        "has_position": draw(st.sampled_from([None, random(keys) > -1])),
    }
    if draw(st.integers(0, 4)) == 0:
        key = draw(st.sampled_from(["q", "k", "v", "pos", "x", "has_position"]))
        shape = draw(st.lists(st.integers(0, 4), max_size=4))
        dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.long, torch.bool]))
        arguments[key] = random(*shape).to(dtype)
    return name, zoo.Dims(heads * head_dim, **dims), arguments


@SETTINGS
@given(call=calls(), backend=st.sampled_from(["auto", "chunked", "sdpa"]))
def test_calls_equal_the_reference_or_are_refused(call, backend):
    name, dims, arguments = call
    torch.manual_seed(0)
    try:
        encoding = zoo.encoding(name, dims)
        with torch.no_grad():
            out = zoo.functional.attend(encoding, **arguments, backend=backend)
    except OptionError:
        return
    with torch.no_grad():
        expected = zoo.functional.attend(encoding, **arguments, backend="reference")
    assert out.shape == expected.shape
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-3, equal_nan=True)
    if backend == "auto" and out.numel():
        weights = zoo.functional.weights(
            encoding, **{key: arguments[key] for key in arguments if key != "v"}
        )
        assert weights.isfinite().all()
