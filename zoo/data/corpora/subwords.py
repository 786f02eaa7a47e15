"""The subwords of a Hugging Face tokenizer, as a vocabulary."""

from __future__ import annotations

import json as jsons
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from zoo.data.corpora.unknown import refuse_unknown, utf8

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class Subwords:
    """The tokens of a tokenizer, given as the JSON that the library `tokenizers` writes.

    Special tokens are neither added nor left out, and nothing is truncated or padded, whatever the JSON says.
    """

    json: str
    unit: ClassVar[Literal["token"]] = "token"

    @cached_property
    def tokenizer(self) -> Tokenizer:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(self.json)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer

    @cached_property
    def _length(self) -> int:
        return 1 + max(self.tokenizer.get_vocab().values(), default=-1)

    def __len__(self) -> int:
        return self._length

    @cached_property
    def lengths(self) -> NDArray[Any]:
        """Exact where the tokenizer works on bytes; else the length of what a token alone decodes to."""
        lengths = np.zeros(len(self), np.int64)
        added = set(self.tokenizer.get_added_tokens_decoder())
        on_bytes = (jsons.loads(self.json).get("decoder") or {}).get("type") == "ByteLevel"
        for piece, token in self.tokenizer.get_vocab().items():
            alone = piece if token in added else self.decode([token])
            lengths[token] = len(piece) if on_bytes and token not in added else len(alone.encode())
        return lengths

    @cached_property
    def _stranger(self) -> int | None:
        """The token for what is unknown, where there is one."""
        model = jsons.loads(self.json)["model"]
        token = model.get("unk_id", self.tokenizer.token_to_id(model.get("unk_token") or ""))
        return None if token is None else int(token)

    def numbers(self, text: str) -> NDArray[Any]:
        utf8(text)  # the library would crash on what is none
        found = self.tokenizer.encode(text, add_special_tokens=False)
        numbers = np.array(found.ids, np.int64)
        refuse_unknown(text, self._unknown(text, numbers, found.offsets), f"{len(self)} subwords")
        return numbers

    def _unknown(self, text: str, numbers: NDArray[Any], offsets: list[tuple[int, int]]) -> NDArray[Any]:
        """Positions that no token covers but the one for the unknown; a tokenizer may leave white space out."""
        spans = np.array(offsets, np.int64).reshape(-1, 2)
        spans = spans if self._stranger is None else spans[numbers != self._stranger]
        steps = np.zeros(len(text) + 1, np.int64)
        np.add.at(steps, spans[:, 0], 1)
        np.add.at(steps, spans[:, 1], -1)
        bare = np.flatnonzero(steps.cumsum()[:-1] == 0)
        return bare[[not text[at].isspace() for at in bare]] if len(bare) else bare

    def encode(self, text: str) -> list[int]:
        return self.numbers(text).tolist()

    def decode(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(list(tokens), skip_special_tokens=False)

    def plain(self) -> dict[str, str]:
        return {"kind": "subword", "json": self.json}
