"""Loss and metrics of predicted tokens, by position in the window; metrics that recipes name."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Literal, NamedTuple, get_args, get_type_hints

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassCalibrationError, MulticlassF1Score

from zoo import registry
from zoo.data.spec import IGNORE_INDEX, DataSpec, ImageSpec, TextClassificationSpec
from zoo.errors import OptionError
from zoo.options import Choice, Count
from zoo.registry import register


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


MEASURED = (
    "loss",
    "perplexity",
    "accuracy",
    "exact",
    "bits_per_byte",
    "bits_per_character",
    "bits_per_token",
)
"""What tasks of predicted tokens measure anyway."""


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


@register
class F1(MulticlassF1Score):
    """F1 of classes, the mean over them.

    Args:
        spec: The facts of the data.
        average: macro weighs all classes alike, weighted each by its samples.
    """

    name = "f1"

    def __init__(
        self,
        spec: ImageSpec | TextClassificationSpec,
        *,
        average: Literal["macro", "weighted"] = "macro",
    ) -> None:
        super().__init__(spec.classes, average=average)


@register
class CalibrationError(MulticlassCalibrationError):
    """Expected calibration error: how far confidence is from accuracy.

    Args:
        spec: The facts of the data.
        bins: Bins of confidence.
    """

    name = "ece"

    def __init__(self, spec: ImageSpec | TextClassificationSpec, *, bins: Count = 15) -> None:
        super().__init__(spec.classes, n_bins=bins)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count a batch of logits [B, classes] and labels [B]."""
        # given logits that lie between 0 and 1, it would take them for probabilities
        super().update(preds.float().softmax(-1), target)


def build_metrics(
    choices: Sequence[Choice], spec: DataSpec, measured: Collection[str]
) -> MetricCollection:
    """Build the metrics that a recipe names.

    A metric is one of torchmetrics. It is made with the facts of the data and its options, counts
    batches of logits and targets, and computes one number.

    Args:
        choices: The metrics.
        spec: The facts of the data.
        measured: Names of what the task measures anyway.

    Returns:
        The metrics by their names.

    Raises:
        OptionError: A name is taken, or a metric does not measure such data.
    """
    built: dict[str, Metric] = {}
    for number, choice in enumerate(choices):
        key, name = f"metrics.{number}", choice.name
        if name in built or name in measured:
            raise OptionError(key, f"{name} is measured already; leave it out")
        cls = registry.find("metrics", name)
        expected = get_type_hints(cls.__init__).get("spec", object)
        if not isinstance(spec, expected):
            kinds = " or ".join(kind.noun for kind in get_args(expected) or (expected,))
            raise OptionError(key, f"{name} measures {kinds}, and the data yields {spec.noun}")
        built[name] = cls(spec, **choice.options)
    return MetricCollection(dict(built), compute_groups=False)


class ChosenMetrics(nn.Module):
    """The metrics that a recipe names, for validation and for test; see `build_metrics`."""

    def __init__(
        self, choices: Sequence[Choice], spec: DataSpec, measured: Collection[str]
    ) -> None:
        super().__init__()
        self.val = build_metrics(choices, spec, measured)
        self.test = build_metrics(choices, spec, measured)

    def __getitem__(self, split: str) -> MetricCollection:
        return self.val if split == "val" else self.test


def _divide(sums: Tensor, counts: Tensor) -> list[float | None]:
    pairs = zip(sums.tolist(), counts.tolist(), strict=True)
    return [total / count if count else None for total, count in pairs]


def _add(one: Tensor, other: Tensor) -> Tensor:
    width = max(len(one), len(other))
    return F.pad(one, (0, width - len(one))) + F.pad(other, (0, width - len(other)))
