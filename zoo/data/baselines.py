"""Simple baselines: n-grams, the most common answer, the mean, and softmax regression."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torchmetrics.functional.classification import multiclass_jaccard_index

from zoo.data.cache import CacheEntry, load_or_make
from zoo.data.spec import IGNORE_INDEX, DataSpec, ImageSpec, PointSpec, TextBatch

# Largest numbers of tokens of train and test to count, so that it takes seconds.
MAX_TRAIN, MAX_TEST = 1_000_000, 200_000


def load_ngram_loss(
    train: NDArray[Any], test: NDArray[Any], vocabulary_size: int, order: int
) -> float:
    """Return the result of `estimate_ngram_loss`, cached on disk by the tokens that it counts."""
    train, test = train[-MAX_TRAIN:].astype(np.int64), test[:MAX_TEST].astype(np.int64)
    content = hashlib.sha256(f"{vocabulary_size} {order} {len(train)} ".encode())
    content.update(train.data)
    content.update(test.data)

    def make() -> CacheEntry:
        loss = estimate_ngram_loss(train, test, vocabulary_size, order)
        return CacheEntry({}, np.array([loss]))

    return float(load_or_make(f"ngram-{content.hexdigest()[:32]}", make).array[0])


def estimate_ngram_loss(
    train: NDArray[Any], test: NDArray[Any], vocabulary_size: int, order: int
) -> float:
    """Return the mean loss of an n-gram model in nats per token of test, except its first token.

    The model is interpolated Kneser-Ney with one discount per order: each order is interpolated
    with the one below, down to the uniform distribution.

    Args:
        train: Tokens [T], of which the last 1,000,000 are counted.
        test: Tokens [T], of which the first 200,000 are scored.
        vocabulary_size: Number of tokens in the vocabulary.
        order: Length of the longest n-grams.
    """
    train, test = train[-MAX_TRAIN:].astype(np.int64), test[:MAX_TEST].astype(np.int64)
    split = len(train)
    tokens = np.concatenate([train, test])
    # For each length, the number of the n-gram that ends at each token; 0 is the empty n-gram.
    grams = [np.zeros(len(tokens), np.int64)]
    for length in range(1, order + 1):
        # An n-gram is the pair of the shorter one that ends before the token, and the token. At the
        # start of train and of test there is none: a unique number matches no other n-gram.
        earlier = np.concatenate([[-1], grams[-1][:-1]])
        earlier[split] = -1
        if length > 1:
            earlier = np.where(earlier < 0, np.arange(len(tokens)) + len(tokens), earlier)
        else:
            earlier = np.zeros(len(tokens), np.int64)
        pairs = earlier * vocabulary_size + tokens
        grams.append(np.unique(pairs, return_inverse=True)[1].reshape(-1))

    chance = np.full(len(test), 1 / vocabulary_size)
    for length in range(1, order + 1):
        chance = _interpolate(grams, split, length, length == order, chance)
    return float(-np.log(chance[1:]).mean())


def _interpolate(
    grams: list[NDArray[np.int64]],
    split: int,
    length: int,
    is_longest: bool,
    lower: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return the probability of each test token by n-grams of one length.

    Args:
        grams: Numbers of the n-grams that end at each token, by length.
        split: Index of the first test token.
        length: Length of the n-grams.
        is_longest: Count occurrences. Otherwise count different tokens before each n-gram.
        lower: Probabilities by shorter n-grams.
    """
    own, shorter = grams[length], grams[length - 1]
    size = int(own.max()) + 1
    places = np.arange(length - 1, split)
    if is_longest:
        counts = np.bincount(own[places], minlength=size)
    else:
        # Kneser-Ney counts in how many contexts a shorter n-gram occurs.
        first = np.unique(grams[length + 1][length:split], return_index=True)[1] + length
        counts = np.bincount(own[first], minlength=size)

    # Absolute discounting; the discount is the estimate of Ney et al. 1994.
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    discount = once / (once + 2 * twice) if once else 0.5
    contexts = np.concatenate([[0], shorter[:-1]])
    seen, where = np.unique(own[places], return_index=True)
    owners = contexts[places[where]]
    contexts_size = int(shorter.max()) + 1
    totals = np.bincount(owners, counts[seen], contexts_size)
    kinds = np.bincount(owners, counts[seen] > 0, contexts_size)

    context = contexts[split:]
    # The first tokens of test have no full context: they use shorter n-grams.
    total = np.where(np.arange(len(context)) >= length - 1, totals[context], 0)
    kept = np.maximum(counts[own[split:]] - discount, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        mixed = (kept + discount * kinds[context] * lower) / total
    return np.where(total > 0, mixed, lower)


Baselines = dict[str, dict[str, float]]
"""{metric: {baseline: value}}, such as {"test/accuracy": {"majority class": 0.1}}."""

MAX_SAMPLES = 10_000
"""Number of samples that are drawn from a larger split."""
CHUNK = 500
MAX_PIXELS = 200_000
"""Number of pixels that are drawn from the masks of a split."""
# Beyond these, softmax regression takes more than seconds.
MAX_SIDE, MAX_CLASSES = 64, 100
POOLED_SIDE = 16
"""Side in pixels to which larger images are averaged."""
WEIGHT_DECAYS = (1e-1, 1e-2, 1e-3)
ITERATIONS = 30


def score_labels(splits: Mapping[str, Any], spec: DataSpec) -> Baselines:
    """Score the majority class of train on test and, for small images, softmax regression.

    Args:
        splits: {split: samples} of train, val and test, which are fetched by lists of numbers as
            inputs and labels. At most 10,000 of each are read.
        spec: The facts of the samples. Softmax regression requires images of at most 64 x 64
            pixels and 100 classes.
    """
    is_small = type(spec) is ImageSpec and max(spec.grid) <= MAX_SIDE
    if not is_small or spec.classes > MAX_CLASSES:  # type: ignore[union-attr,operator]
        return score_majority(*(_read_labels(splits[split]) for split in ("train", "test")))

    samples = {split: _read_images(splits[split]) for split in ("train", "val", "test")}
    logits, labels = _fit_softmax_regression(samples), samples["test"][1]
    accuracy = float((logits.argmax(1) == labels).float().mean())
    loss = float(F.cross_entropy(logits, labels))
    found = score_majority(samples["train"][1], samples["test"][1])
    found["test/accuracy"]["softmax regression"] = accuracy
    return {**found, "test/loss": {"softmax regression": loss}}


def score_majority(train: Tensor, test: Tensor) -> Baselines:
    """Score the most common label of train on the labels of test; none if one of them is empty."""
    if not len(train) or not len(test):
        return {}
    share = float((test == train.mode().values).float().mean())
    return {"test/accuracy": {"majority class": share}}


def score_pixels(splits: Mapping[str, Any], classes: int, ignored: int = IGNORE_INDEX) -> Baselines:
    """Score the majority class of pixels and, up to 100 classes, softmax regression on each pixel.

    Softmax regression sees the channels of a pixel and nothing around it.

    Args:
        splits: {split: samples} of train, val and test, which are fetched by lists of numbers as
            images and masks. At most 500 of each, and 200,000 of their pixels, are read.
        classes: Number of classes.
        ignored: Pixels of this class do not count, nor do those of -100.

    Returns:
        The baselines; none if a split has no pixel with a class among those that are read.
    """
    samples = {split: _read_pixels(own, ignored) for split, own in splits.items()}
    if not all(len(own) for _, own in samples.values()):
        return {}
    labels = samples["test"][1]
    predicted = {"majority class": samples["train"][1].mode().values.expand_as(labels)}
    losses = {}
    if classes <= MAX_CLASSES:
        logits = _fit_softmax_regression(samples)
        name = "softmax regression per pixel"
        predicted[name] = logits.argmax(1)
        losses[name] = float(F.cross_entropy(logits, labels))
    found = {
        "test/accuracy": {
            name: float((own == labels).float().mean()) for name, own in predicted.items()
        },
        "test/miou": {
            name: float(multiclass_jaccard_index(own, labels, classes))
            for name, own in predicted.items()
        },
    }
    return found | ({"test/loss": losses} if losses else {})


def _read_pixels(samples: Any, ignored: int) -> tuple[Tensor, Tensor]:
    """Return some pixels [S, C] with a class, and their classes [S]."""
    found: list[tuple[Tensor, Tensor]] = []
    # Images that keep their shapes are padded to the largest of a chunk, with pixels of no class.
    for chunk in _split_numbers(len(samples), CHUNK, CHUNK // 10):
        inputs, masks, *_ = samples.__getitems__(chunk)
        images = inputs[0] if isinstance(inputs, tuple) else inputs
        classes = masks.flatten().long()
        known = (classes != IGNORE_INDEX) & (classes != ignored)
        pixels = images.permute(0, 2, 3, 1).flatten(0, 2)
        found.append((pixels[known].to(torch.float32), classes[known]))
    pixels, classes = (torch.cat(parts) for parts in zip(*found, strict=True))
    if len(classes) > MAX_PIXELS:
        drawn = np.random.default_rng(0).choice(len(classes), MAX_PIXELS, replace=False)
        return pixels[drawn], classes[drawn]
    return pixels, classes


def score_points(train: Any, test: Any, spec: PointSpec) -> Baselines:
    """Score the majority class of train on test or, of numbers, the mean of train.

    Args:
        train: Samples that are fetched by lists of numbers as batches whose last part is the
            target. At most 10,000 are read.
        test: As `train`.
        spec: The facts of the samples.
    """
    targets = []
    for samples in (train, test):
        chunks = _split_numbers(len(samples))
        targets.append(torch.cat([samples.__getitems__(chunk)[-1] for chunk in chunks]))
    if spec.classes is not None:
        return score_majority(*targets)
    errors = targets[1] - targets[0].mean(0)
    squares = errors.square()
    name = "mean of train"
    return {
        "test/loss": {name: float((squares / torch.tensor(spec.target_stds).square()).mean())},
        "test/rmse": {name: float(squares.mean().sqrt())},
        "test/mae": {name: float(errors.abs().mean())},
    }


def score_answers(test: Any) -> Baselines:
    """Score guesses that ignore the input but know the frequencies of answers in test.

    Args:
        test: Samples that are fetched by lists of numbers as windows with targets, or as inputs and
            labels. At most 10,000 are read.

    Returns:
        The accuracy of the most common token or class among all targets, the loss of predicting
        their frequencies and, for windows, how often the most common full answer is right.
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


def draw_numbers(count: int, most: int = MAX_SAMPLES) -> NDArray[np.int64]:
    """Return the ascending numbers of at most so many samples to read."""
    if count <= most:
        return np.arange(count)
    # A random choice, because tables may be sorted by class.
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False))


def _split_numbers(count: int, most: int = MAX_SAMPLES, chunk: int = CHUNK) -> list[list[int]]:
    numbers = draw_numbers(count, most).tolist()
    return [numbers[at : at + chunk] for at in range(0, len(numbers), chunk)]


def _read_labels(samples: Any) -> Tensor:
    """Return labels [S], without samples that cannot be read."""
    chunks = _split_numbers(len(samples))
    return torch.cat([samples.__getitems__(chunk)[1] for chunk in chunks])


def _read_images(samples: Any) -> tuple[Tensor, Tensor]:
    """Return pixels [S, P] and labels [S], without samples that cannot be read."""
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


def _fit_softmax_regression(samples: Mapping[str, tuple[Tensor, Tensor]]) -> Tensor:
    """Return the logits of test [S, classes] with the weight decay that is best on val.

    Args:
        samples: Pixels [S, P] and labels [S] of train, val and test.
    """
    pixels, labels = samples["train"]
    mean, std = pixels.mean(), pixels.std().clamp(min=1e-6)
    classes = 1 + max(int(own.max()) for _, own in samples.values())
    weight = torch.zeros(pixels.shape[1], classes)
    bias = torch.zeros(classes)

    best, chosen = float("inf"), bias.expand(len(samples["test"][1]), -1)
    # From strong to weak decay: each fit starts at the weights of the previous one.
    for decay in WEIGHT_DECAYS:
        _fit_softmax((pixels - mean) / std, labels, weight, bias, decay)
        logits = {
            split: ((samples[split][0] - mean) / std) @ weight + bias for split in ("val", "test")
        }
        loss = float(F.cross_entropy(logits["val"], samples["val"][1]))
        if loss < best:
            best, chosen = loss, logits["test"]
    return chosen


def _fit_softmax(
    pixels: Tensor, labels: Tensor, weight: Tensor, bias: Tensor, decay: float
) -> None:
    """Minimize the mean loss + decay / 2 |weight|^2 in place by L-BFGS on all samples.

    Args:
        pixels: Inputs [S, P].
        labels: Labels [S].
        weight: Weight [P, classes], which is changed.
        bias: Bias [classes], which is changed.
        decay: Weight decay, which does not apply to the bias.
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
