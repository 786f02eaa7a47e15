"""Simple baselines: n-grams, the most common answer, the mean, and softmax regression."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from zoo.data.cache import CacheEntry, load_or_make
from zoo.data.mean_iou import compute_mean_iou
from zoo.data.resize import resize_maps
from zoo.data.spec import IGNORE_INDEX, DataSpec, ImageSpec, PointSpec, SegmentationSpec, TextBatch

# Largest numbers of tokens of train and test to count, so that it takes seconds.
MAX_TRAIN, MAX_TEST = 1_000_000, 200_000


def load_ngram_loss(
    train: NDArray[Any],
    test: NDArray[Any],
    vocabulary_size: int,
    order: int,
    starts: tuple[NDArray[np.bool_], NDArray[np.bool_]] | None = None,
) -> float:
    """Return the result of `estimate_ngram_loss`, cached on disk by the tokens that it counts."""
    train, test = train[-MAX_TRAIN:].astype(np.int64), test[:MAX_TEST].astype(np.int64)
    content = hashlib.sha256(f"{vocabulary_size} {order} {len(train)} ".encode())
    content.update(train.data)
    content.update(test.data)
    if starts is not None:
        starts = starts[0][-MAX_TRAIN:], starts[1][:MAX_TEST]
        for part in starts:
            content.update(np.ascontiguousarray(part).data)

    def make() -> CacheEntry:
        loss = estimate_ngram_loss(train, test, vocabulary_size, order, starts)
        return CacheEntry({}, np.array([loss]))

    return float(load_or_make(f"ngram-{content.hexdigest()[:32]}", make).array[0])


def estimate_ngram_loss(
    train: NDArray[Any],
    test: NDArray[Any],
    vocabulary_size: int,
    order: int,
    starts: tuple[NDArray[np.bool_], NDArray[np.bool_]] | None = None,
) -> float:
    """Return the mean loss of an n-gram model in nats per token of test.

    The model is interpolated Kneser-Ney with one discount per order: each order is interpolated
    with the one below, down to the uniform distribution. The first token of a document is
    not predicted.

    Args:
        train: Tokens [T], of which the last 1,000,000 are counted.
        test: Tokens [T], of which the first 200,000 are scored.
        vocabulary_size: Number of tokens in the vocabulary.
        order: Length of the longest n-grams.
        starts: Whether a document starts at each token of train and of test, bool [T] each, if
            documents are kept apart: no n-gram spans two of them.
    """
    train, test = train[-MAX_TRAIN:].astype(np.int64), test[:MAX_TEST].astype(np.int64)
    split = len(train)
    tokens = np.concatenate([train, test])
    is_start = np.zeros(len(tokens), bool)
    if starts is not None:
        is_start = np.concatenate([starts[0][-MAX_TRAIN:], starts[1][:MAX_TEST]])
    is_start[[0, split]] = True
    numbers = np.arange(len(tokens))
    # the number of tokens before each one in its document
    preceding = numbers - np.maximum.accumulate(np.where(is_start, numbers, 0))
    # For each length, the number of the n-gram that ends at each token; 0 is the empty n-gram.
    grams = [np.zeros(len(tokens), np.int64)]
    for length in range(1, order + 1):
        # An n-gram is the pair of the shorter one that ends before the token, and the token. At the
        # start of a document there is none: a unique number matches no other n-gram.
        earlier = np.concatenate([[-1], grams[-1][:-1]])
        earlier[is_start] = -1
        if length > 1:
            earlier = np.where(earlier < 0, numbers + len(tokens), earlier)
        else:
            earlier = np.zeros(len(tokens), np.int64)
        pairs = earlier * vocabulary_size + tokens
        grams.append(np.unique(pairs, return_inverse=True)[1].reshape(-1))

    chance = np.full(len(test), 1 / vocabulary_size)
    for length in range(1, order + 1):
        chance = _interpolate(
            grams,
            preceding,
            split,
            length,
            chance,
            is_longest=length == order,
            has_documents=starts is not None,
        )
    return float(-np.log(chance[preceding[split:] > 0]).mean())


def _interpolate(
    grams: list[NDArray[np.int64]],
    preceding: NDArray[np.int64],
    split: int,
    length: int,
    lower: NDArray[np.float64],
    *,
    is_longest: bool,
    has_documents: bool,
) -> NDArray[np.float64]:
    """Return the probability of each test token by n-grams of one length.

    Args:
        grams: Numbers of the n-grams that end at each token, by length.
        preceding: Number of tokens before each one in its document.
        split: Index of the first test token.
        length: Length of the n-grams.
        lower: Probabilities by shorter n-grams.
        is_longest: Count occurrences. Otherwise count different tokens before each n-gram.
        has_documents: The start of a document counts as one more token before an n-gram.
    """
    longer, shorter = grams[length], grams[length - 1]
    size = int(longer.max()) + 1
    places = np.flatnonzero(preceding[:split] >= length - 1)
    if is_longest:
        counts = np.bincount(longer[places], minlength=size)
    else:
        # Kneser-Ney counts in how many contexts a shorter n-gram occurs.
        extended = np.flatnonzero(preceding[:split] >= length)
        first_places = extended[np.unique(grams[length + 1][extended], return_index=True)[1]]
        counts = np.bincount(longer[first_places], minlength=size)
        if has_documents:
            counts[np.unique(longer[:split][preceding[:split] == length - 1])] += 1

    # Absolute discounting; the discount is the estimate of Ney et al. 1994.
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    discount = once / (once + 2 * twice) if once else 0.5
    contexts = np.concatenate([[0], shorter[:-1]])
    seen, where = np.unique(longer[places], return_index=True)
    owners = contexts[places[where]]
    contexts_size = int(shorter.max()) + 1
    totals = np.bincount(owners, counts[seen], contexts_size)
    kinds = np.bincount(owners, counts[seen] > 0, contexts_size)

    context = contexts[split:]
    # The first tokens of a document have no full context: they use shorter n-grams.
    total = np.where(preceding[split:] >= length - 1, totals[context], 0)
    discounted = np.maximum(counts[longer[split:]] - discount, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        mixed = (discounted + discount * kinds[context] * lower) / total
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


@dataclass(frozen=True)
class SoftmaxRegression:
    """A fitted softmax regression on normalized inputs [S, P]."""

    mean: Tensor
    std: Tensor
    weight: Tensor
    bias: Tensor

    def compute_logits(self, inputs: Tensor) -> Tensor:
        """Return logits [S, classes] of inputs [S, P]."""
        return ((inputs - self.mean) / self.std) @ self.weight + self.bias


def _name_regression(name: str, *, is_resized: bool) -> str:
    """Name softmax regression by what it reads."""
    return f"{name} (resized)" if is_resized else name


@dataclass(frozen=True)
class LabelBaselines:
    """The majority class of train and, for small images, softmax regression.

    Attributes:
        labels: Labels of train [S].
        regression: Softmax regression on images of the training size; None for other samples.
        sides: Height and width of these images.
    """

    labels: Tensor
    regression: SoftmaxRegression | None = None
    sides: tuple[int, int] = (0, 0)

    def score(self, samples: Any) -> Baselines:
        """Score the baselines on samples. Images of another size are resized to that of training.

        Args:
            samples: Samples of a split as `fit_labels` reads them.
        """
        if self.regression is None:
            return score_majority(self.labels, _read_labels(samples))
        pixels, labels, is_resized = _read_images(samples, self.sides)
        logits = self.regression.compute_logits(pixels)
        name = _name_regression("softmax regression", is_resized=is_resized)
        scores = score_majority(self.labels, labels)
        scores["test/accuracy"][name] = float((logits.argmax(1) == labels).float().mean())
        return {**scores, "test/loss": {name: float(F.cross_entropy(logits, labels))}}


def fit_labels(splits: Mapping[str, Any], spec: DataSpec) -> LabelBaselines:
    """Fit the majority class of train and, for small images, softmax regression.

    Args:
        splits: {split: samples} of train and val, which are fetched by lists of numbers as inputs
            and labels. At most 10,000 of each are read.
        spec: The facts of the samples. Softmax regression requires images of at most 64 x 64
            pixels and 100 classes.
    """
    classes = spec.class_count or 0
    is_small = type(spec) is ImageSpec and max(spec.grid) <= MAX_SIDE
    if not is_small or classes > MAX_CLASSES:
        return LabelBaselines(_read_labels(splits["train"]))
    sides = (spec.size[0], spec.size[1])
    train, val = (_read_images(splits[split], sides)[:2] for split in ("train", "val"))
    regression = _fit_softmax_regression(train, val, classes)
    return LabelBaselines(train[1], regression, sides)


def score_majority(train: Tensor, test: Tensor) -> Baselines:
    """Score the most common label of train on the labels of test; none if one of them is empty."""
    if not len(train) or not len(test):
        return {}
    share = float((test == train.mode().values).float().mean())
    return {"test/accuracy": {"majority class": share}}


@dataclass(frozen=True)
class PixelBaselines:
    """The majority class of pixels and, up to 100 classes, softmax regression on each pixel.

    Attributes:
        majority: The most common class of train; None if a split has no pixel with a class.
        classes: Number of classes.
        ignored: Pixels of this class do not count, nor do those of -100.
        sides: Height and width of images of train.
        regression: Softmax regression on the channels of a pixel, without anything around it.
    """

    majority: int | None
    classes: int
    ignored: int
    sides: tuple[int, int]
    regression: SoftmaxRegression | None = None

    def score(self, samples: Any) -> Baselines:
        """Score the baselines on samples, as `fit_pixels` reads them.

        Images of another size than those of train are scored unchanged and resized: a pixel then
        has the logits of images of the training size, resized back.
        """
        resized = self._predict_resized if self.regression else None
        tested = _read_pixels(samples, self.ignored, resized)
        labels = tested.classes
        # nothing was fitted, or all pixels that are tested are ignored
        if self.majority is None or not len(labels):
            return {}
        predicted = {"majority class": torch.full_like(labels, self.majority)}
        losses = {}
        if self.regression is not None:
            logits = self.regression.compute_logits(tested.pixels)
            name = "softmax regression per pixel"
            predicted[name], losses[name] = logits.argmax(1), F.cross_entropy(logits, labels)
            if tested.resized is not None:
                name = _name_regression(name, is_resized=True)
                predicted[name] = tested.resized[:, 0].long()
                losses[name] = tested.resized[:, 1].mean()
        scores = {
            "test/accuracy": {
                name: float((classes == labels).float().mean())
                for name, classes in predicted.items()
            },
            "test/miou": {
                name: compute_mean_iou(classes, labels, self.classes)
                for name, classes in predicted.items()
            },
        }
        means = {name: float(loss) for name, loss in losses.items()}
        return scores | ({"test/loss": means} if means else {})

    def _predict_resized(self, images: Tensor, masks: Tensor) -> Tensor | None:
        """Return classes and losses [B, H, W, 2] by resized images; None for the training size.

        Args:
            images: Images [B, C, H, W].
            masks: Classes [B, H, W].
        """
        height, width = images.shape[2:]
        if (height, width) == self.sides:
            return None
        assert self.regression is not None
        small = resize_maps(images.to(torch.float32), self.sides)
        logits = self.regression.compute_logits(small.permute(0, 2, 3, 1))
        logits = resize_maps(logits.permute(0, 3, 1, 2), (height, width))
        targets = masks.clamp(0, self.classes - 1)
        losses = F.cross_entropy(logits, targets, reduction="none")
        return torch.stack([logits.argmax(1).float(), losses], dim=-1)


def fit_pixels(
    splits: Mapping[str, Any], spec: SegmentationSpec, ignored: int = IGNORE_INDEX
) -> PixelBaselines:
    """Fit the majority class of pixels and, up to 100 classes, softmax regression on each pixel.

    Args:
        splits: {split: samples} of train and val, which are fetched by lists of numbers as images
            and masks. At most 500 of each, and 200,000 of their pixels, are read.
        spec: The facts of the samples.
        ignored: Pixels of this class do not count, nor do those of -100.
    """
    train, val = (_read_pixels(splits[split], ignored) for split in ("train", "val"))
    sides = (spec.height, spec.width)
    if not len(train.classes) or not len(val.classes):
        return PixelBaselines(None, spec.classes, ignored, sides)
    regression = None
    if spec.classes <= MAX_CLASSES:
        regression = _fit_softmax_regression(train[:2], val[:2], spec.classes)
    majority = int(train.classes.mode().values)
    return PixelBaselines(majority, spec.classes, ignored, sides, regression)


class _Pixels(NamedTuple):
    """Some pixels of a split.

    Attributes:
        pixels: Channels [S, C].
        classes: Classes [S].
        resized: Predicted classes and losses [S, 2] by resized images, if there are any.
    """

    pixels: Tensor
    classes: Tensor
    resized: Tensor | None = None


def _read_pixels(
    samples: Any,
    ignored: int,
    predict_resized: Callable[[Tensor, Tensor], Tensor | None] | None = None,
) -> _Pixels:
    """Return some pixels with a class.

    Args:
        samples: Images and masks.
        ignored: A class that does not count.
        predict_resized: Predicts pixels [B, H, W, 2] by resized images [B, C, H, W] and masks.
    """
    chunks: list[_Pixels] = []
    # Images that keep their shapes are padded to the largest of a chunk, with pixels of no class.
    for chunk in _split_numbers(len(samples), CHUNK, CHUNK // 10):
        inputs, masks, *_ = samples.__getitems__(chunk)
        has_shapes = isinstance(inputs, tuple)
        images = inputs[0] if has_shapes else inputs
        classes = masks.flatten().long()
        has_class = (classes != IGNORE_INDEX) & (classes != ignored)
        pixels = images.permute(0, 2, 3, 1).flatten(0, 2)[has_class].to(torch.float32)
        resized = None
        if predict_resized is not None and not has_shapes:
            resized = predict_resized(images, masks.long())
        if resized is not None:
            resized = resized.flatten(0, 2)[has_class]
        chunks.append(_Pixels(pixels, classes[has_class], resized))
    parts = [[part for part in column if part is not None] for column in zip(*chunks, strict=True)]
    pixels, classes, *resized_parts = (torch.cat(part) for part in parts if part)
    if len(classes) > MAX_PIXELS:
        drawn = np.random.default_rng(0).choice(len(classes), MAX_PIXELS, replace=False)
        pixels, classes, *resized_parts = (
            part[drawn] for part in (pixels, classes, *resized_parts)
        )
    return _Pixels(pixels, classes, *resized_parts)


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
        # a task computes its loss from standardized targets, other metrics in their unit
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
        # a label is an answer of one token
        rows = batch.targets.tolist() if isinstance(batch, TextBatch) else batch[1][:, None]
        answers += [tuple(int(token) for token in row if token != IGNORE_INDEX) for row in rows]

    counts = Counter(token for answer in answers for token in answer)
    total = sum(counts.values())
    shares = np.array([*counts.values()]) / total
    scores = {
        "test/accuracy": {"commonest answer": float(shares.max())},
        "test/loss": {"answer frequencies": float(-(shares * np.log(shares)).sum())},
    }
    if isinstance(batches[0], TextBatch):
        (_, most), *_ = Counter(answers).most_common(1)
        scores["test/exact"] = {"commonest answer": most / len(answers)}
    return scores


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


def _read_images(samples: Any, sides: tuple[int, int]) -> tuple[Tensor, Tensor, bool]:
    """Read images of one size and their labels, without samples that cannot be read.

    Args:
        samples: Images and labels.
        sides: Height and width to resize to.

    Returns:
        Pixels [S, P], labels [S], and whether images were resized.
    """
    pixels, labels, is_resized = [], [], False
    for chunk in _split_numbers(len(samples)):
        batch = samples.__getitems__(chunk)
        images = batch[0].to(torch.float32)
        if tuple(images.shape[-2:]) != sides:
            images, is_resized = resize_maps(images, sides), True
        pixels.append(_flatten_images(images))
        labels.append(batch[1])
    return torch.cat(pixels), torch.cat(labels), is_resized


def _flatten_images(images: Tensor) -> Tensor:
    """Return pixels [B, P] of images [B, C, H, W], averaged to at most 16 x 16."""
    height, width = (min(side, POOLED_SIDE) for side in images.shape[2:])
    return F.adaptive_avg_pool2d(images, (height, width)).flatten(1)


def _fit_softmax_regression(
    train: tuple[Tensor, Tensor], val: tuple[Tensor, Tensor], classes: int
) -> SoftmaxRegression:
    """Fit softmax regression on train, with the weight decay that is best on val.

    Args:
        train: Inputs [S, P] and labels [S].
        val: As `train`.
        classes: Number of classes.
    """
    inputs, labels = train
    mean, std = inputs.mean(), inputs.std().clamp(min=1e-6)
    weight, bias = torch.zeros(inputs.shape[1], classes), torch.zeros(classes)
    lowest, best = float("inf"), SoftmaxRegression(mean, std, weight.clone(), bias.clone())
    # From strong to weak decay: each fit starts at the weights of the previous one.
    for decay in WEIGHT_DECAYS:
        _fit_softmax((inputs - mean) / std, labels, weight, bias, decay)
        fitted = SoftmaxRegression(mean, std, weight.clone(), bias.clone())
        loss = float(F.cross_entropy(fitted.compute_logits(val[0]), val[1]))
        if loss < lowest:
            lowest, best = loss, fitted
    return best


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
    parameters = [weight.clone().requires_grad_(), bias.clone().requires_grad_()]
    optimizer = torch.optim.LBFGS(parameters, max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(pixels @ parameters[0] + parameters[1], labels)
        loss = loss + decay / 2 * parameters[0].square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    weight.copy_(parameters[0].detach())
    bias.copy_(parameters[1].detach())
