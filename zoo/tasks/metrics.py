"""Loss and metrics of predicted tokens, by position in the window."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric

from zoo.data.spec import IGNORE_INDEX


def mean_loss(
    logits: Tensor, targets: Tensor, average: Callable[[Tensor], Tensor] = lambda own: own
) -> Tensor:
    """Compute the mean cross-entropy in nats over all targets; 0 if there are none.

    Args:
        logits: [B, N, V].
        targets: int64 [B, N], -100 where there is no target.
        average: Averages the number of targets over processes, so that the mean of their losses is
            the loss of the whole batch.
    """
    total = F.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
    )
    count = average((targets != IGNORE_INDEX).sum().to(total.dtype))
    return propagate_infinity(total / torch.where(count == 0, 1, count), logits)


def propagate_infinity(loss: Tensor, logits: Tensor) -> Tensor:
    """Make a loss NaN where a logit is infinite or NaN, and leave it as it is elsewhere.

    Cross-entropy is finite, and so are its gradients, where the logit of a class is -inf that is
    not the label's. Such a logit is the result of an overflow.
    """
    return loss + 0 * logits.detach().amin()


class TokenCounts(NamedTuple):
    """Sums over batches and processes."""

    loss: Tensor
    """Cross-entropy at each position in nats, summed [N]."""

    targets: Tensor
    """Number of targets at each position [N]."""

    correct: Tensor
    """Number of those that were the likeliest token [N]."""

    bytes: Tensor
    """Bytes of all targets, as far as the data tells."""

    answers: Tensor
    """Number of windows with targets."""

    exact: Tensor
    """Number of those in which all targets were the likeliest token."""

    def measures(self) -> dict[str, Tensor]:
        """Compute loss in nats per target, perplexity and accuracy."""
        count = self.targets.sum()
        loss = self.loss.sum() / count
        return {"loss": loss, "perplexity": loss.exp(), "accuracy": self.correct.sum() / count}

    def exact_match(self) -> dict[str, Tensor]:
        """Compute the share of answers in which every token was right."""
        return {"exact": self.exact / self.answers}

    def bits(self, unit: str) -> dict[str, Tensor]:
        """Compute bits_per_character or bits_per_byte, where tokens have such a unit or bytes."""
        bits = self.loss.sum() / math.log(2)
        if unit != "token":
            return {f"bits_per_{unit}": bits / self.targets.sum()}
        return {"bits_per_byte": bits / self.bytes} if self.bytes else {}

    def position_losses(self) -> list[float | None]:
        """Compute the mean loss by position in the window; None where there was no target."""
        return _divide(self.loss, self.targets)

    def position_accuracies(self) -> list[float | None]:
        """Compute the accuracy by position in the window; None where there was no target."""
        return _divide(self.correct, self.targets)


class TokenMetrics(Metric):
    """Counts over a loop; windows longer than `length` widen them."""

    full_state_update = False
    loss: Tensor
    targets: Tensor
    correct: Tensor
    bytes: Tensor
    answers: Tensor
    exact: Tensor

    def __init__(self, length: int) -> None:
        super().__init__()
        self.add_state("loss", torch.zeros(length), dist_reduce_fx="sum")
        self.add_state("targets", torch.zeros(length, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("correct", torch.zeros(length, dtype=torch.long), dist_reduce_fx="sum")
        for name in ("bytes", "answers", "exact"):
            self.add_state(name, torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def widen(self, length: int) -> None:
        """Count at least `length` positions, so that all processes add up equal widths."""
        for name in ("loss", "targets", "correct"):
            counts = getattr(self, name)
            setattr(self, name, F.pad(counts, (0, max(0, length - len(counts)))))

    def update(self, logits: Tensor, targets: Tensor, target_bytes: Tensor | None = None) -> None:
        """Count a batch.

        Args:
            logits: [B, N, V].
            targets: int64 [B, N], -100 where there is no target.
            target_bytes: Bytes of each target [B, N], if known.
        """
        is_target = targets != IGNORE_INDEX
        losses = F.cross_entropy(
            logits.float().mT, targets, ignore_index=IGNORE_INDEX, reduction="none"
        )  # [B, N]
        is_correct = is_target & (logits.argmax(-1) == targets)
        self.loss = _add(self.loss, losses.sum(0))
        self.targets = _add(self.targets, is_target.sum(0))
        self.correct = _add(self.correct, is_correct.sum(0))

        has_target = is_target.any(1)
        self.answers = self.answers + has_target.sum()
        self.exact = self.exact + (has_target & (is_correct == is_target).all(1)).sum()
        if target_bytes is not None:
            self.bytes = self.bytes + (target_bytes * is_target).sum()

    def compute(self) -> TokenCounts:
        """Return the counts of all processes."""
        return TokenCounts(
            self.loss, self.targets, self.correct, self.bytes, self.answers, self.exact
        )


def _divide(sums: Tensor, counts: Tensor) -> list[float | None]:
    pairs = zip(sums.tolist(), counts.tolist(), strict=True)
    return [total / count if count else None for total, count in pairs]


def _add(one: Tensor, other: Tensor) -> Tensor:
    width = max(len(one), len(other))
    return F.pad(one, (0, width - len(one))) + F.pad(other, (0, width - len(other)))
