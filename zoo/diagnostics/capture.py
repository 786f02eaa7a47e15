"""Capture the exact attention of any layer for chosen queries, independently of the backend.

A layer describes its attention call before a backend computes it. A capture describes the call
again for chosen queries, and computes scores and weights with the reference backend. The model
itself still uses its fused kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from zoo.attention import AttentionCall, Tokens, linear_sums
from zoo.attention.backends.reference import normalize_scores, scores
from zoo.attention.chain import Chain
from zoo.attention.layer import AttentionInput, Context, Encoded, HeadLayer, find_encoded
from zoo.attention.linear_sums import LinearCall
from zoo.errors import OptionError

Queries = int | Sequence[int] | None
"""Number of queries to choose evenly, or their sequence indices; None: all."""


@dataclass(frozen=True)
class LayerAttention:
    """The attention of one layer for Q chosen queries and M keys.

    Positions of queries and keys, in tokens or patches, are `call.queries.index` and
    `call.keys.index`. Linear attention has no scores, and its weights may be negative.

    Queries that are padding see no key, whatever the model lets them see: their weights are 0 and
    their scores -inf, so that no metric counts them.

    Attributes:
        layer: Index of the layer.
        chain: Its encodings.
        call: Its attention call for the chosen queries.
        query_index: Sequence indices of the queries, int [Q].
        weights: Attention weights [B, H, Q, M], in at least float32.
        scores: Scores [B, H, Q, M] as they enter the normalization; -inf for hidden pairs.
        document: Document numbers of the keys, int [1|B, M], -1 for padding; None: one document
            without padding.
    """

    layer: int
    chain: Chain
    call: AttentionCall
    query_index: Tensor
    weights: Tensor
    scores: Tensor | None
    document: Tensor | None = None

    @property
    def is_real(self) -> tuple[Tensor, Tensor]:
        """Masks of the queries and keys that are no padding, bool [1|B, Q|M]."""
        if self.document is None:
            keys = self.query_index.new_ones(1, self.weights.shape[-1]).bool()
        else:
            keys = self.document >= 0
        return keys[:, self.query_index], keys

    @property
    def grid(self) -> tuple[Tensor, Tensor]:
        """Masks of the queries and keys that belong to the text or image, bool [1|B, Q|M].

        CLS and register tokens do not belong to it, even if they have a position.
        """
        keys, count = self.call.keys, self.weights.shape[-1]
        in_grid = (
            self.query_index.new_ones(1, count).bool()
            if keys.has_position is None
            else keys.has_position
        )
        if keys.grid_size is not None and keys.index.shape[-1] > 1:
            # Special tokens come first. A CLS token with a position is not part of the grid.
            extra = count - int(keys.grid_size[0, 0].prod())
            if int(in_grid[0].sum()) > count - extra:
                in_grid = in_grid & (torch.arange(count, device=in_grid.device) >= extra)
        return in_grid[:, self.query_index], in_grid


def capture_model(
    model: nn.Module,
    inputs: Sequence[Any],
    queries: Queries = None,
    layers: Sequence[int] | None = None,
) -> list[LayerAttention]:
    """Capture the attention of some layers while the model runs on `inputs`.

    The model runs in evaluation mode, uncompiled and without gradients. Its modes are restored.

    Args:
        model: A model with attention layers of zoo.
        inputs: Arguments of the model.
        queries: Number of queries to choose evenly, without padding, or their sequence indices;
            None: all.
        layers: Indices of layers; None: all.

    Raises:
        OptionError: A layer does not exist, or the model has no attention layer of zoo.
    """
    attentions: list[LayerAttention] = []
    capture_layers(model, inputs, attentions.append, queries, layers)
    return attentions


def capture_layers(
    model: nn.Module,
    inputs: Sequence[Any],
    callback: Callable[[LayerAttention], None],
    queries: Queries = None,
    layers: Sequence[int] | None = None,
) -> None:
    """Pass each captured layer to `callback`, so that only one is in memory at a time.

    See `capture_model` for the other arguments.
    """
    wanted = set(number_layers(model, layers) if layers is None else layers)

    def see(attention_input: AttentionInput) -> None:
        if attention_input.layer in wanted:
            callback(_capture_layer(attention_input, queries))

    with hook_attention(model, see), evaluation_mode(model):
        model(*inputs)


def number_layers(model: nn.Module, layers: Sequence[int] | None) -> list[int]:
    """Return the indices of the attention layers: their own, or their order if not unique.

    Raises:
        OptionError: One of `layers` does not exist.
    """
    numbers = [*find_attentions(model).values()]
    for part in find_equipped(model):
        numbers += [chain.dims.layer for chain in part.chains]
    if not numbers:
        raise OptionError("layers", "the model has no attention layer of zoo")
    absent = sorted(set(layers or ()) - set(numbers))
    if absent:
        message = f"there is no layer {', '.join(map(str, absent))}"
        raise OptionError("layers", f"{message}; the model has layers 0 to {max(numbers)}")
    return numbers


@contextmanager
def hook_attention(model: nn.Module, callback: Callable[[AttentionInput], None]) -> Iterator[None]:
    """Within the context, call `callback` with the input of each attention layer."""
    # Layers of zoo's own models have hooks of torch; equipped models call hooks themselves.
    modules = find_attentions(model)

    def pass_on(layer: HeadLayer, arguments: tuple[Tokens, Chain, Context]) -> None:
        tokens, chain, _ = arguments
        # an empty context: a diagnosis has no cache, whatever the model runs with
        callback(
            AttentionInput(
                modules[layer],
                tokens,
                chain,
                lambda queries: layer.describe(tokens, chain, Context(), queries)[1],
            )
        )

    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_pre_hook(pass_on).remove)
        for equipment in find_equipped(model):
            equipment.attention_hooks.append(callback)
            stack.callback(equipment.attention_hooks.remove, callback)
        yield


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Within the context, the model is in evaluation mode, uncompiled and without gradients."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            yield
    finally:
        # each as it was: parts of a model may be frozen in evaluation mode
        for module in training:
            module.training = True


def find_attentions(model: nn.Module) -> dict[HeadLayer, int]:
    """Return the attention layers of zoo's own models, with their indices."""
    modules = [module for module in model.modules() if isinstance(module, HeadLayer)]
    layers = [module.dims.layer for module in modules]
    numbers = layers if len(set(layers)) == len(layers) else range(len(layers))
    return dict(zip(modules, numbers, strict=True))


