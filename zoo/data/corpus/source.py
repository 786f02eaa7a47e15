"""The base class of text sources in memory: a corpus that is divided into windows and loaded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypedDict

import numpy as np
from numpy.typing import NDArray

from zoo.data.base import DataModule, FileBatch
from zoo.data.baselines import MAX_TEST, Baselines, load_ngram_loss
from zoo.data.corpus.corpus import SPLITS, Corpus, Document, Splitter, TokenStream, read_document
from zoo.data.corpus.tokenizer import CorpusVocabulary, TokenizerOptions, vocabulary_from_dict
from zoo.data.corpus.windows import WindowDataset, WindowOptions
from zoo.data.sampler import ResumableLoader
from zoo.data.spec import DataSpec, TextSpec
from zoo.errors import DataError, OptionError
from zoo.options import Between, Count
from zoo.utils import collect_damage

log = logging.getLogger("zoo")

DIGEST_DIGITS = 12
LONGEST_GRAM = 5


class CorpusOptions(TypedDict, total=False):
    """Options of every source of windows of texts, which a source hands to `CorpusSource`."""

    tokens: Literal["character", "byte", "subword"]
    tokenizer: str | None
    vocabulary: Count | None
    length: Count
    batch_size: Count
    windows: Literal["contiguous", "random"]
    documents: bool
    streams: bool
    stride: Count | None
    workers: Annotated[int, Between(0)]
    prefetch_factor: Count | None


class CorpusSource(DataModule):
    """Windows of a corpus that is in memory, or mapped from the cache."""

    def __init__(
        self,
        seed: int,
        read: Callable[[], list[Document]],
        splitter: Splitter,
        *,
        tokens: Literal["character", "byte", "subword"] = "character",
        tokenizer: str | None = None,
        vocabulary: Count | None = None,
        length: Count = 128,
        batch_size: Count = 32,
        windows: Literal["contiguous", "random"] = "contiguous",
        documents: bool = False,
        streams: bool = False,
        stride: Count | None = None,
        workers: Annotated[int, Between(0)] = 0,
        prefetch_factor: Count | None = None,
    ) -> None:
        super().__init__()
        self.seed, self.workers = seed, workers
        self.corpus = Corpus(read, TokenizerOptions(tokens, tokenizer, vocabulary), splitter)
        self.window = WindowOptions(length, batch_size, windows, documents, streams, stride)
        self.set_prefetch_factor(prefetch_factor, workers)
        self._has_logged = False

    @cached_property
    def spec(self) -> DataSpec:  # type: ignore[override]
        return self._build_spec()

    def _build_spec(self) -> TextSpec:
        """Return the spec.

        Raises:
            OptionError: A split is shorter than a window.
        """
        # Counting the windows of each split raises the error.
        for split in SPLITS:
            self.count_samples(split)
        return TextSpec(self.window.length, self.corpus.tokens.vocabulary)

    @cached_property
    def digest(self) -> str:  # type: ignore[override]
        return self.corpus.digest[:DIGEST_DIGITS]

    @property
    def windowing(self) -> str:  # type: ignore[override]
        return self.window.describe()

    @property
    def has_full_windows(self) -> bool:  # type: ignore[override]
        return not self.window.documents

    @property
    def has_divisible_windows(self) -> bool:  # type: ignore[override]
        return not self.window.streams

    def adopt_spec(self, spec: DataSpec) -> None:
        if not isinstance(spec, TextSpec):
            raise OptionError("", "the model was not trained on text")
        self.corpus.adopt_vocabulary(vocabulary_from_dict(spec.vocabulary.to_dict()))
        self.spec = self._build_spec()

    def setup(self, stage: str) -> None:
        message = self.corpus.tokens.problem
        if message and not self._has_logged:
            log.info(message)
        self._has_logged = True

    def count_samples(self, split: str) -> int:
        tokens = self.corpus.tokens.splits[split].tokens
        return len(self.window.build_layout(split, len(tokens)).starts)

    def build_loader(self, split: str) -> ResumableLoader:
        window, share, is_training = self.window, self.share, split == "train"
        stream = self.corpus.tokens.splits[split]
        dataset = WindowDataset(
            stream,
            window.build_layout(split, len(stream.tokens), share.world_size),
            window.length,
            documents=window.documents,
            lengths=self.corpus.tokens.vocabulary.lengths,
            seed=self.seed if is_training and window.windows == "random" else None,
        )
        # Streams need one window of each row per batch, in the order of the layout.
        rows = window.count_rows(split, share.world_size) if window.streams else None
        return ResumableLoader(
            dataset,
            window.batch_size,
            self.seed,
            self.workers,
            share,
            training=is_training,
            shuffled=not window.streams,
            global_batch_size=rows,
        )

    def fit_baselines(self) -> Callable[[Self], Baselines]:
        return self._score_ngrams

    def _score_ngrams(self, tested: Self) -> Baselines:
        train, test = self.corpus.tokens.splits["train"], tested.corpus.tokens.splits["test"]
        starts = (train.mark_starts(), test.mark_starts()) if self.window.documents else None
        size = len(self.corpus.tokens.vocabulary)
        longest = load_ngram_loss(train.tokens, test.tokens, size, LONGEST_GRAM, starts)
        name = f"{LONGEST_GRAM}-gram"
        if len(test.tokens) > MAX_TEST:
            name = f"{name} on the first {MAX_TEST:,} tokens"
        return {"test/loss": {"bigram": self.compute_bigram_loss(tested), name: longest}}

    def compute_bigram_loss(self, tested: Self) -> float:
        """Return the mean loss of a bigram model with add-one smoothing, in nats per test token.

        p(b | a) = (count(a, b) + 1) / (count(a) + V), counted on train.

        Args:
            tested: The source of the test tokens.
        """
        size = len(self.corpus.tokens.vocabulary)
        left, right = self.list_bigrams("train")
        # One number for each pair that occurs: a table of all pairs would not fit into memory for
        # large vocabularies.
        pairs, counts = np.unique(left.astype(np.int64) * size + right, return_counts=True)
        firsts = np.bincount(left, minlength=size)

        left, right = tested.list_bigrams("test")
        tested_pairs = left.astype(np.int64) * size + right
        at = np.searchsorted(pairs, tested_pairs).clip(max=len(pairs) - 1)
        seen = np.where(pairs[at] == tested_pairs, counts[at], 0)
        return float(-np.log((seen + 1) / (firsts[left] + size)).mean())

    def list_bigrams(self, split: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return pairs of neighbouring tokens, [P] and [P], within documents if kept apart."""
        stream = self.corpus.tokens.splits[split]
        left, right = stream.tokens[:-1], stream.tokens[1:]
        if not self.window.documents:
            return left, right
        inside = ~stream.mark_starts()[1:]
        return left[inside], right[inside]

    def read_files(self, paths: Sequence[Path], spec: DataSpec) -> Iterator[FileBatch]:
        if not isinstance(spec, TextSpec):
            raise OptionError("name", "the model was not trained on text")
        vocabulary = vocabulary_from_dict(spec.vocabulary.to_dict())
        return _read_windows(paths, vocabulary, self.window)


