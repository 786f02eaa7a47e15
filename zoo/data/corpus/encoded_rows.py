"""Tokens of the rows of tables, which several processes encode once and the cache keeps."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torch.utils.data._utils import worker

from zoo.data.cache import CacheEntry, load_or_make
from zoo.data.corpus.tokenizer import CorpusVocabulary
from zoo.data.sampler import ProcessShare, WorkerStart
from zoo.data.tables.open_table import check_text, iterate_rows
from zoo.errors import DataError, OptionError

log = logging.getLogger("zoo")

NUM_ROWS = 1_000
"""Number of rows in a file of the cache, about a million tokens of web pages."""
SECONDS = 60
"""Time between two messages about how many tokens were encoded."""


@dataclass(frozen=True)
class EncodedRows:
    """The tokens of rows of tables, in files of the cache that are named for the text of the rows.

    A file that is missing is made when its rows are read. `encode_table` makes all of them.
    """

    vocabulary: CorpusVocabulary
    separator: str
    """Text after each row."""
    title: str
    """Name of the tables in messages."""

    @cached_property
    def _key(self) -> str:
        return json.dumps([self.vocabulary.to_dict(), self.separator])

    def read(self, table: Iterable[Any]) -> Iterator[NDArray[Any]]:
        """Yield the tokens of each row, none where it has no text.

        Raises:
            DataError: A row holds something other than text, or cannot be read or encoded.
        """
        for rows in self.read_chunks(table):
            yield from self.load(rows)

    def read_chunks(self, table: Iterable[Any]) -> Iterator[list[Any]]:
        """Yield lists of the rows whose tokens share a file."""
        rows = iterate_rows(table, self.title)
        while chunk := list(islice(rows, NUM_ROWS)):
            yield chunk

    def load(self, rows: list[Any]) -> list[NDArray[Any]]:
        """Return the tokens of each of the rows that share a file."""
        entry = self.load_entry(rows)
        ends = np.cumsum(entry.metadata["lengths"])[:-1]
        return np.split(entry.array, ends)

    def load_entry(self, rows: list[Any]) -> CacheEntry:
        """Load the tokens of rows from the cache; encode them if they are not there."""
        try:
            texts = [check_text(row["text"]) for row in rows]
        except ValueError as error:
            raise DataError(f"{self.title}: {error}") from None
        texts = [document and document + self.separator for document in texts]

        def encode() -> CacheEntry:
            dtype = np.min_scalar_type(max(len(self.vocabulary) - 1, 0))
            arrays = [self._encode(document).astype(dtype) for document in texts]
            return CacheEntry({"lengths": [*map(len, arrays)]}, np.concatenate(arrays))

        digest = hashlib.sha256(self._key.encode())
        for document in texts:
            # the length tells texts apart that join to the same text
            content = document.encode(errors="surrogatepass")
            digest.update(len(content).to_bytes(8, "little") + content)
        return load_or_make(digest.hexdigest(), encode)

    def _encode(self, document: str) -> NDArray[Any]:
        try:
            return self.vocabulary.encode_array(document)
        except OptionError as error:
            raise DataError(f"{self.title}: {error}") from None


def encode_table(rows: EncodedRows, table: Any, workers: int, share: ProcessShare) -> None:
    """Encode the rows of a table in the workers of all processes, each of which calls this.

    What was encoded before is not encoded again, so that an interrupted call goes on.

    Args:
        rows: Loads tokens, or encodes them.
        table: A streamed table of `datasets`.
        workers: Number of worker processes of this process, at least one.
        share: The part of this process.

    Raises:
        DataError: A row cannot be encoded, or the cache cannot be written.
    """
    loader = DataLoader(
        EncodingJobs(rows, table, workers, share),
        batch_size=None,
        num_workers=workers,
        # without one the loader would draw from the global generator, and change the training
        generator=torch.Generator(),
        worker_init_fn=WorkerStart(),
    )
    count, logged = 0, time.monotonic()
    for item in loader:
        if isinstance(item, DataError):
            raise item
        count += int(item)
        if time.monotonic() > logged + SECONDS:
            logged = time.monotonic()
            log.info(f"{rows.title}: {count:,} tokens are encoded so far")


class EncodingJobs(IterableDataset[Any]):
    """The numbers of tokens of files of the cache, which workers make as these are iterated."""

    def __init__(self, rows: EncodedRows, table: Any, workers: int, share: ProcessShare) -> None:
        self.rows, self.table, self.workers, self.share = rows, table, workers, share

    def __iter__(self) -> Iterator[Any]:
        # each of the workers is a process, and more threads would compete with them
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        information = get_worker_info()
        number = self.share.rank * self.workers + (information.id if information else 0)
        # `datasets` would leave shards out for other workers, and jobs divide them already
        worker._worker_info = None
        try:
            yield from self._encode(number, self.share.world_size * self.workers)
        except DataError as error:
            # raised in a worker, its message would contain a traceback
            yield error

    def _encode(self, number: int, total: int) -> Iterator[int]:
        """Yield the number of tokens in each file that worker `number` of `total` has made."""
        shards = self.table.num_shards
        # several workers read the same shard if there are more of them, and divide its rows
        parts = -(-total // shards)
        for job in range(number, shards * parts, total):
            shard, part = divmod(job, parts)
            chunks = self.rows.read_chunks(self.table.shard(shards, shard))
            for chunk in islice(chunks, part, None, parts):
                entry = self.rows.load_entry(chunk)
                if entry.problem is not None:
                    hint = "set XDG_CACHE_HOME to a folder with room, or tokenizer_workers to 0"
                    raise DataError(f"{self.rows.title}: {entry.problem}; {hint}")
                yield len(entry.array)
