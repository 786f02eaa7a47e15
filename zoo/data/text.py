"""Your own text: files of UTF-8, as characters, bytes or subwords."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Literal

from zoo.data.corpus.corpus import Corpus, Shares, read
from zoo.data.corpus.source import Reading, Written
from zoo.data.corpus.tokenizer import Tokenisation
from zoo.data.corpus.windows import Cutting
from zoo.errors import OptionError
from zoo.registry import Between, Count, register


@register
class Text(Written):
    """Windows of `length` tokens of `files`: paths, or globs like `texts/*.txt`, read in this order as one stream.

    Its characters are split into train, then `val`, then `test`, by their shares. Subwords are those of `tokenizer`, a
    file of the library tokenizers, or a byte-level BPE of `vocabulary` tokens trained on the training share. Training
    windows lie side by side and are shuffled, or begin at random. Those of val and test begin every `stride` tokens, and
    each target is asked once, with what the window has before it. `documents` keeps files apart: no token is asked across
    their ends. `streams` are for models with memory: each row of a batch goes on where it ended in the last one, and a
    rest of the text that fills no step is left out.
    """

    def __init__(
        self,
        seed: int,
        *,
        files: tuple[str, ...] | str,
        tokens: Literal["character", "byte", "subword"] = "character",
        tokenizer: str | None = None,
        vocabulary: Count | None = None,
        length: Count = 128,
        batch_size: Count = 32,
        val: float = 0.1,
        test: float = 0.1,
        windows: Literal["contiguous", "random"] = "contiguous",
        documents: bool = False,
        streams: bool = False,
        stride: Count | None = None,
        workers: Annotated[int, Between(0)] = 0,
    ) -> None:
        super().__init__()
        if not files:
            raise OptionError("files", "there is no file in it; name at least one")
        patterns = (files,) if isinstance(files, str) else tuple(files)
        tokenisation = Tokenisation(tokens, tokenizer, vocabulary)
        cutting = Cutting(length, batch_size, windows, documents, streams, stride)
        self.reading = Reading(
            Corpus(partial(read, patterns), tokenisation, Shares(val, test)), cutting, seed, workers
        )
