"""Ablations of positions: run a model whose tokens have other positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MappingProxyType

import torch
from torch import Tensor, nn

from zoo.attention.layer import find_encoded, hook_tokens
from zoo.attention.tokens import Tokens
from zoo.errors import OptionError

SEED = 0  # seed of the shuffled order

Change = Callable[[Tokens], Tensor]
"""Tokens -> new indices [1|B, N, P]; those of tokens without a position are ignored."""


@contextmanager
def change_positions(model: nn.Module, change: Change) -> Iterator[None]:
    """Within the context, change the positions of the model's tokens before the first layer.

    Contents and masks are unchanged. An encoding that does not support the new positions raises
    OptionError when the model runs.

    Raises:
        OptionError: The model has no encodings of zoo.
    """
    encoded = find_encoded(model)
    if not encoded:
        message = "the model has no encodings of zoo, so its positions cannot be changed"
        raise OptionError("controls", message)
    with ExitStack() as stack:
        for part in encoded:
            stack.enter_context(hook_tokens(part, lambda tokens: apply_change(tokens, change)))
        yield


def apply_change(tokens: Tokens, change: Change) -> Tokens:
    """Return the tokens at new positions, except those without a position."""
    index = change(tokens)
    if tokens.has_position is not None:
        index = index.where(tokens.has_position[..., None], tokens.index)
    # fast paths for ordered positions would otherwise ignore the new ones
    return tokens.replace(index=index, pos=index, ordered=False, consecutive=False)


def shuffle(tokens: Tokens) -> Tensor:
    """Permute the positions within each document, in an order that depends only on N.

    Padding, wherever it is, does not change the order.
    """
    groups = _group_tokens(tokens)  # [1|B, N]
    lots = torch.rand(len(tokens), generator=torch.Generator().manual_seed(SEED)).to(groups.device)
    lots = lots.expand_as(groups)
    if tokens.valid is not None:
        # The n-th token that is no padding draws the n-th lot.
        lots = lots.gather(1, (tokens.valid.cumsum(1) - 1).clamp(min=0))
    # Tokens sorted by group and then by lot take the positions of tokens sorted by group.
    drawn = lots.argsort(dim=1)
    drawn = drawn.gather(1, groups.gather(1, drawn).argsort(dim=1, stable=True))
    slots = groups.argsort(dim=1, stable=True)
    source = torch.empty_like(slots).scatter_(1, slots, drawn)  # token -> whose position it takes
    index = tokens.index.expand(len(source), -1, -1)
    return index.gather(1, source[..., None].expand_as(index))


def shift(tokens: Tokens) -> Tensor:
    """Shift all positions along each axis by half its size, rounded up, to untrained positions."""
    low, high = _find_range(tokens)
    return tokens.index + ((high - low + 1) / 2).ceil()


def zero(tokens: Tokens) -> Tensor:
    """Move all tokens to the origin."""
    return torch.zeros_like(tokens.index)


def reverse(tokens: Tokens) -> Tensor:
    """Reverse each axis within documents: i becomes n - 1 - i."""
    low, high = _find_range(tokens)
    return low + high - tokens.index


CHANGES: Mapping[str, Change] = MappingProxyType(
    {"shuffled": shuffle, "shifted": shift, "zeroed": zero, "reversed": reverse}
)


def _group_tokens(tokens: Tokens) -> Tensor:
    """Return the group of each token, int [1|B, N]; tokens of a group may exchange positions."""
    # Groups are documents, except that each token without a position is its own group.
    device, count = tokens.index.device, len(tokens)
    groups = (
        torch.zeros(1, count, dtype=torch.long, device=device)
        if tokens.document is None
        else tokens.document
    )
    if tokens.has_position is None:
        return groups
    alone = -2 - torch.arange(count, device=device)  # -1 is padding
    return torch.where(tokens.has_position, groups, alone)


def _find_range(tokens: Tokens) -> tuple[Tensor, Tensor]:
    """Return the first and last position of the grid or document along each axis, [1|B, 1|N, P]."""
    if tokens.grid_size is not None:
        return torch.zeros_like(tokens.grid_size), tokens.grid_size - 1
    if tokens.document is None:
        return tokens.index.amin(1, keepdim=True), tokens.index.amax(1, keepdim=True)
    # Smallest and largest position of each document, whose numbers are shifted to start at 0.
    batch = max(len(tokens.document), len(tokens.index))
    index = tokens.index.expand(batch, -1, -1)
    numbers = (tokens.document - tokens.document.amin())[..., None].expand_as(index)
    cells = index.new_zeros(batch, int(numbers.max()) + 1, numbers.shape[-1])
    extremes = (
        cells.scatter_reduce(1, numbers, index, how, include_self=False) for how in ("amin", "amax")
    )
    low, high = (cell.gather(1, numbers) for cell in extremes)
    return low, high
