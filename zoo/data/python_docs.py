"""English text of the Python manual: the help topics that come with Python (pydoc_data)."""

from __future__ import annotations

from typing import Annotated, Literal

from zoo.data.corpus.corpus import CharacterSplit, Corpus, Document
from zoo.data.corpus.source import CorpusSource
from zoo.data.corpus.tokenizer import TokenizerOptions
from zoo.data.corpus.windows import WindowOptions
from zoo.options import Between, Count
from zoo.registry import register


@register
class PythonDocs(CorpusSource):
    """Windows of `length` tokens of the help topics, sorted by name and separated by blank lines.

    The text is that of the running Python, 465,049 characters in Python 3.11. Its `digest` shows
    whether two runs read the same text. Each topic is a document. The options are those of the
    source `text`.
    """

    def __init__(
        self,
        seed: int,
        *,
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
        prefetch_factor: Count | None = None,
    ) -> None:
        options = TokenizerOptions(tokens, tokenizer, vocabulary)
        corpus = Corpus(read_topics, options, CharacterSplit(val, test))
        window = WindowOptions(length, batch_size, windows, documents, streams, stride)
        super().__init__(seed, corpus, window, workers)
        self.set_prefetch_factor(prefetch_factor, workers)


def read_topics() -> list[Document]:
    """Return the help topics of the running Python."""
    from pydoc_data.topics import topics

    return [Document(name, topics[name].strip() + "\n\n") for name in sorted(topics)]
