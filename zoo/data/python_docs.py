"""English of the Python manual: the help topics that come with every Python (pydoc_data). No download."""

from __future__ import annotations

from typing import Annotated, Literal

from zoo.data.corpus.corpus import Corpus, Document, Shares
from zoo.data.corpus.source import Reading, Written
from zoo.data.corpus.tokenizer import Tokenisation
from zoo.data.corpus.windows import Cutting
from zoo.registry import Between, Count, register


@register
class PythonDocs(Written):
    """Windows of `length` tokens of the topics, sorted by name, a blank line between them; 465,049 characters in Python 3.11.

    The text is that of the running Python, so its `digest` tells whether two runs read the same. Each topic is a document.
    Options are those of the source `text`.
    """

    def __init__(
        self,
        seed: int,
        *,
        tokens: Literal["character", "byte", "subword"] = "character",
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
        tokenisation = Tokenisation(tokens, vocabulary=vocabulary)
        cutting = Cutting(length, batch_size, windows, documents, streams, stride)
        self.reading = Reading(
            Corpus(topics, tokenisation, Shares(val, test)), cutting, seed, workers
        )


def topics() -> list[Document]:
    """The topics of the running Python."""
    from pydoc_data.topics import topics

    return [Document(name, topics[name].strip() + "\n\n") for name in sorted(topics)]
