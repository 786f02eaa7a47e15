"""The baseline of context extension: predict from no more tokens than in training."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class TruncatedContext(nn.Module):
    """Reads a long text in overlapping segments of the training length L, each from position 0.

    The first segment predicts all its next tokens, and every other one, half a segment further on,
    only those of its second half. So each token after the first L is predicted from more than half
    of L tokens and at most L.

    Args:
        model: A causal language model.
        length: Training length L in tokens.
    """

    memory_length = 0

    def __init__(self, model: nn.Module, length: int) -> None:
        super().__init__()
        self.model, self.length = model, length

    def forward(
        self, inputs: Tensor, documents: Tensor | None = None, context: None = None
    ) -> Tensor:
        """Compute logits [B, N, V] from tokens and document numbers, int64 [B, N]."""
        rows, count = inputs.shape
        if count <= self.length:
            return self.model(inputs, documents)

        step = max(1, self.length // 2)
        ends = [*range(self.length, count, step), count]
        index = torch.tensor([[*range(end - self.length, end)] for end in ends])
        index = index.to(inputs.device)  # [S, L]
        segments = [
            None if part is None else part[:, index].flatten(0, 1)  # [B S, L]
            for part in (inputs, documents)
        ]
        logits = self.model(*segments).unflatten(0, (rows, len(ends)))  # [B, S, L, V]
        # the tokens of a segment that none before it has predicted
        fresh = [end - before for before, end in zip([0, *ends], ends, strict=False)]
        parts = [logits[:, at, self.length - new :] for at, new in enumerate(fresh)]
        return torch.cat(parts, dim=1)


def explain_untruncated(model: nn.Module) -> str:
    """Return why the context of a model cannot be truncated; empty if it can."""
    memory = getattr(model, "memory_length", None)
    if memory == 0:
        return ""
    hint = "leave truncate out of evaluate.extrapolation"
    if memory is None:
        return f"truncate predicts next tokens, which this model does not; {hint}"
    return f"truncate forgets what the model remembers of earlier windows; {hint}"
