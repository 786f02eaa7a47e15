"""Attention recomputed for a few queries: what any layer of a model does with a batch, whatever computes it in training.

A layer describes its attention call before anything computes it. Whoever looks describes it once more, for chosen queries,
and takes the definition's first half: exact scores and weights. The model itself goes on with its fused kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from zoo.attention import AttentionCall, Tokens, linear
from zoo.attention.backends.reference import normalize_scores, scores
from zoo.attention.chain import Chain
from zoo.attention.kv_cache import Context
from zoo.attention.layer import SelfAttention
from zoo.errors import OptionError

Queries = int | Sequence[int] | None
"""How many queries, or those in which slots; None: all."""


@dataclass(frozen=True)
class LayerAttention:
    """What chosen queries of one layer do: Q queries at `slots` among M keys.

    Places of queries and keys, in tokens or patches, are `terms.queries.index` and `terms.keys.index`. Weights of linear
    attention may be negative, and it has no scores.
    """

    layer: int
    attention: SelfAttention
    chain: Chain
    call: AttentionCall
    query_index: Tensor  # int [Q]
    weights: Tensor  # [B, H, Q, M], at least float32
    scores: (
        Tensor | None
    )  # [B, H, Q, M] as they enter the normalisation, -inf where a pair may not attend

    @property
    def grid(self) -> tuple[Tensor, Tensor]:
        """Which queries and which keys are pieces of the text or of the image, bool [1|B, Q] and [1|B, M].

        Class and register tokens are none, whether or not they have a place.
        """
        keys, count = self.call.keys, self.weights.shape[-1]
        found = (
            self.query_index.new_ones(1, count).bool() if keys.has_position is None else keys.has_position
        )
        if keys.grid_size is not None and keys.index.shape[-1] > 1:
            extra = count - int(keys.grid_size[0, 0].prod())  # they stand first
            if int(found[0].sum()) > count - extra:
                found = found & (torch.arange(count, device=found.device) >= extra)
        return found[:, self.query_index], found


def capture_attention(
    model: nn.Module,
    inputs: Sequence[Any],
    queries: Queries = None,
    layers: Sequence[int] | None = None,
) -> list[LayerAttention]:
    """Looks at some layers of a model called with `inputs`, by default at all layers and at the queries of all tokens.

    Of many tokens, as many `queries` are chosen, from the first to the last one evenly, or those in these slots.

    The model computes as in an evaluation, uncompiled, without gradients, and is left as it was. Raises OptionError("layers")
    where a layer is not there, and where the model has no attention of ours.
    """
    found: list[LayerAttention] = []
    capture_layers(model, inputs, found.append, queries, layers)
    return found


def capture_layers(
    model: nn.Module,
    inputs: Sequence[Any],
    callback: Callable[[LayerAttention], None],
    queries: Queries = None,
    layers: Sequence[int] | None = None,
) -> None:
    """The same, layer by layer: what `see` does not keep of a look is forgotten before the next layer computes."""
    numbers = number_layers(model, layers)
    wanted = set(numbers.values()) if layers is None else set(layers)

    def noted(attention: SelfAttention, tokens: Tokens, chain: Chain, context: Context) -> None:
        if numbers[attention] in wanted:
            callback(_capture_layer(numbers[attention], attention, tokens, chain, queries))

    with hook_attention(model, noted), evaluation_mode(model):
        model(*inputs)


def number_layers(model: nn.Module, layers: Sequence[int] | None) -> dict[SelfAttention, int]:
    """The model's layers with their numbers, those that they have or, where these are not one each, by order.

    Raises OptionError where it has no such `layers`.
    """
    known = _find_attention(model)
    if not known:
        raise OptionError("layers", "the model has no attention layer of zoo to look at")
    own = [module.dims.layer for module in known]
    numbers = own if len(set(own)) == len(own) else range(len(own))
    absent = sorted(set(layers or ()) - set(numbers))
    if absent:
        told = f"there is no layer {', '.join(map(str, absent))}"
        raise OptionError("layers", f"{told}; the model has layers 0 to {max(numbers)}")
    return dict(zip(known, numbers, strict=True))


@contextmanager
def hook_attention(
    model: nn.Module, callback: Callable[[SelfAttention, Tokens, Chain, Context], None]
) -> Iterator[None]:
    """`see` is called with what each attention layer of the model is called with, before it computes."""
    hooks = [
        module.register_forward_pre_hook(lambda layer, given: callback(layer, *given))
        for module in _find_attention(model)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """In evaluation mode, uncompiled, without gradients; modules go back to the mode that each was in."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for module in training:
            module.training = True


def _find_attention(model: nn.Module) -> list[SelfAttention]:
    return [module for module in model.modules() if isinstance(module, SelfAttention)]


def choose_evenly(count: int, most: int | None = None) -> list[int]:
    """Slots out of `count`, from the first to the last evenly, at most so many; one alone lies in the middle."""
    if most is None or most >= count:
        return list(range(count))
    if most == 1:
        return [(count - 1) // 2]
    return [round(n * (count - 1) / (most - 1)) for n in range(most)]


def _choose_queries(count: int, queries: Queries) -> list[int]:
    return choose_evenly(count, queries) if queries is None or isinstance(queries, int) else list(queries)


def _capture_layer(
    number: int, attention: SelfAttention, tokens: Tokens, chain: Chain, queries: Queries
) -> LayerAttention:
    chosen = torch.tensor(_choose_queries(len(tokens), queries), device=tokens.x.device)
    if attention.linear:
        summed = attention.describe_linear(tokens, chain, Context(), chosen)[1]
        shares = linear.weights(summed)
        return LayerAttention(number, attention, chain, summed.call, chosen, shares, None)
    call = attention.describe(tokens, chain, Context(), chosen)[1]
    values = scores(call)
    return LayerAttention(number, attention, chain, call, chosen, normalize_scores(call, values), values)
