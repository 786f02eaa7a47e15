"""Loss and metrics of predicted tokens by position, and the metrics that recipes can name."""

from __future__ import annotations

import io
import itertools
import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassCalibrationError, MulticlassF1Score

from zoo import registry
from zoo.attention.tokens import upcast
from zoo.data.spec import (
    IGNORE_INDEX,
    DataSpec,
    ImageSpec,
    PointSpec,
    TextClassificationSpec,
    TextSpec,
    is_kind_of,
    list_kinds,
    name_kinds,
)
from zoo.errors import OptionError
from zoo.options import Choice, Count
from zoo.registry import register
from zoo.utils import write_file

DEPTHS = 10
"""Bins of the depth at which the answer stands in its text."""
CONFUSION = "confusion.json"  # in the run directory
MAX_MATRIX_CLASSES = 2**13
"""Largest number of classes whose pairs are counted, in 0.5 GB; metrics may hold several copies."""
DIRECTIONS: Mapping[str, Literal["high", "low"]] = {
    "loss": "low",
    "perplexity": "low",
    "bits_per_character": "low",
    "bits_per_byte": "low",
    "accuracy": "high",
    "top5": "high",
    "exact": "high",
    "miou": "high",
    "rmse": "low",
    "mae": "low",
    "r2": "high",
}
"""Whether high or low values of a metric are better; of others nothing is called best."""
TEST_LOSS = "test/loss"


def express_baselines(
    baselines: Mapping[str, Mapping[str, float]], metrics: Mapping[str, float | None]
) -> dict[str, dict[str, float]]:
    """Return baselines in every unit that the metrics of a test have.

    A loss in nats per target is also a perplexity, and bits per character or byte: a model in one
    unit is not compared with a baseline in another.

    Args:
        baselines: {metric: {baseline: value}}.
        metrics: {metric: value} of the same test samples.
    """
    expressed = {metric: dict(values) for metric, values in baselines.items()}
    losses, loss = baselines.get(TEST_LOSS, {}), metrics.get(TEST_LOSS)
    for metric, value in metrics.items():
        name = metric.removeprefix("test/")
        if name == "perplexity" and losses:
            expressed[metric] = {key: exponentiate(nats) for key, nats in losses.items()}
        elif name.startswith("bits_per_") and losses and value and loss:
            # targets in a character or byte: 1 where these are the tokens
            targets = value * math.log(2) / loss
            expressed[metric] = {key: nats / math.log(2) * targets for key, nats in losses.items()}
    return expressed


def exponentiate(number: float) -> float:
    """Return e to the power of a number; infinity where it is too large for a float."""
    try:
        return math.exp(number)
    except OverflowError:
        return math.inf


def find_best_baseline(metric: str, baselines: Mapping[str, float]) -> str:
    """Return the name of the baseline that is the hardest to beat; empty if there is none.

    Args:
        metric: The metric, such as test/loss.
        baselines: {baseline: value}.
    """
    is_low = DIRECTIONS.get(metric.rpartition("/")[2]) == "low"
    choose = min if is_low else max
    return choose(baselines, key=lambda name: baselines[name], default="")


def is_beaten(metric: str, value: float, baseline: float) -> bool:
    """Return whether a model is better than a baseline; a tie counts for the baseline."""
    is_low = DIRECTIONS.get(metric.rpartition("/")[2]) == "low"
    return value < baseline if is_low else value > baseline


def count_targets(targets: Tensor) -> Tensor:
    """Return the number of targets in int64 [B, N] as a float32 scalar; -100 means no target."""
    return (targets != IGNORE_INDEX).sum().float()


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute the mean cross-entropy in nats over all targets; 0 if there are none.

    Args:
        logits: Logits [B, N, V].
        targets: Targets int64 [B, N]; -100 means no target.
    """
    total = F.cross_entropy(
        upcast(logits.flatten(0, 1)), targets.flatten(), ignore_index=IGNORE_INDEX, reduction="sum"
    )
    count = count_targets(targets)
    return propagate_infinity(total / torch.where(count == 0, 1, count), logits)


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute the cross-entropy of each token in nats, [B, N], 0 where there is no target.

    Args:
        logits: Logits [B, N, V].
        targets: Targets int64 [B, N]; -100 means no target.
    """
    # in float32, since sums over a loop of half precision lose small losses
    return F.cross_entropy(logits.float().mT, targets, ignore_index=IGNORE_INDEX, reduction="none")


