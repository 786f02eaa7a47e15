"""The panels by which an encoding shows what it has learned, for one call of one layer."""

from __future__ import annotations

import torch

import zoo
from zoo.attention import Dims, Tokens
from zoo.attention.chain import Chain
from zoo.attention.coordinates import grid
from zoo.attention.layer import Context, SelfAttention


def describe_call(chain, x, pos, causal, context, slots=None, **facts):
    """Return the call of a layer for tokens [B, N, D] at [N, P], of all queries or those at `slots`."""
    layer = SelfAttention(chain.dims, causal=causal).to(x.dtype)
    tokens = chain.embed(Tokens.at(x, pos, ordered=causal and pos.shape[-1] == 1, **facts))
    return layer.describe(tokens, chain, context, slots)[1]


def name_panels(chain, call):
    """Return {title without the encoding's name: panel}."""
    return {panel.title.split(": ")[1]: panel for panel in chain.panels(call)}


@torch.no_grad()
def list_panels(name, dims=None, causal=True, tokens=8, change=None, context=None, **options):
    """Return {title without the encoding's name: panel} of an encoding whose parameters `change` may set."""
    dims = dims or Dims(32, 2, length=16)
    chain = Chain.of(zoo.encoding(name, dims, **options))
    if change:
        change(next(iter(chain)))
    pos = grid((tokens,) if dims.axes == 1 else dims.sizes, torch.zeros(0))
    x = torch.randn(2, len(pos), dims.dim)
    return name_panels(chain, describe_call(chain, x, pos, causal, context or Context()))
