"""Names, shapes, facts and initial values of encodings of sequences: what checkpoints and recipes rely on."""

from __future__ import annotations

import math

import pytest
import torch

import zoo
from zoo.attention.encoding import Dims

HEADS, HEAD, LENGTH = 4, 16, 40
WIDTH = HEADS * HEAD


def made(name, layer=0, **options):
    return zoo.encoding(name, Dims(WIDTH, HEADS, length=LENGTH, layer=layer, depth=2), **options)


def network(inputs, hidden):
    return {
        "net.0.weight": (hidden, inputs),
        "net.0.bias": (hidden,),
        "net.2.weight": (HEADS, hidden),
        "net.2.bias": (HEADS,),
    }


FIRE = {"c": (), "threshold_scale": ()}
XL = {"project.weight": (WIDTH, WIDTH), "content": (HEADS, HEAD), "place": (HEADS, HEAD)}
TUPE = {
    "table": (LENGTH, WIDTH),
    "norm.weight": (WIDTH,),
    "norm.bias": (WIDTH,),
    "query.weight": (WIDTH, WIDTH),
    "query.bias": (WIDTH,),
    "key.weight": (WIDTH, WIDTH),
    "key.bias": (WIDTH,),
    "reset": (2, HEADS),
}
RANK = 4 * HEADS
TAPE = {
    "mix.weight": (HEADS, HEADS),
    "read.weight": (RANK, WIDTH),
    "into.weight": (RANK, HEADS),
    "out.weight": (HEADS, RANK),
}


@pytest.mark.parametrize(
    ("name", "options", "shapes"),
    [
        ("sinusoidal", {}, {}),
        ("learned", {}, {"table": (LENGTH, WIDTH)}),
        ("rope", {}, {}),
        ("alibi", {}, {}),
        ("t5", {}, {"table": (32, HEADS)}),
        ("t5", {"num_buckets": 8, "max_distance": 20}, {"table": (8, HEADS)}),
        ("kerple", {}, {"log_scale": (HEADS,), "log_rate": (HEADS,)}),
        ("kerple", {"kind": "log"}, {"log_scale": (HEADS,), "log_rate": (HEADS,)}),
        ("kerple", {"kind": "power"}, {"exponent": (HEADS,), "log_rate": (HEADS,)}),
        ("fire", {}, {**network(1, 32), **FIRE}),
        ("fire", {"hidden": 8}, {**network(1, 8), **FIRE}),
        ("shaw", {}, {"key": (33, HEAD), "value": (33, HEAD)}),
        ("shaw", {"max_distance": 5}, {"key": (11, HEAD), "value": (11, HEAD)}),
        ("shaw", {"values": False}, {"key": (33, HEAD)}),
        ("transformer_xl", {}, XL),
        ("tupe", {}, TUPE),
        ("cope", {}, {"table": (64, HEAD)}),
        ("cope", {"max_positions": 9}, {"table": (9, HEAD)}),
        ("fox", {}, {"gate.weight": (HEADS, WIDTH), "gate.bias": (HEADS,)}),
        ("stickbreaking", {}, {"remainder": (HEADS, HEAD)}),
        ("tape", {}, TAPE),
    ],
)
def test_parameters_are_those_of_the_contract(name, options, shapes):
    assert {
        key: tuple(value.shape) for key, value in made(name, **options).named_parameters()
    } == shapes


@pytest.mark.parametrize("under", ["alibi", "kerple", "fire"])
def test_parameters_of_a_list_are_prefixed(under):
    names = dict(made([under, "dape"]).named_parameters())
    own = {f"dape.{name}": shape for name, shape in network(2 * HEADS, 32).items()}
    assert {name: tuple(p.shape) for name, p in names.items() if name.startswith("dape.")} == own
    assert all(name.startswith((f"{under}.", "dape.")) for name in names)


def test_the_last_layer_of_tape_has_no_parameters():
    assert list(made("tape", layer=1).parameters()) == []
    assert (
        len(list(zoo.encoding("tape", Dims(WIDTH, HEADS, layer=1)).parameters())) == 4
    )  # of an unknown depth


@pytest.mark.parametrize(
    ("name", "shared", "causal"),
    [
        ("sinusoidal", True, False),
        ("learned", True, False),
        ("rope", True, False),
        ("alibi", True, False),
        ("t5", True, False),
        ("kerple", True, False),
        ("fire", False, False),
        ("shaw", False, False),
        ("transformer_xl", False, True),
        ("tupe", True, False),
        ("dape", False, True),
        ("cope", False, True),
        ("fox", False, True),
        ("stickbreaking", False, True),
        ("tape", False, True),
    ],
)
def test_facts_are_the_contracts(name, shared, causal):
    cls = zoo.encoding_class(name)
    assert (cls.shared, cls.causal_only) == (shared, causal)


