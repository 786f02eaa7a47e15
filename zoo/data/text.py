"""Your own text: UTF-8 files, as characters, bytes or subwords."""

from __future__ import annotations

from functools import partial
from typing import Unpack

from zoo.data.corpus.corpus import CharacterSplit, read_documents
from zoo.data.corpus.source import CorpusOptions, CorpusSource
from zoo.errors import OptionError
from zoo.registry import register


@register
class Text(CorpusSource):
    """Windows of `length` tokens of `files`: paths, or globs like `texts/*.txt`, in this order.

    The text is divided into train, `val` and `test`, in this order, by fractions of its characters.
    Subwords are those of `tokenizer`, a file of the library tokenizers, or of a byte-level BPE with
    `vocabulary` tokens that is trained on the training split. Training windows are contiguous and
    shuffled, or start at random. Windows of val and test start every `stride` tokens; every target
    counts once, with the context of its window. `documents` separates files: no token is predicted
    from another file. `streams` is for models with memory: each row of a batch continues the same
    row of the batch before, and a remainder that does not fill a step is dropped.
    """

    def __init__(
        self,
        seed: int,
        *,
        files: tuple[str, ...] | str,
        val: float = 0.1,
        test: float = 0.1,
        **options: Unpack[CorpusOptions],
    ) -> None:
        if not files:
            raise OptionError("files", "the list is empty; name at least one file")
        patterns = (files,) if isinstance(files, str) else tuple(files)
        read = partial(read_documents, patterns)
        super().__init__(seed, read, CharacterSplit(val, test), **options)
