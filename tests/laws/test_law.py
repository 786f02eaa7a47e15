"""All laws for all registered encodings, the lists of encodings that recipes name, and small samples."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import test_backends_laws
import test_causality
import test_derivatives
import test_equivariance
import test_gradients
import yaml
from faults import make_case
from samples import SAMPLES

import zoo
from zoo import registry
from zoo.attention.chain import parse_entry
from zoo.attention.temperature import Temperature
from zoo.laws import LAWS, Case, Law, Recorder
from zoo.laws.backends import a_compiler_captures_it, exports_at_any_size
from zoo.laws.derivatives import (
    second_derivatives_are_slopes,
    tangents_are_gradients,
    vmap_equals_a_loop,
)

ROOT = Path(__file__).parents[2]
# an export takes seconds; `zoo verify all laws=[exports_at_any_size]` tries the other encodings
EXPORTED = ("tape-1", "liere-1", "tupe-1", "path-1", "learned-2", "comrope_ld(turn_values=True)-2")
# so does a compiler; `zoo verify all laws=[a_compiler_captures_it]` tries the other encodings
COMPILED = [
    "alibi+dape-1",
    "comrope_ap-2",
    "comrope_ld-2",
    "cope-1",
    "fire-1",
    "fox-1",
    "grape_a-1",
    "learned-2",
    "liere-2",
    "path-1",
    "rope-1",
    "rope_mixed-2",
    "stickbreaking-1",
    "t5-2",
    "tape-1",
    "transformer_xl-1",
    "tupe-1",
    "ssmax-2",
]
EDGES = {"truncate": False, "beta_fast": 1.0, "beta_slow": 0.1}
LISTS: tuple[list[Any], ...] = (
    ["learned", "rope_axial"],
    ["sinusoidal", "comrope_ld"],
    [{"name": "learned", "shared": False}],
    [{"name": "liere", "shared": True}],
    ["rope", "fox"],
    ["alibi", "dape"],
    ["kerple", "dape"],
    ["fire", "dape"],
    ["tupe", "t5"],
    ["tupe", "dape"],
    ["rope", "cope"],
    ["rope", "shaw"],
    ["rope", "transformer_xl"],
    ["sinusoidal", "rope"],
    ["rope", "stickbreaking"],
    ["path", "fox"],
    [{"name": "path", "convolution": 1, "rank": 4}],
    [{"name": "kerple", "kind": "power"}],
    [{"name": "cape", "centre": True}],
    [{"name": "string", "kind": "circulant"}],
    [{"name": "shaw", "values": False}],
    [{"name": "stickbreaking", "inclusive": True}],
    [{"name": "t5", "num_buckets": 16, "max_distance": 9}],
    # The rules differ in numbers, which tests of rope hold; these differ in more.
    [{"name": "rope", "scaling": {"rule": "yarn", "factor": 4.0}}],
    [{"name": "rope", "scaling": {"rule": "dynamic", "factor": 2.0, "length": 2**21}}],
    [{"name": "rope", "scaling": {"rule": "proportional", "fraction": 0.5}}],
    [{"name": "rope", "scaling": {"rule": "clipped"}}],
    *(
        # edges of the ramp at no pair, where a slope would have two values
        [{"name": name, "scaling": {"rule": "yarn", "factor": 2.0, **EDGES}}]
        for name in ("rope_axial", "rope_mixed")
    ),
    [{"name": "rope", "rotary_fraction": 0.5}],
    ["alibi", "head_scale"],
    ["t5", "head_scale"],
    [{"name": "sandwich", "width": 16}],
    [{"name": "alibi", "distance": "euclidean"}],
    ["fox", "selective_rope"],
    [{"name": "grape_m", "planes": 3}],
    [{"name": "grape_a", "by": "query"}],
    ["rope", "key_offset"],
    [{"name": "key_offset", "first": "own", "fraction": 0.25}],
    [{"name": "relative_projection", "reach": 4, "clip": 0.5, "log_scale": [0.3, 2.0]}],
    [{"name": "repo", "first_layer": 0}],
    [{"name": "pape", "rotation_invariant": True}],
    [{"name": "mrope", "layout": "blocks", "rotary_fraction": 0.5}],
    # turned values: each way of turning once, on one axis and two
    [{"name": "rope", "turn_values": True, "scaling": {"rule": "yarn", "factor": 4.0}}],
    [{"name": "rope_mixed", "turn_values": True}],
    [{"name": "liere", "turn_values": True}],
    [{"name": "comrope_ld", "turn_values": True}],
    [{"name": "string", "turn_values": True}],
    [{"name": "repo", "turn_values": True, "first_layer": 0}],
    [{"name": "selective_rope", "turn_values": True}, "fox"],
)


def read_recipe_lists() -> Iterator[list[Any]]:
    """What recipes and their fragments say of `model.encoding`, as lists."""
    for path in sorted([*ROOT.glob("recipes/*.yaml"), *ROOT.glob("configs/model/*.yaml")]):
        model = (yaml.safe_load(path.read_text(encoding="utf-8")) or {}).get("model") or {}
        encoding = model.get("encoding") if isinstance(model, dict) else None
        if encoding and "${" not in repr(encoding):
            yield encoding if isinstance(encoding, list) else [encoding]


def format_title(entry: Any) -> str:
    """`liere`, or `liere(block=4)`; what is the default is not told."""
    if isinstance(entry, str):
        return entry
    cls = zoo.encoding_class(entry["name"])
    defaults = {key: option.default for key, option in inspect.signature(cls).parameters.items()}
    defaults = {"shared": cls.shared, "coordinates": cls.coordinates, **defaults}
    options = {**entry, **entry.get("options", {})}.items()
    changed = [
        f"{k}={v}" for k, v in options if k not in ("name", "options") and defaults.get(k) != v
    ]
    return f"{entry['name']}({','.join(changed)})" if changed else str(entry["name"])


def list_members() -> Iterator[Case]:
    """Every name, and what recipes say, on every number of axes; the lists above on the first two."""
    alone = [name for name in zoo.encoding_names() if not zoo.encoding_class(name).consumes_biases]
    entries = {format_title(name): [name] for name in alone}
    listed = {"+".join(map(format_title, encodings)) for encodings in LISTS}
    for encodings in (*LISTS, *read_recipe_lists()):
        entries.setdefault("+".join(map(format_title, encodings)), encodings)
    for name, encodings in entries.items():
        classes = [
            zoo.encoding_class(one if isinstance(one, str) else one["name"]) for one in encodings
        ]
        # what reads the biases of others is on no list but these
        is_short = name in listed and not any(cls.consumes_biases for cls in classes)
        accepted = [axes for axes in (1, 2, 3) if all(axes in cls.axes for cls in classes)]
        for axes in accepted[:2] if is_short else accepted:
            yield Case.from_choices(name, [parse_entry(entry) for entry in encodings], axes)


def is_typical(member: Case) -> bool:
    """Alone, and on two axes where it can: a graph hardly depends on axes, options and company, and takes seconds."""
    links = list(member.facts)
    plain = all(
        link.consumes_biases or not any(True for _ in link.parameters()) for link in links
    )  # no two that learn
    alone = len(links) == 1 or (plain and any(link.consumes_biases for link in links))
    return alone and not member.name.endswith(")") and has_typical_axes(member)


def has_typical_axes(member: Case) -> bool:
    """On two axes, if it has them."""
    return member.axes == 2 or not all(2 in link.axes for link in member.facts)


def is_tried(law: Law, member: Case) -> bool:
    if law is exports_at_any_size:
        return str(member) in EXPORTED
    if law is a_compiler_captures_it:
        return str(member) in COMPILED
    # numbers of axes change sums of derivatives, which those of first order are tested for
    if law is second_derivatives_are_slopes:
        return has_typical_axes(member)
    # a transform hardly depends on options and company either
    seldom = (vmap_equals_a_loop, tangents_are_gradients)
    return law not in seldom or is_typical(member)


def list_layers() -> Iterator[Case]:
    """Encodings in layers with soft caps, sinks and temperatures."""
    temperature = Temperature(floor=4, scale=0.4)
    build = partial(zoo.encoding, ["rope", "ssmax"])
    yield Case("rope+ssmax(all)", 1, build, softcap=1.5, sinks=True, temperature=temperature)
    yield Case("none(sinks)", 1, partial(zoo.encoding, "none"), sinks=True)
    yield Case("none(softcap)", 1, partial(zoo.encoding, "none"), softcap=1.5)
    yield Case("fox(sinks)", 1, partial(zoo.encoding, "fox"), sinks=True)
    yield Case("t5(both)", 2, partial(zoo.encoding, "t5"), softcap=1.5, sinks=True)


LAYERS = tuple(list_layers())
MEMBERS = tuple(list_members())
ROOTS = registry.roots()


@pytest.fixture(autouse=True)
def _find_roots_once(monkeypatch):
    """A thousand encodings are made here: ask only once where installed ones are."""
    monkeypatch.setattr(registry, "roots", lambda: ROOTS)


@pytest.mark.parametrize(
    ("law", "member"),
    [
        pytest.param(law, member, id=f"{law.name}-{member}")
        for law in LAWS
        for member in (*MEMBERS, *LAYERS)
        if not law.exempt(member) and (is_tried(law, member) or member in LAYERS[:2])
    ],
)
def test_law(law, member):
    law(member)


@pytest.mark.nightly  # half a minute of a C++ compiler
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # torch's own, while it sets its compiler up
def test_inductor_computes_the_same():
    member = Case("rope_mixed", 2, partial(zoo.encoding, "rope_mixed"))
    a_compiler_captures_it.check(member, Recorder(), backend="inductor")


@pytest.mark.parametrize(
    ("law", "sound"),
    [
        pytest.param(law, sound, id=f"{law.name}-{sound}")
        for law in LAWS
        for sound in map(make_case, SAMPLES)
        # a graph takes seconds, and encodings of zoo are captured and exported above
        if not law.exempt(sound)
        and (law not in (a_compiler_captures_it, exports_at_any_size) or sound.name == "Carried")
    ],
)
def test_a_sound_encoding_passes(law, sound):
    law(sound)


def test_every_law_has_a_fault_that_it_catches():
    modules = (
        test_gradients,
        test_backends_laws,
        test_causality,
        test_equivariance,
        test_derivatives,
    )
    faults = [fault for module in modules for fault in module.FAULTS]
    by_name = {"a_compiler_captures_it", "reference_and_sdpa_agree"}  # caught by tests of their own
    assert {law.name for law in LAWS} == {law.name for law, _ in faults} | by_name


def test_every_registered_encoding_is_a_member():
    assert {name for member in MEMBERS for name, _ in member.facts.named_children()} >= set(
        zoo.encoding_names()
    )
