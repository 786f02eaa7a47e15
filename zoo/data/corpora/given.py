"""Files of text that are given to a trained model, cut into windows as those of an evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from zoo.data.corpora.corpus import Stream
from zoo.data.corpora.files import read
from zoo.data.corpora.vocabulary import Encoder
from zoo.data.corpora.windows import Cut, Cutting
from zoo.data.given import Given
from zoo.errors import DataError, Invalid


def texts(paths: Sequence[Path], vocabulary: Encoder, cutting: Cutting) -> Iterator[Given]:
    """Batches of windows, one file after the other; a text shorter than a window is one of its own length."""
    for path in paths:
        try:
            cut = _cut(path, vocabulary, cutting)
        except (DataError, Invalid) as error:
            yield Given((), None, {path: str(error).removeprefix(f"{path}: ")})
            continue
        rows = 1 if cutting.streams else cutting.batch_size  # a stream is remembered from window to window
        for first in range(0, len(cut), rows):
            windows = cut.__getitems__(range(first, min(first + rows, len(cut))))
            yield Given((path,), windows, {})


def _cut(path: Path, vocabulary: Encoder, cutting: Cutting) -> Cut:
    (document,) = read([str(path)])
    tokens = vocabulary.numbers(document.text)
    if len(tokens) < 2:
        raise DataError("it has one token, and none to tell after it")
    length = min(cutting.length, len(tokens) - 1)
    stride = None if cutting.stride is None else min(cutting.stride, length)
    cutting = replace(cutting, length=length, stride=stride, batch_size=1)
    places = cutting.places("the file", len(tokens))
    stream = Stream(tokens, np.zeros(1, np.int64))
    return Cut(stream, places, length, documents=cutting.documents, lengths=vocabulary.lengths)
