"""The receptive field by layer: how far back the gradient of a token's state reaches.

With y the state of one token that enters a layer, or the output of the model, and e_m the input
state of token m, the normalized gradient is s_m = |dy/de_m| / sum_n |dy/de_n|, and its sum over all
tokens at most so far away is the cumulative normalized gradient of Chi et al. 2023
(arXiv:2212.10356), who call the length at which it reaches 0.99 the empirical receptive field. Here
|.| is the Frobenius norm, whose square is the mean of |(dy/de_m)^T r|^2 over random directions r,
one for each sample.

The theoretical field is what the masks of all layers before leave reachable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from zoo.attention.backends.reference import attention_mask
from zoo.attention.call import AttentionCall
from zoo.attention.layer import AttentionInput, find_encoded, hook_tokens
from zoo.attention.tokens import Tokens
from zoo.diagnosis.equipped_model import list_tensors
from zoo.diagnosis.inputs import Inputs
from zoo.diagnostics.capture import choose_evenly, evaluation_mode, hook_attention
from zoo.models.transformer import find_transformers

REACHED = 0.99
LAYERS = 12  # layers of which a gradient is computed at most
SEED = 0
NONE = float("nan")


@dataclass(frozen=True, kw_only=True)
class LayerField:
    """The receptive field of one token after some layers.

    Attributes:
        layers: How many layers the state has passed.
        distances: Distances from the token, ascending, [X]: tokens of text, patches along the axis
            that is farther.
        cumulative: The cumulative normalized gradient at these, [X].
        reach: The least distance at which it is at least 0.99.
        allowed: The largest distance that the masks of these layers let through; NaN where some
            layers have no attention.
    """

    layers: int
    distances: Tensor
    cumulative: Tensor
    reach: float
    allowed: float


def measure_fields(model: nn.Module, inputs: Inputs) -> tuple[LayerField, ...]:
    """Measure the receptive field of one token after each layer.

    It is the last token under a causal mask, else the one in the middle of text or image.

    Args:
        model: A model with attention layers of zoo, its own or observed ones.
        inputs: Its arguments; the memory that gradients take grows with their tokens.

    Returns:
        The fields after the first layer and so on, of `LAYERS` of them at most; the last is that of
        the whole model, unless its output has no tokens. Empty if the input has no states.
    """
    leaves: list[Tensor] = []
    seen: list[AttentionInput] = []

    def follow(tokens: Tokens) -> Tokens:
        # gradients start here, at the input of the first layer
        leaves.append(tokens.x.detach().requires_grad_())
        return tokens.replace(x=leaves[-1])

    with ExitStack() as stack:
        stack.enter_context(evaluation_mode(model))
        stack.enter_context(torch.enable_grad())
        for part in find_encoded(model):
            stack.enter_context(hook_tokens(part, follow))
        outputs = stack.enter_context(keep_outputs(model))
        stack.enter_context(hook_attention(model, seen.append))
        found = model(*inputs)
        states = list_states(seen, outputs, found)
        has_mixers = len(seen) < (seen[0].chain.dims.depth or 0)
        calls = [_describe(one) for one in seen]
        is_counted = find_counted(seen[0].tokens)
        if not is_counted.any():
            return ()
        query, distances = _choose_token(seen[0].tokens, calls[0].causal, is_counted)
        reached = _follow_masks([attention_mask(one)[:, 0].any(0) for one in calls], query)
        fields = []
        for number in choose_evenly(len(states), LAYERS):
            layers, state = states[number]
            sizes = _measure_gradient(state, leaves[0], query)
            field = accumulate(sizes, distances, is_counted)
            # what a mixer lets through is not known
            allowed = distances[reached[number] & is_counted].max() if not has_mixers else NONE
            fields.append(replace(field, layers=layers, allowed=float(allowed)))
    return tuple(fields)


def accumulate(sizes: Tensor, distances: Tensor, is_counted: Tensor) -> LayerField:
    """Sum normalized gradients over distances.

    Args:
        sizes: The norms of gradients of each token [N].
        distances: Its distance from the token whose state it is [N].
        is_counted: Whether it has a position, bool [N].
    """
    sizes, distances = sizes[is_counted].double().cpu(), distances[is_counted].double().cpu()
    steps, index = distances.unique(return_inverse=True)
    sums = torch.zeros_like(steps).index_add_(0, index, sizes / sizes.sum())
    cumulative = sums.cumsum(0)
    # the last sum may be a rounding below 1
    reach = steps[int((cumulative >= REACHED).double().argmax())]
    return LayerField(
        layers=0, distances=steps, cumulative=cumulative, reach=float(reach), allowed=float("nan")
    )


def _measure_gradient(state: Tensor, leaf: Tensor, query: int) -> Tensor:
    """Return the norm of the derivative of a token's state by each input state, [N]."""
    generator = torch.Generator().manual_seed(SEED)
    directions = torch.randn(state[:, query].shape, generator=generator).to(state)
    (gradient,) = torch.autograd.grad(
        (state[:, query] * directions).sum(), leaf, retain_graph=True, allow_unused=True
    )
    if gradient is None:
        return torch.zeros_like(leaf[0, :, 0])
    return gradient.detach().square().sum(-1).mean(0).sqrt()


