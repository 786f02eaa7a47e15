"""Continuing a text with a causal model, token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from zoo.attention.context import Context


@torch.inference_mode()
def continued(
    model: nn.Module, prompt: Sequence[int], context: Context | None, generator: torch.Generator, *,
    temperature: float = 1.0, top_k: int | None = None, top_p: float = 1.0,
) -> Iterator[int]:  # fmt: skip
    """Tokens that follow a prompt, without end. Without a context the whole text is read again for each.

    The model takes `context` and `last`, as `Decoder` does. What the context remembers is of inference mode.

    Raises Invalid where the model can go no further.
    """
    device = next(model.parameters()).device
    text = torch.tensor([prompt], device=device)
    logits = model(text, context=context, last=1)
    while True:
        token = drawn(logits[0, -1], generator, temperature, top_k, top_p)
        yield token
        new = torch.tensor([[token]], device=device)
        text = new if context is not None else torch.cat([text, new], dim=1)
        logits = model(text, context=context, last=1)


def drawn(logits: Tensor, generator: torch.Generator, temperature: float, top_k: int | None, top_p: float) -> int:
    """A token drawn from logits [V] in float64 on the CPU, so that rounding elsewhere hardly ever changes a text."""
    logits = logits.double().cpu()
    if temperature == 0:
        return int(logits.argmax())
    return int(torch.multinomial(shares(logits, temperature, top_k, top_p), 1, generator=generator))


def shares(logits: Tensor, temperature: float, top_k: int | None, top_p: float) -> Tensor:
    """Probabilities [V]: the `top_k` likeliest tokens, of which the fewest that together have a share of `top_p`."""
    logits, order = logits.sort(descending=True, stable=True)  # of equals the first, as `argmax` has it
    logits = (logits - logits[0]) / temperature  # which no small temperature makes infinite
    if top_k is not None:
        logits[top_k:] = float("-inf")
    likely = logits.softmax(-1)
    before = likely.cumsum(-1) - likely
    kept = likely.masked_fill(before >= top_p, 0)
    return torch.zeros_like(likely).scatter(0, order, kept / kept.sum())