def sum_losses(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of losses and the number of targets of each sample, [B] each."""
    return token_losses(logits, targets).sum(1), (targets != IGNORE_INDEX).sum(1)


def propagate_infinity(loss: Tensor, logits: Tensor) -> Tensor:
    """Return a loss unchanged, or NaN if any logit is -inf or NaN.

    The cross-entropy and its gradients are finite if the logit of a wrong class is -inf, which
    would hide an overflow.
    """
    # 0 * x is NaN for x = -inf or NaN; +inf already makes the cross-entropy infinite or NaN.
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
"""Metrics that tasks of predicted tokens always measure."""


class TokenCounts(NamedTuple):
    """Sums over batches and processes."""

    loss: Tensor
    """Cross-entropy at each position in nats, summed [N]."""

    targets: Tensor
    """Number of targets at each position [N]."""

    correct: Tensor
    """Number of those that were the likeliest token [N]."""

    bytes: Tensor
    """Number of bytes of all targets; 0 if the data does not know it."""

    answers: Tensor
    """Number of windows with targets."""

    exact: Tensor
    """Number of those in which all targets were the likeliest token."""

    depth_answers: Tensor
    """Number of windows with targets by depth of their answer, [DEPTHS]; 0 if it is not known."""

    depth_exact: Tensor
    """Number of those in which all targets were the likeliest token [DEPTHS]."""

    def measures(self) -> dict[str, Tensor]:
        """Compute loss in nats per target, perplexity and accuracy."""
        count = self.targets.sum()
        # sums first: a mean of batch means would weigh short batches more
        loss = self.loss.sum() / count
        return {"loss": loss, "perplexity": loss.exp(), "accuracy": self.correct.sum() / count}

    def depth_exacts(self) -> list[float | None]:
        """Compute the fraction of right answers by their depth; empty if no depth is known."""
        if not self.depth_answers.any():
            return []
        return _divide(self.depth_exact, self.depth_answers)

    def exact_match(self) -> dict[str, Tensor]:
        """Compute the fraction of answers in which every token was right."""
        return {"exact": self.exact / self.answers}

    def bits(self, unit: str) -> dict[str, Tensor]:
        """Compute bits_per_character or bits_per_byte; nothing if tokens have no such unit."""
        bits = self.loss.sum() / math.log(2)
        if unit != "token":
            return {f"bits_per_{unit}": bits / self.targets.sum()}
        return {"bits_per_byte": bits / self.bytes} if self.bytes else {}

    def position_losses(self) -> list[float | None]:
        """Compute the mean loss by position in the window; None for positions without targets."""
        return _divide(self.loss, self.targets)

    def position_accuracies(self) -> list[float | None]:
        """Compute the accuracy by position in the window; None for positions without targets."""
        return _divide(self.correct, self.targets)


class TokenMetrics(Metric):
    """A metric that counts over a loop. Windows longer than `length` widen the counts."""

    full_state_update = False
    loss: Tensor
    targets: Tensor
    correct: Tensor
    bytes: Tensor
    answers: Tensor
    exact: Tensor
    depth_answers: Tensor
    depth_exact: Tensor

    def __init__(self, length: int) -> None:
        super().__init__()
        self.add_state("loss", torch.zeros(length), dist_reduce_fx="sum")
        self.add_state("targets", torch.zeros(length, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("correct", torch.zeros(length, dtype=torch.long), dist_reduce_fx="sum")
        for name in ("bytes", "answers", "exact"):
            self.add_state(name, torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")
        for name in ("depth_answers", "depth_exact"):
            self.add_state(name, torch.zeros(DEPTHS, dtype=torch.long), dist_reduce_fx="sum")

    def widen(self, length: int) -> None:
        """Widen the counts to at least `length` positions, the same in all processes."""
        for name in ("loss", "targets", "correct"):
            counts = getattr(self, name)
            setattr(self, name, F.pad(counts, (0, max(0, length - len(counts)))))

    def update(
        self,
        logits: Tensor,
        targets: Tensor,
        target_bytes: Tensor | None = None,
        depths: Tensor | None = None,
    ) -> None:
        """Count a batch.

        Args:
            logits: Logits [B, N, V].
            targets: Targets int64 [B, N]; -100 means no target.
            target_bytes: Number of bytes of each target [B, N], if known.
            depths: Where each answer is stated, from 0 to 1, [B], if known.
        """
        # Sums over samples, by position in the window.
        is_target = targets != IGNORE_INDEX
        losses = token_losses(logits, targets)
        is_correct = is_target & (logits.argmax(-1) == targets)
        self.loss = _add(self.loss, losses.sum(0))
        self.targets = _add(self.targets, is_target.sum(0))
        self.correct = _add(self.correct, is_correct.sum(0))

        # Answers: windows in which every target is right.
        has_target = is_target.any(1)
        self.answers = self.answers + has_target.sum()
        is_exact = has_target & (is_correct == is_target).all(1)
        self.exact = self.exact + is_exact.sum()
        if depths is not None:
            bins = (depths * DEPTHS).long().clamp(0, DEPTHS - 1)
            self.depth_answers = self.depth_answers.index_add(0, bins, has_target.long())
            self.depth_exact = self.depth_exact.index_add(0, bins, is_exact.long())
        if target_bytes is not None:
            self.bytes = self.bytes + (target_bytes * is_target).sum()

    def compute(self) -> TokenCounts:
        """Return the counts of all processes."""
        return TokenCounts(
            self.loss,
            self.targets,
            self.correct,
            self.bytes,
            self.answers,
            self.exact,
            self.depth_answers,
            self.depth_exact,
        )


@register
class F1(MulticlassF1Score):
    """Mean F1 score over classes.

    Args:
        spec: The facts of the data.
        average: macro weighs all classes equally, weighted weighs each by its number of samples.
    """

    name = "f1"

    def __init__(
        self,
        spec: ImageSpec | TextClassificationSpec | PointSpec,
        *,
        average: Literal["macro", "weighted"] = "macro",
    ) -> None:
        super().__init__(_require_classes(spec), average=average)


@register
class CalibrationError(MulticlassCalibrationError):
    """Expected calibration error: mean difference between confidence and accuracy.

    Args:
        spec: The facts of the data.
        bins: Number of bins of confidence.
    """

    name = "ece"

    def __init__(
        self, spec: ImageSpec | TextClassificationSpec | PointSpec, *, bins: Count = 15
    ) -> None:
        super().__init__(_require_classes(spec), n_bins=bins)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Count a batch of logits [B, classes] and labels [B]."""
        # torchmetrics takes logits that all lie between 0 and 1 for probabilities.
        super().update(preds.float().softmax(-1), target)


@register
class PositionLoss(Metric):
    """Mean loss by position in the window: how it falls with context while a model trains.

    Positions up to the training length are divided into `bins`, each a number of its own, such as
    val/position_loss/0-31. In longer windows, later positions are one more, such as 256+.

    Args:
        spec: The facts of the data.
        bins: How many.
    """

    name = "position_loss"
    full_state_update = False
    sums: Tensor
    counts: Tensor
    ends: Tensor

    def __init__(self, spec: TextSpec, *, bins: Count = 8) -> None:
        super().__init__()
        if bins > spec.length:
            message = f"{bins} bins for windows of {spec.length} tokens"
            raise OptionError("bins", f"{message}; write {spec.length} or less")
        ends = [spec.length * (number + 1) // bins for number in range(bins)]
        self.register_buffer("ends", torch.tensor(ends), persistent=False)
        self.names = [f"{low}-{high - 1}" for low, high in itertools.pairwise([0, *ends])]
        self.names.append(f"{spec.length}+")
        self.add_state("sums", torch.zeros(bins + 1), dist_reduce_fx="sum")
        self.add_state("counts", torch.zeros(bins + 1), dist_reduce_fx="sum")

    def update(self, logits: Tensor, targets: Tensor) -> None:
        """Count a batch of logits [B, N, V] and targets [B, N]."""
        losses = token_losses(logits, targets)
        positions = torch.arange(losses.shape[1], device=losses.device)
        bins = torch.bucketize(positions, self.ends, right=True)
        self.sums = self.sums.index_add(0, bins, losses.sum(0))
        self.counts = self.counts.index_add(0, bins, (targets != IGNORE_INDEX).sum(0).float())

    def compute(self) -> dict[str, Tensor]:
        """Return the mean of each bin, NaN where it has no target."""
        pairs = zip(self.names, self.sums / self.counts, strict=True)
        means = {f"{self.name}/{name}": mean for name, mean in pairs}
        if not self.counts[-1]:
            del means[f"{self.name}/{self.names[-1]}"]
        return means


def _require_classes(spec: ImageSpec | TextClassificationSpec | PointSpec) -> int:
    if spec.classes is None:
        raise OptionError("name", "it counts classes, and the targets are numbers; leave it out")
    return spec.classes


def check_pairs(classes: int) -> None:
    """Check that the pairs of all classes can be counted, before a training that ends with it.

    Raises:
        OptionError: There are too many classes.
    """
    if classes > MAX_MATRIX_CLASSES:
        size = 8 * classes**2 / 1e9
        message = f"{classes:,} classes have a confusion matrix of {size:,.1f} GB"
        raise OptionError("name", f"{message}; expected at most {MAX_MATRIX_CLASSES:,} classes")


def build_metrics(
    choices: Sequence[Choice], spec: DataSpec, measured: Collection[str]
) -> MetricCollection:
    """Build the metrics that a recipe names.

    A metric is a torchmetrics.Metric. Its arguments are the facts of the data and its options; it
    counts batches of logits and targets, and computes one number or, for predicted tokens, several
    numbers by name.

    Args:
        choices: The metrics.
        spec: The facts of the data.
        measured: Names of the metrics that the task always measures.

    Returns:
        The metrics by name.

    Raises:
        OptionError: A name occurs twice, or a metric does not apply to such data.
    """
    built: dict[str, Metric] = {}
    for number, choice in enumerate(choices):
        key, name = f"metrics.{number}", choice.name
        if name in built or name in measured:
            raise OptionError(key, f"{name} is measured already; leave it out")
        cls = registry.find("metrics", name)
        kinds = list_kinds(cls)
        if not is_kind_of(spec, kinds):
            message = f"{name} applies to {name_kinds(kinds)}, but the data yields {spec.noun}"
            raise OptionError(key, message)
        try:
            built[name] = cls(spec, **choice.options)
        except OptionError as error:
            raise OptionError(key, f"{name}: {error.message}") from None
    # grouping compares states after the first batch, which may be equal by chance
    return MetricCollection(dict(built), compute_groups=False)


class ChosenMetrics(nn.Module):
    """The metrics that a recipe names, once for validation and once for test."""

    def __init__(
        self, choices: Sequence[Choice], spec: DataSpec, measured: Collection[str]
    ) -> None:
        super().__init__()
        self.val = build_metrics(choices, spec, measured)
        self.test = build_metrics(choices, spec, measured)

    def __getitem__(self, split: str) -> MetricCollection:
        return self.val if split == "val" else self.test


def _divide(sums: Tensor, counts: Tensor) -> list[float | None]:
    # torchmetrics makes a scalar of the counts of a single position
    pairs = zip(sums.flatten().tolist(), counts.flatten().tolist(), strict=True)
    return [total / count if count else None for total, count in pairs]


def _add(left: Tensor, right: Tensor) -> Tensor:
    width = max(len(left), len(right))
    return F.pad(left, (0, width - len(left))) + F.pad(right, (0, width - len(right)))


def write_confusion(path: Path, classes: Sequence[str], counts: Sequence[Sequence[int]]) -> None:
    """Write the confusion matrix of a test as JSON.

    Args:
        path: The file.
        classes: The names of the classes, in their order.
        counts: Samples by label (rows) and predicted class (columns).
    """
    # a row of counts is a line of the file
    rows = ",\n".join(f"    {json.dumps(row)}" for row in counts)
    content = (
        f'{{\n  "rows": "label",\n  "columns": "prediction",\n  "classes": {json.dumps(classes)},\n'
        f'  "counts": [\n{rows}\n  ]\n}}\n'
    )
    write_file(io.BytesIO(content.encode()), path)
