"""The shortest chain that an encoding can run in, what it changes, and the name of a chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch

from zoo.attention.call import AttentionCall
from zoo.attention.chain import Chain, encoding
from zoo.attention.encoding import Dims, Encoding
from zoo.attention.tokens import Tokens
from zoo.options import Choice
from zoo.options.plain import format_call

# The bias before an encoding that consumes the biases of others.
BIASED = Choice("alibi")
CHANGES: Mapping[str, str] = {
    **dict.fromkeys(("q", "k", "transform_query"), "queries and keys"),
    **dict.fromkeys(("v", "extra_output", "extra_values"), "values and output"),
    **dict.fromkeys(("biases", "low_rank_biases"), "biases"),
    **dict.fromkeys(
        ("scale", "softcap", "transform_scores", "normalize", "sinks"), "rows of scores"
    ),
}
"""{field of a call: the part of a transformer that an encoding changes by it}"""


def build_shortest_chain(
    cls: type[Encoding], options: Mapping[str, Any] | None = None
) -> list[Choice]:
    """Return the shortest chain that an encoding can be in: alone, or after a bias."""
    choice = Choice(cls.name, options or {})
    return [BIASED, choice] if cls.consumes_biases else [choice]


@torch.no_grad()
def list_changes(cls: type[Encoding]) -> list[str]:
    """Return the parts of a transformer that an encoding changes, in a small layer of its own.

    Args:
        cls: The class of the encoding.

    Returns:
        Values of CHANGES: what differs in the embeddings, heads and call of the layer.
    """
    heads, length, axes = 4, 4, min(cls.axes)
    dims = Dims(16 * heads, heads, axes, (length,) * axes, 0, 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = encoding(build_shortest_chain(cls), dims).eval()
        # parameters that start at zero change nothing yet
        for parameter in made.parameters():
            parameter.uniform_(0.1, 0.9)
        tokens = length**axes
        x, q, k = torch.randn(1, tokens, dims.dim), *torch.randn(2, 1, heads, tokens, 16)
    instance: Encoding = next(link for link in Chain.of(made) if isinstance(link, cls))
    grid = torch.cartesian_prod(*[torch.arange(float(length))] * axes).reshape(tokens, axes)
    before = Tokens.at(x, grid, ordered=True)
    embedded = instance.embed(before)
    states = instance.prepare(embedded.replace(x=x))

    changes = set()
    if not torch.equal(embedded.x, x):
        changes.add("input")
    heads_after = instance.transform_query(q, states), instance.transform_key(k, states)
    updates = type(instance).update_cached_keys is not Encoding.update_cached_keys
    pairs = zip(heads_after, (q, k), strict=True)
    if updates or not all(torch.equal(after, head) for after, head in pairs):
        changes.add("queries and keys")
    call = AttentionCall(*heads_after, q, q, states, states, cls.causal_only, 0.25)
    if cls.consumes_biases:
        call = encoding(BIASED, dims).modify(call)
    new = instance.modify(call)
    for field in fields(AttentionCall):
        if getattr(new, field.name) is not getattr(call, field.name):
            changes.add(CHANGES[field.name])
    return sorted(changes)


def format_chain(choices: Sequence[Choice]) -> str:
    """Format a chain with its options: `kerple+dape`, `liere(block=8)`."""
    return "+".join(map(_format_choice, choices))


def _format_choice(choice: Choice) -> str:
    options = (f"{key}={value}" for key, value in choice.options.items())
    return format_call(choice.name, options, ",")
