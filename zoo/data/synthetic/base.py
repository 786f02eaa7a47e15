"""The base class of synthetic tasks, whose samples depend only on (seed, split, epoch, index)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from zoo.data.base import SPLITS, DataModule
from zoo.data.baselines import Baselines, score_answers
from zoo.data.sampler import Key, ResumableLoader
from zoo.data.spec import IGNORE_INDEX, DataSpec, TextBatch
from zoo.errors import OptionError
from zoo.options import Between, Count

PADDING_DOCUMENT = -1


class Example(NamedTuple):
    """One sequence and its targets."""

    inputs: NDArray[Any]
    """Tokens, int64 [N]."""
    targets: NDArray[Any]
    """Next tokens, int64 [N]; -100 for tokens without a target."""
    depth: float | None = None
    """Place of the answer in the text, from 0 (its start) to 1 (right before the question)."""


class LoaderOptions(TypedDict, total=False):
    """Options of every synthetic task, which a task hands to `SyntheticTask`."""

    batch_size: Count
    workers: Annotated[int, Between(0)]


class SyntheticOptions(LoaderOptions, total=False):
    """These, and the numbers of samples of tasks with the usual ones."""

    train: Count
    val: Count
    test: Count


class SyntheticTask(DataModule):
    """The base class of sources that draw their samples.

    A task draws one example at a time (`draw_example`), or overrides `draw_batch`.
    """

    pads: ClassVar[bool] = False
    """True if sequences differ in length and are padded."""
    fresh_epochs: ClassVar[bool] = True
    """True if training samples differ from epoch to epoch."""

    def __init__(
        self,
        seed: int,
        spec: DataSpec,
        *,
        batch_size: Count = 64,
        train: Count = 16_000,
        val: Count = 1_000,
        test: Count = 1_000,
        workers: Annotated[int, Between(0)] = 0,
    ) -> None:
        super().__init__()
        self.seed, self.spec, self.batch_size, self.workers = seed, spec, batch_size, workers
        self.sizes = {"train": train, "val": val, "test": test}

    def draw_example(self, rng: np.random.Generator) -> Example:
        """Draw one sequence."""
        raise NotImplementedError(f"{type(self).__name__} draws batches, not single examples")

    def draw_batch(self, seed: tuple[int, int], keys: Sequence[Key]) -> Any:
        """Draw the samples of keys, which are indices or (epoch, index).

        Args:
            seed: The seed of the recipe and the number of the split.
            keys: The keys of the batch.
        """
        # One generator per sample, so that a sample does not depend on its batch.
        examples = []
        for epoch, index in split_keys(keys):
            epoch = epoch if self.fresh_epochs else 0
            examples.append(self.draw_example(np.random.default_rng([*seed, epoch, index])))
        if self.pads:
            return pad_examples(examples)
        inputs, targets, depths = zip(*examples, strict=True)
        return TextBatch(
            torch.from_numpy(np.stack(inputs)),
            torch.from_numpy(np.stack(targets)),
            answer_depths=None if None in depths else torch.tensor(depths),
        )

    def build_loader(self, split: str) -> ResumableLoader:
        samples, is_training = self._build_samples(split), split == "train"
        return ResumableLoader(
            samples, self.batch_size, self.seed, self.workers, self.share, training=is_training
        )

    def _build_samples(self, split: str) -> DrawnSamples:
        return DrawnSamples(self, self.sizes[split], (self.seed, SPLITS.index(split)))

    def count_samples(self, split: str) -> int:
        return self.sizes[split]

    def fit_baselines(self) -> Callable[[Self], Baselines]:
        return lambda tested: score_answers(tested._build_samples("test"))

    def __getstate__(self) -> dict[str, Any]:
        # Loader workers that are not forked receive a pickled task, which must omit the trainer.
        return {**self.__dict__, "trainer": None}


class DrawnSamples(Dataset[Any]):
    """The samples of one split of a synthetic task, fetched by batches of keys."""

    def __init__(self, task: SyntheticTask, size: int, seed: tuple[int, int]) -> None:
        self.task, self.size, self.seed = task, size, seed

    def __len__(self) -> int:
        return self.size

    def __getitems__(self, keys: Sequence[Key]) -> Any:
        return self.task.draw_batch(self.seed, keys)


def split_keys(keys: Sequence[Key]) -> list[tuple[int, int]]:
    """Return keys as (epoch, index); an index in evaluation has epoch 0."""
    return [(0, key) if isinstance(key, int) else key for key in keys]


def scatter_statements(
    rng: np.random.Generator,
    statements: Sequence[Sequence[int]],
    sentences: NDArray[Any],
    filler: int,
) -> list[int]:
    """Return filler text with statements at random places between its sentences, in their order.

    Args:
        rng: Draws sentences and places.
        statements: The tokens of each statement.
        sentences: Sentences of filler, int64 [S, W].
        filler: Number of filler tokens; the first sentence is cut to fit.
    """
    size = sentences.shape[1]
    count = -(-filler // size)
    drawn = sentences[rng.integers(len(sentences), size=count)].tolist()
    if count:
        drawn[0] = drawn[0][size * count - filler :]

    places = np.sort(rng.integers(count + 1, size=len(statements))).tolist()
    tokens: list[int] = []
    for place, sentence in enumerate([*drawn, []]):
        for statement, position in zip(statements, places, strict=True):
            if position == place:
                tokens += statement
        tokens += sentence
    return tokens


def append_answer(
    question: NDArray[Any], answer: NDArray[Any], depth: float | None = None
) -> Example:
    """Return a question followed by its answer, whose tokens are the targets."""
    # The last token of the answer is only a target.
    inputs = np.concatenate([question, answer[:-1]], dtype=np.int64)
    targets = np.full(len(inputs), IGNORE_INDEX)
    targets[-len(answer) :] = answer
    return Example(inputs, targets, depth)


def pad_examples(examples: Sequence[Example]) -> TextBatch:
    """Stack sequences of different lengths, with padding that no token attends to."""
    shape = len(examples), max(len(example.inputs) for example in examples)
    inputs = np.zeros(shape, np.int64)
    targets = np.full(shape, IGNORE_INDEX)
    documents = np.full(shape, PADDING_DOCUMENT)
    for row, example in enumerate(examples):
        length = len(example.inputs)
        inputs[row, :length], targets[row, :length] = example.inputs, example.targets
        documents[row, :length] = 0
    return TextBatch(*map(torch.from_numpy, (inputs, targets, documents)))


def refuse_least(least: int, most: int, key: str) -> None:
    """Check that the lower bound of a size does not exceed the upper one, the option `key`.

    Raises:
        OptionError: It does.
    """
    if least > most:
        message = f"{least} {key} are more than the maximum of {most}; write {most} or less"
        raise OptionError("least", message)