def _read_windows(
    paths: Sequence[Path], vocabulary: CorpusVocabulary, window: WindowOptions
) -> Iterator[FileBatch]:
    """Yield batches of windows, one file after the other."""
    # A model with memory reads one window after the other.
    size = 1 if window.streams else window.batch_size
    for path in paths:
        errors: dict[Path, str] = {}
        with collect_damage(errors, path):
            dataset = _cut_file(path, vocabulary, window)
        if errors:
            yield FileBatch((), None, errors)
            continue
        for start in range(0, len(dataset), size):
            keys = range(start, min(start + size, len(dataset)))
            yield FileBatch((path,), dataset.__getitems__(keys), {})


def _cut_file(path: Path, vocabulary: CorpusVocabulary, window: WindowOptions) -> WindowDataset:
    """Divide a file into windows. A file shorter than a window is one window of its own length."""
    tokens = vocabulary.encode_array(read_document(path).text)
    if len(tokens) < 2:
        raise DataError("it has fewer than two tokens, so there is nothing to predict")
    length = min(window.length, len(tokens) - 1)
    stride = None if window.stride is None else min(window.stride, length)
    window = replace(window, length=length, stride=stride, batch_size=1)
    layout = window.build_layout("the file", len(tokens))
    stream = TokenStream(tokens, np.zeros(1, np.int64))
    return WindowDataset(
        stream, layout, length, documents=window.documents, lengths=vocabulary.lengths
    )
