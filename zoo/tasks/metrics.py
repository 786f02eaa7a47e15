"""What is counted of predicted tokens, by their place in the window."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics import Metric

NOT_ASKED = -100


def mean_loss(
    logits: Tensor, targets: Tensor, over_processes: Callable[[Tensor], Tensor] = lambda own: own
) -> Tensor:
    """Cross-entropy in nats of logits [B, N, V], averaged over the targets [B, N] that are asked; 0 if none is.

    It is divided by how many are asked on average `over_processes`: the mean of what these give is that of the whole batch.
    """
    total = F.cross_entropy(
        logits.flatten(0, 1).float(), targets.flatten(), ignore_index=NOT_ASKED, reduction="sum"
    )
    asked = over_processes((targets != NOT_ASKED).sum().to(total.dtype))
    return total / torch.where(asked == 0, 1, asked)


class Counts(NamedTuple):
    """Sums over batches and processes."""

    nats: Tensor  # [N] cross-entropy of the tokens asked at each place
    asked: Tensor  # [N] how many they are
    right: Tensor  # [N] how many were the likeliest
    bytes: Tensor  # how many bytes they are, as far as it was said
    answers: Tensor  # how many windows ask for anything
    exact: Tensor  # in how many of those all was right

    def measures(self) -> dict[str, Tensor]:
        """loss in nats for each token asked, its perplexity, accuracy."""
        asked = self.asked.sum()
        loss = self.nats.sum() / asked
        return {"loss": loss, "perplexity": loss.exp(), "accuracy": self.right.sum() / asked}

    def whole(self) -> dict[str, Tensor]:
        """exact: the share of windows that ask for anything in which every token asked was the likeliest."""
        return {"exact": self.exact / self.answers}

    def bits(self, unit: str) -> dict[str, Tensor]:
        """bits_per_character or bits_per_byte; nothing where a token is neither and its bytes were not said."""
        if unit == "token":
            return (
                {"bits_per_byte": self.nats.sum() / math.log(2) / self.bytes} if self.bytes else {}
            )
        return {f"bits_per_{unit}": self.nats.sum() / math.log(2) / self.asked.sum()}

    def positions(self) -> list[float | None]:
        """The mean loss by place in the window, None where nothing was asked."""
        return _shares(self.nats, self.asked)

    def accuracies(self) -> list[float | None]:
        """The accuracy by place, likewise."""
        return _shares(self.right, self.asked)


class Tally(Metric):
    """Counts predicted tokens over a loop; windows longer than `length` widen it."""

    full_state_update = False
    nats: Tensor
    asked: Tensor
    right: Tensor
    bytes: Tensor
    answers: Tensor
    exact: Tensor

    def __init__(self, length: int) -> None:
        super().__init__()
        self.add_state("nats", torch.zeros(length), dist_reduce_fx="sum")
        self.add_state("asked", torch.zeros(length, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("right", torch.zeros(length, dtype=torch.long), dist_reduce_fx="sum")
        for name in ("bytes", "answers", "exact"):
            self.add_state(name, torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def widen(self, length: int) -> None:
        """Count to a length at least: the processes of a loop, each of which meets other windows, add up equal widths."""
        for name in ("nats", "asked", "right"):
            counted = getattr(self, name)
            setattr(self, name, F.pad(counted, (0, max(0, length - len(counted)))))

    def update(self, logits: Tensor, targets: Tensor, sizes: Tensor | None = None) -> None:
        """Add logits [B, N, V] of targets [B, N], `sizes` [B, N] bytes long each."""
        known = targets != NOT_ASKED
        losses = F.cross_entropy(
            logits.float().mT, targets, ignore_index=NOT_ASKED, reduction="none"
        )  # [B, N]
        self.nats = _sum(self.nats, losses.sum(0))
        self.asked = _sum(self.asked, known.sum(0))
        right, answers = known & (logits.argmax(-1) == targets), known.any(1)
        self.right = _sum(self.right, right.sum(0))
        self.answers = self.answers + answers.sum()
        self.exact = self.exact + (answers & (right == known).all(1)).sum()
        if sizes is not None:
            self.bytes = self.bytes + (sizes * known).sum()

    def compute(self) -> Counts:
        return Counts(self.nats, self.asked, self.right, self.bytes, self.answers, self.exact)


def _shares(sums: Tensor, asked: Tensor) -> list[float | None]:
    pairs = zip(sums.tolist(), asked.tolist(), strict=True)
    return [total / count if count else None for total, count in pairs]


def _sum(one: Tensor, two: Tensor) -> Tensor:
    width = max(len(one), len(two))
    return F.pad(one, (0, width - len(one))) + F.pad(two, (0, width - len(two)))