@contextmanager
def keep_outputs(model: nn.Module) -> Iterator[list[Tensor]]:
    """Within the context, keep what the final norm of zoo's own models returns."""
    outputs: list[Tensor] = []
    with ExitStack() as stack:
        for transformer in find_transformers(model):
            hook = transformer.norm.register_forward_hook(lambda *given: outputs.append(given[-1]))
            stack.callback(hook.remove)
        yield outputs


def list_states(
    seen: Sequence[AttentionInput], outputs: Sequence[Tensor], found: object
) -> list[tuple[int, Tensor]]:
    """Return states [B, N, D] by the number of layers that they have passed.

    Args:
        seen: The inputs of all attention layers.
        outputs: What `keep_outputs` has kept.
        found: The output of the model.

    Returns:
        What enters the second attention and so on, some layers before which may have had none, and
        the output of the model if it has tokens.
    """
    shape = seen[0].tokens.x.shape[:2]
    states = [(one.layer, one.tokens.x) for one in seen[1:]]
    finals = [one for one in (*outputs, *list_tensors(found)) if one.ndim == 3]
    depth = seen[0].chain.dims.depth or len(seen)
    return [*states, *[(depth, one) for one in finals if one.shape[:2] == shape][:1]]


def _describe(given: AttentionInput) -> AttentionCall:
    """Return the attention call of all queries of a layer."""
    indices = torch.arange(len(given.tokens), device=given.tokens.x.device)
    described = given.describe(indices)
    return described if isinstance(described, AttentionCall) else described.call


def find_counted(tokens: Tokens) -> Tensor:
    """Return which tokens have a position and are padding in no sample, bool [N]."""
    is_counted = torch.ones(len(tokens), dtype=torch.bool, device=tokens.x.device)
    for mask in (tokens.has_position, tokens.valid):
        is_counted = is_counted if mask is None else is_counted & mask.all(0)
    return is_counted


def _choose_token(tokens: Tokens, causal: bool, is_counted: Tensor) -> tuple[int, Tensor]:
    """Return the token, and the distances of all tokens from it [N]."""
    places, index = is_counted.nonzero()[:, 0], tokens.index[0]
    if causal:
        query = int(places[-1])
    else:
        middle = (index[places].amin(0) + index[places].amax(0)) / 2
        query = int(places[(index[places] - middle).abs().sum(-1).argmin()])
    return query, (index - index[query]).abs().amax(-1)


def _follow_masks(visible: Sequence[Tensor], query: int) -> list[Tensor]:
    """Return the tokens from which something reaches a token after each layer, bool [N] each."""
    reached, found = torch.eye(len(visible[0]), dtype=torch.bool, device=visible[0].device), []
    for mask in visible:
        # a state keeps what it has, and adds what its keys have
        reached = (mask.float() @ reached.float() > 0) | reached
        found.append(reached[query])
    return found
