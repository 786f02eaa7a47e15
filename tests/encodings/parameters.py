"""What checkpoints and recipes rely on: declared facts, names and shapes, and initial values."""

from __future__ import annotations

import math

import torch

import zoo
from zoo.attention.encoding import Dims, Encoding

HEADS, HEAD, LENGTH = 4, 16, 40
WIDTH = HEADS * HEAD
SIZES = {1: LENGTH, 2: (5, 6), 3: (2, 5, 6)}
FACTS = (
    "shared",
    "shift_invariant",
    "causal_only",
    "needs_full_sequence",
    "axes",
    "coordinates",
    "zero_gradient",
    "handles_special_tokens",
    "consumes_biases",
    "reads_states",
    "reads_keys",
    "identity_at_zero",
)


def list_facts(name):
    """Return the declared facts that differ from the defaults."""
    facts = {fact: getattr(zoo.encoding_class(name), fact) for fact in FACTS}
    return {fact: value for fact, value in facts.items() if value != getattr(Encoding, fact)}


def make_initial(name, axes=1, layer=0, kv_heads=None, **options):
    """Make an encoding of four heads of 16 channels at its initial values, for 40 tokens of text."""
    dims = Dims(WIDTH, HEADS, axes, SIZES[axes], layer=layer, depth=2, kv_heads=kv_heads)
    return zoo.encoding(name, dims, **options)


def list_shapes(encoding):
    return {name: tuple(value.shape) for name, value in encoding.named_parameters()}


def list_network_shapes(inputs, hidden):
    return {
        "net.0.weight": (hidden, inputs),
        "net.0.bias": (hidden,),
        "net.2.weight": (HEADS, hidden),
        "net.2.bias": (HEADS,),
    }


# distributions


def is_uniform(values, top):
    """True if values look like U(0, top): the standard error of a mean of n is top / sqrt(12 n)."""
    inside = bool(
        (values >= 0).all()
        and (values <= top).all()
        and values.max() > 0.9 * top
        and values.min() < 0.1 * top
    )
    return inside and abs(values.mean() - top / 2) < 5 * top / math.sqrt(12 * values.numel())


def check_spread(values, std):
    """Assert a mean of zero and a standard deviation, each within five standard errors."""
    assert abs(values.std(correction=0) / std - 1) < 5 / math.sqrt(2 * values.numel())
    assert values.mean().abs() < 5 * std / math.sqrt(values.numel())


@torch.no_grad()
def check_normal(values, std):
    check_spread(values, std)
    assert values.abs().max() > 2 * std  # a uniform distribution ends at 1.73


def measure_distance(samples, cumulative):
    """Return Kolmogorov's and Smirnov's largest difference between two cumulative distributions."""
    ordered = samples.detach().double().flatten().sort().values
    steps = torch.arange(len(ordered) + 1, dtype=torch.float64) / len(ordered)
    expected = cumulative(ordered)
    return max(
        (steps[1:] - expected).abs().max().item(), (expected - steps[:-1]).abs().max().item()
    )


def compute_limit(samples):
    """Return what `measure_distance` exceeds once in ten thousand times."""
    return 2.2 / math.sqrt(samples.numel())


def make_normal(std):
    """Return the cumulative distribution N(0, std^2)."""
    return lambda x: torch.special.ndtr(x / std)


# learning


def check_everything_learns(encoding, causal=True):
    """Assert that each parameter has a finite gradient that is not zero."""
    dims = encoding.dims
    q, k, v = torch.randn(3, 1, dims.heads, 6, dims.head_dim, dtype=torch.float64)
    x, pos = torch.randn(1, 6, dims.dim, dtype=torch.float64), torch.arange(6.0)[:, None]
    zoo.functional.attend(
        encoding.double(), q, k, v, pos, x=x, causal=causal
    ).square().sum().backward()
    assert all(p.grad.isfinite().all() and p.grad.any() for p in encoding.parameters())


def adapt_parameters(there, here):
    """Fill an encoding from another of other sizes, and list the parameters that it does not take."""
    left = []
    for name, parameter in here.named_parameters():
        value = dict(there.named_parameters())[name].detach()
        found = here.adapt_parameter(name, value, there)
        if found is None or found.shape != parameter.shape:
            left.append(name)
        else:
            parameter.data.copy_(found)
    return left
