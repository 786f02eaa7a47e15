"""What is counted of predicted tokens, by their place in the window."""

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
    logits: Tensor, targets: Tensor, over_processes: Callable[[Tensor], Tensor] = lambda own: own
) -> Tensor:
    """Cross-entropy in nats of logits [B, N, V], averaged over the targets [B, N] that are asked; 0 if none is.

    It is divided by how many are asked on average `over_processes`: the mean of what these give is that of the whole batch.
    """
    total = F.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
    )
    asked = over_processes((targets != IGNORE_INDEX).sum().to(total.dtype))
    return total / torch.where(asked == 0, 1, asked)


class TokenCounts(NamedTuple):
    """Sums over batches and processes."""

    loss: Tensor  # [N] cross-entropy of the tokens asked at each place
    targets: Tensor  # [N] how many they are
    correct: Tensor  # [N] how many were the likeliest
    bytes: Tensor  # how many bytes they are, as far as it was said
    answers: Tensor  # how many windows ask for anything
    exact: Tensor  # in how many of those all was right

    def measures(self) -> dict[str, Tensor]:
        """loss in nats for each token asked, its perplexity, accuracy."""
        asked = self.targets.sum()
        loss = self.loss.sum() / asked
        return {"loss": loss, "perplexity": loss.exp(), "accuracy": self.correct.sum() / asked}

    def whole(self) -> dict[str, Tensor]:
        """exact: the share of windows that ask for anything in which every token asked was the likeliest."""
        return {"exact": self.exact / self.answers}

    def bits(self, unit: str) -> dict[str, Tensor]:
        """bits_per_character or bits_per_byte; nothing where a token is neither and its bytes were not said."""
        if unit == "token":
            return (
                {"bits_per_byte": self.loss.sum() / math.log(2) / self.bytes} if self.bytes else {}
            )
        return {f"bits_per_{unit}": self.loss.sum() / math.log(2) / self.targets.sum()}

    def positions(self) -> list[float | None]:
        """The mean loss by place in the window, None where nothing was asked."""
        return _shares(self.loss, self.targets)

    def accuracies(self) -> list[float | None]:
        """The accuracy by place, likewise."""
        return _shares(self.correct, self.targets)


class TokenMetrics(Metric):
    """Counts predicted tokens over a loop; windows longer than `length` widen it."""

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
        """Count to a length at least: the processes of a loop, each of which meets other windows, add up equal widths."""
        for name in ("loss", "targets", "correct"):
            counted = getattr(self, name)
            setattr(self, name, F.pad(counted, (0, max(0, length - len(counted)))))

    def update(self, logits: Tensor, targets: Tensor, sizes: Tensor | None = None) -> None:
        """Add logits [B, N, V] of targets [B, N], `sizes` [B, N] bytes long each."""
        known = targets != IGNORE_INDEX
        losses = F.cross_entropy(
            logits.float().mT, targets, ignore_index=IGNORE_INDEX, reduction="none"
        )  # [B, N]
        self.loss = _sum(self.loss, losses.sum(0))
        self.targets = _sum(self.targets, known.sum(0))
        right, answers = known & (logits.argmax(-1) == targets), known.any(1)
        self.correct = _sum(self.correct, right.sum(0))
        self.answers = self.answers + answers.sum()
        self.exact = self.exact + (answers & (right == known).all(1)).sum()
        if sizes is not None:
            self.bytes = self.bytes + (sizes * known).sum()

    def compute(self) -> TokenCounts:
        return TokenCounts(
            self.loss, self.targets, self.correct, self.bytes, self.answers, self.exact
        )


def _shares(sums: Tensor, asked: Tensor) -> list[float | None]:
    pairs = zip(sums.tolist(), asked.tolist(), strict=True)
    return [total / count if count else None for total, count in pairs]


def _sum(one: Tensor, two: Tensor) -> Tensor:
    width = max(len(one), len(two))
    return F.pad(one, (0, width - len(one))) + F.pad(two, (0, width - len(two)))
