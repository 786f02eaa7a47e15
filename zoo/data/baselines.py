"""Baselines that a model must beat: the commonest answer, and softmax regression on pixels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.data.spec import IGNORE_INDEX, DataSpec, ImageSpec, TextBatch

Baselines = dict[str, dict[str, float]]
"""{metric: {baseline: value}}, such as {"test/accuracy": {"majority class": 0.1}}."""

MAX_SAMPLES = 10_000
"""Of a larger split so many samples are drawn."""
CHUNK = 500
# beyond these, softmax regression takes longer than seconds
MAX_SIDE, MAX_CLASSES = 64, 100
POOLED_SIDE = 16
"""Larger images are averaged down to so many pixels a side."""
WEIGHT_DECAYS = (1e-1, 1e-2, 1e-3)
ITERATIONS = 30


def score_labels(splits: Mapping[str, Any], spec: DataSpec) -> Baselines:
    """Score the majority class of train on test and, for small images, softmax regression.

    Args:
        splits: {split: samples} of train, val and test, fetched by lists of numbers as inputs and
            labels. Of each at most 10,000 are read.
        spec: What the samples are. Softmax regression needs images of at most 64 x 64 pixels and
            100 classes.
    """
    is_small = type(spec) is ImageSpec and max(spec.grid) <= MAX_SIDE
    if not is_small or spec.classes > MAX_CLASSES:  # type: ignore[union-attr]
        train, test = (_read_labels(splits[split]) for split in ("train", "test"))
        return {"test/accuracy": {"majority class": _score_majority(train, test)}}

    samples = {split: _read_images(splits[split]) for split in ("train", "val", "test")}
    accuracy, loss = _score_softmax_regression(samples)
    majority = _score_majority(samples["train"][1], samples["test"][1])
    return {
        "test/accuracy": {"majority class": majority, "softmax regression": accuracy},
        "test/loss": {"softmax regression": loss},
    }


def score_answers(test: Any) -> Baselines:
    """Score the guesses that know how often each answer is right in test.

    Args:
        test: Samples fetched by lists of numbers, of which at most 10,000 are read: windows with
            targets, or inputs and labels.

    Returns:
        Accuracy of the commonest token or class among all targets, loss of their frequencies and,
        for windows, how often the commonest whole answer is right.
    """
    batches = [test.__getitems__(chunk) for chunk in _split_numbers(len(test))]
    answers: list[tuple[int, ...]] = []
    for batch in batches:
        rows = batch.targets.tolist() if isinstance(batch, TextBatch) else batch[1][:, None]
        answers += [tuple(int(one) for one in row if one != IGNORE_INDEX) for row in rows]

    counts = Counter(token for answer in answers for token in answer)
    total = sum(counts.values())
    shares = np.array([*counts.values()]) / total
    found = {
        "test/accuracy": {"commonest answer": float(shares.max())},
        "test/loss": {"answer frequencies": float(-(shares * np.log(shares)).sum())},
    }
    if isinstance(batches[0], TextBatch):
        (_, most), *_ = Counter(answers).most_common(1)
        found["test/exact"] = {"commonest answer": most / len(answers)}
    return found


def _split_numbers(count: int) -> list[list[int]]:
    """Return the numbers of all samples, or of as many as are read, in chunks."""
    numbers = np.arange(count)
    if count > MAX_SAMPLES:
        # tables may be sorted by class
        numbers = np.sort(np.random.default_rng(0).choice(count, MAX_SAMPLES, replace=False))
    return [numbers[at : at + CHUNK].tolist() for at in range(0, len(numbers), CHUNK)]


def _read_labels(samples: Any) -> Tensor:
    """Return labels [S]; samples that cannot be read are left out."""
    chunks = _split_numbers(len(samples))
    return torch.cat([samples.__getitems__(chunk)[1] for chunk in chunks])


def _read_images(samples: Any) -> tuple[Tensor, Tensor]:
    """Return pixels [S, P] and labels [S]; samples that cannot be read are left out."""
    pixels, labels = [], []
    for chunk in _split_numbers(len(samples)):
        batch = samples.__getitems__(chunk)
        pixels.append(_flatten_images(batch[0]))
        labels.append(batch[1])
    return torch.cat(pixels), torch.cat(labels)


def _flatten_images(images: Tensor) -> Tensor:
    """Return pixels [B, P] of images [B, C, H, W], averaged to at most 16 x 16."""
    images = images.to(torch.float32)
    height, width = (min(side, POOLED_SIDE) for side in images.shape[2:])
    return F.adaptive_avg_pool2d(images, (height, width)).flatten(1)


def _score_majority(train: Tensor, test: Tensor) -> float:
    return float((test == train.mode().values).float().mean())


def _score_softmax_regression(samples: Mapping[str, tuple[Tensor, Tensor]]) -> tuple[float, float]:
    """Return accuracy and loss on test, with the weight decay that is best on val."""
    pixels, labels = samples["train"]
    mean, std = pixels.mean(), pixels.std().clamp(min=1e-6)
    classes = 1 + max(int(own.max()) for _, own in samples.values())
    weight = torch.zeros(pixels.shape[1], classes)
    bias = torch.zeros(classes)

    best, scores = float("inf"), (0.0, float("inf"))
    # from strong to weak: each begins with the weights of the one before
    for decay in WEIGHT_DECAYS:
        _fit_softmax((pixels - mean) / std, labels, weight, bias, decay)
        found = {}
        for split in ("val", "test"):
            own, targets = samples[split]
            logits = ((own - mean) / std) @ weight + bias
            accuracy = float((logits.argmax(1) == targets).float().mean())
            found[split] = accuracy, float(F.cross_entropy(logits, targets))
        if found["val"][1] < best:
            best, scores = found["val"][1], found["test"]
    return scores


def _fit_softmax(
    pixels: Tensor, labels: Tensor, weight: Tensor, bias: Tensor, decay: float
) -> None:
    """Minimise the mean loss + decay / 2 |weight|^2 in place by L-BFGS on all samples.

    Args:
        pixels: [S, P].
        labels: [S].
        weight: [P, classes].
        bias: [classes].
        decay: Weight decay, which leaves the bias alone.
    """
    own = [weight.clone().requires_grad_(), bias.clone().requires_grad_()]
    optimizer = torch.optim.LBFGS(own, max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(pixels @ own[0] + own[1], labels)
        loss = loss + decay / 2 * own[0].square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    weight.copy_(own[0].detach())
    bias.copy_(own[1].detach())
