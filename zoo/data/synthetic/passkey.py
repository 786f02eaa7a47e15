"""Passkey (Mohtashami and Jaggi 2023, arXiv:2305.16300): a number that was said somewhere in a long text of no interest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from zoo.data.corpus.tokenizer import Words
from zoo.data.generated.sequences import Example, Sequences, answered
from zoo.data.generated.source import Generated, Workers
from zoo.data.spec import TextSpec
from zoo.errors import OptionError
from zoo.registry import Between, Count, register

FILLER = (
    "a river runs past fields .",
    "birds sing in old trees .",
    "rain fell on the hills .",
    "boats wait in the harbour .",
    "children walk home at noon .",
    "snow lies on the road .",
    "lamps burn in the street .",
    "bread cools by the window .",
)
SAID, QUESTION = "the key is", "what is the key ?"
WORDS = Words((*map(str, range(10)), *sorted(set(" ".join((*FILLER, SAID, QUESTION)).split()))))
SENTENCES = np.array([WORDS.encode(sentence) for sentence in FILLER])  # [8, 6]

Depth = Literal["random"] | Annotated[float, Between(0, 1)]


@register
class Passkey(Generated):
    """Texts of `length` words: filler, in which it is said once what the key is, and at the end the question what it is.
    Asked are its `digits`. A guess gets a tenth of them right.

    The key stands between two sentences of the filler: any two, or at a `depth` from 0, before them all, to 1, right before
    the question. `train`, `val` and `test` are numbers of texts; those of training are drawn anew in every epoch.
    """

    def __init__(
        self,
        seed: int,
        *,
        length: Count = 256,
        digits: Count = 5,
        depth: Depth = "random",
        batch_size: Count = 64,
        train: Count = 16_000,
        val: Count = 1_000,
        test: Count = 1_000,
        workers: Workers = 0,
    ) -> None:
        super().__init__(seed, batch_size, (train, val, test), workers)
        room = length + 1 - len(WORDS.encode(f"{SAID} . {QUESTION}")) - 2 * digits
        if room < 0:
            raise OptionError(
                "length",
                f"a key of {digits} digits and the question take {length - room}; write that or more",
            )
        self.length, self.texts = length, Texts(room, digits, depth)
        self.samples = TextSpec(length, WORDS, asks="answers")

    def drawn(self, size: int, seed: tuple[int, int]) -> Sequences:
        return Sequences(self.texts, size, seed)


@dataclass(frozen=True)
class Texts:
    room: int  # words of filler
    digits: int
    depth: Literal["random"] | float

    def __call__(self, draw: np.random.Generator) -> Example:
        key = draw.integers(10, size=self.digits)
        size = SENTENCES.shape[1]
        count = -(-self.room // size)
        filler = SENTENCES[draw.integers(len(SENTENCES), size=count)].ravel()[
            size * count - self.room :
        ]
        before = (
            int(draw.integers(count + 1)) if self.depth == "random" else round(self.depth * count)
        )
        place = max(0, self.room - size * (count - before))  # the first sentence may be cut
        said = [*WORDS.encode(SAID), *key, *WORDS.encode(".")]
        question = [*filler[:place], *said, *filler[place:], *WORDS.encode(QUESTION)]
        return answered(np.array(question), key)
