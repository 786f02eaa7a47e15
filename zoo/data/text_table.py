"""Text in a column of a table: parquet, JSON lines, CSV, or whatever else Hugging Face's `datasets` reads, the Hub included."""

from __future__ import annotations

from typing import Annotated, Literal

from zoo.data.corpus.corpus import Corpus
from zoo.data.corpus.source import Reading, Written
from zoo.data.corpus.table import Tabled
from zoo.data.corpus.tokenizer import Tokenisation
from zoo.data.corpus.windows import Cutting
from zoo.data.tables import open_table
from zoo.data.tables.open_table import Parts
from zoo.errors import OptionError
from zoo.registry import Between, Count, register


@register
class TextTable(Written):
    """Windows of `length` tokens of the rows of `path`: a folder, a file or a glob of files, `hub:owner/name` or
    `hub:owner/name:configuration`.

    `train` names a split; `val` and `test` name one each, or are shares of the rows of `train`, drawn from the seed. `text`
    names the column. Rows are joined in their order, `between` after each, which may be a special token of the tokenizer;
    rows without text are left out. Each row is a document. The other options are those of the source `text`. All is
    encoded once and kept; what does not fit into memory is streamed by `text_stream`.
    """

    def __init__(
        self,
        seed: int,
        *,
        path: str | None = None,
        train: str = "train",
        val: float | str = "validation",
        test: float | str = "test",
        text: str = "text",
        between: str = "\n\n",
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
    ) -> None:
        super().__init__()
        if path is None:
            raise OptionError(
                "path", "missing: say where your table is, or name a set as hub:owner/name"
            )
        self.path = path
        tabled = Tabled(path, text, between, Parts(train, val, test), seed)
        tokenisation = Tokenisation(tokens, tokenizer, vocabulary)
        cutting = Cutting(length, batch_size, windows, documents, streams, stride)
        self.reading = Reading(Corpus(tabled.read, tokenisation, tabled), cutting, seed, workers)

    def locate(self) -> None:
        open_table.located(self.path)