def test_what_is_learned_per_layer_may_be_shared_by_option():
    assert made("t5", shared=False).shared is False
    assert made("fire", shared=True).shared is True


def test_tupe_handles_tokens_without_a_place_itself():
    assert zoo.encoding_class("tupe").handles_special_tokens
    assert not zoo.encoding_class("t5").handles_special_tokens


# initial values


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("tupe", ["norm.bias", "query.bias", "key.bias", "reset"]),
        ("cope", ["table"]),
        ("fox", ["gate.bias"]),
        ("stickbreaking", ["remainder"]),
        ("tape", ["mix.weight", "into.weight"]),
    ],
)
def test_what_is_zero_at_first(name, parameters):
    found = dict(made(name).named_parameters())
    assert all((found[parameter] == 0).all() for parameter in parameters)


@pytest.mark.parametrize(
    ("name", "parameter", "std"),
    [
        ("learned", "table", 0.02),
        ("shaw", "key", 0.02),
        ("shaw", "value", 0.02),
        ("transformer_xl", "project.weight", 0.02),
        ("tupe", "table", 0.02),
        ("tupe", "query.weight", 0.02),
        ("tupe", "key.weight", 0.02),
        ("fox", "gate.weight", 0.02),
        ("tape", "read.weight", 0.02),
        ("tape", "out.weight", 0.02),
        ("t5", "table", 1 / math.sqrt(WIDTH)),
    ],
)
def test_what_is_normal_at_first(name, parameter, std):
    values = dict(made(name).named_parameters())[parameter].detach()
    error = 5 / math.sqrt(2 * values.numel())  # five standard errors of a standard deviation
    assert abs(values.std(correction=0) / std - 1) < error
    assert values.abs().max() > 2 * std  # a uniform distribution ends at 1.73
    assert values.mean().abs() < 5 * std / math.sqrt(values.numel())


def uniform(values, top):
    """Whether values look like U(0, top): the standard error of a mean of n is top / sqrt(12 n)."""
    inside = bool(
        (values >= 0).all()
        and (values <= top).all()
        and values.max() > 0.9 * top
        and values.min() < 0.1 * top
    )
    return inside and abs(values.mean() - top / 2) < 5 * top / math.sqrt(12 * values.numel())


def test_kerple_starts_uniform():
    many = Dims(512, 512)
    log, power = (
        zoo.encoding("kerple", many, kind=kind).requires_grad_(False) for kind in ("log", "power")
    )
    assert uniform(log.log_scale.exp(), 2)
    assert uniform(log.log_rate.exp(), 1)
    assert uniform(2 * power.exponent.sigmoid(), 2)
    assert uniform(power.log_rate.exp(), 1)


def test_fire_starts_at_its_threshold():
    assert math.isclose(made("fire").c.item(), 0.1, rel_tol=1e-6)
    assert math.isclose(made("fire", initial_c=2.0).c.item(), 2.0, rel_tol=1e-6)
    assert made("fire").threshold_scale.item() == 1


@pytest.mark.parametrize(
    ("names", "parameter", "fan"),
    [
        (["fire"], "fire.net.0.weight", 1),
        (["fire"], "fire.net.0.bias", 1),
        (["fire"], "fire.net.2.weight", 256),
        (["alibi", "dape"], "dape.net.0.weight", 2 * HEADS),
        (["alibi", "dape"], "dape.net.0.bias", 2 * HEADS),
        (["alibi", "dape"], "dape.net.2.weight", 256),
    ],
)
def test_networks_start_as_pytorch_makes_them(names, parameter, fan):
    wide = made([{"name": name, **({} if name == "alibi" else {"hidden": 256})} for name in names])
    edge = 1 / math.sqrt(fan)
    assert uniform(dict(wide.named_parameters())[parameter].detach() + edge, 2 * edge)


def test_norms_start_at_one():
    assert (made("tupe").norm.weight == 1).all()
    assert made("tupe").norm.eps == 1e-5


def test_transformer_xl_starts_near_plain_content():
    encoding = made("transformer_xl")
    assert encoding.content.abs().max() < 0.1
    assert encoding.place.abs().max() < 0.1


@pytest.mark.parametrize("name", ["cope", "fox", "stickbreaking"])
def test_what_starts_at_zero_still_learns(name):
    encoding = made(name).double()
    q, k, v = torch.randn(3, 1, HEADS, 6, HEAD, dtype=torch.float64)
    x, pos = torch.randn(1, 6, WIDTH, dtype=torch.float64), torch.arange(6.0)[:, None]
    zoo.attend(encoding, q, k, v, pos, x=x, causal=True).square().sum().backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in encoding.parameters())