def find_equipped(model: nn.Module) -> list[Encoded]:
    """List the parts of a model whose attention belongs to another library."""
    return [part for part in find_encoded(model) if part.calls_hooks]


def choose_evenly(count: int, most: int | None = None) -> list[int]:
    """Choose at most `most` of `count` indices evenly; a single one is in the middle."""
    if most is None or most >= count:
        return list(range(count))
    if most == 1:
        return [(count - 1) // 2]
    return [round(n * (count - 1) / (most - 1)) for n in range(most)]


def list_columns(tokens: Tokens) -> list[int]:
    """Return the sequence indices that are a token, and not padding, in at least one sample."""
    if tokens.valid is None:
        return list(range(len(tokens)))
    return tokens.valid.any(0).nonzero()[:, 0].tolist()


def _choose_queries(tokens: Tokens, queries: Queries) -> list[int]:
    if queries is None:
        return list(range(len(tokens)))
    if isinstance(queries, int):
        # The choice does not depend on the amount of padding.
        columns = list_columns(tokens)
        return [columns[number] for number in choose_evenly(len(columns), queries)]
    return list(queries)


def _capture_layer(attention_input: AttentionInput, queries: Queries) -> LayerAttention:
    tokens = attention_input.tokens
    chosen = torch.tensor(
        _choose_queries(tokens, queries), device=tokens.x.device, dtype=torch.long
    )
    call, document = attention_input.describe(chosen), tokens.document
    if isinstance(call, LinearCall):
        shares = linear_sums.weights(call)
        return LayerAttention(
            attention_input.layer, attention_input.chain, call.call, chosen, shares, None, document
        )
    call = _hide_padding(call, tokens, chosen)
    values = scores(call)
    weights = normalize_scores(call, values)
    return LayerAttention(
        attention_input.layer, attention_input.chain, call, chosen, weights, values, document
    )


def _hide_padding(call: AttentionCall, tokens: Tokens, chosen: Tensor) -> AttentionCall:
    """Make queries that are padding see no key, as they do in zoo's own models.

    In models of other libraries they see keys, but nothing reads their output.
    """
    if tokens.document is None or call.queries.document is not None:
        return call
    # The mask of the model keeps documents apart: only padding is left to be told from tokens.
    padding = tokens.document.clamp(max=0)
    keys = padding if call.keys.document is None else call.keys.document.clamp(max=0)
    return call.replace(
        queries=call.queries.replace(document=padding[:, chosen]),
        keys=call.keys.replace(document=keys),
    )
