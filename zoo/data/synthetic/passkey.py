"""Passkey retrieval: a number in a long text (Mohtashami and Jaggi 2023, arXiv:2305.16300)."""

from __future__ import annotations

from typing import Annotated, Literal, Unpack

import numpy as np

from zoo.data.corpus.tokenizer import Words
from zoo.data.spec import TextSpec
from zoo.data.synthetic.base import Example, SyntheticOptions, SyntheticTask, append_answer
from zoo.errors import OptionError
from zoo.options import Between, Count
from zoo.registry import register

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
STATEMENT, QUESTION = "the key is", "what is the key ?"
WORDS = Words(
    (*map(str, range(10)), *sorted(set(" ".join((*FILLER, STATEMENT, QUESTION)).split())))
)
SENTENCES = np.array([WORDS.encode(sentence) for sentence in FILLER])  # [8, 6]

Depth = Literal["random"] | Annotated[float, Between(0, 1)]


@register
class Passkey(SyntheticTask):
    """Texts of `length` words: filler that states a key once, then the question for the key.

    The targets are the `digits` of the key. Guessing gets a tenth of them right. The key is placed
    between sentences of the filler: at random, or at a `depth` from 0 (before all sentences) to 1
    (right before the question). `train`, `val` and `test` are numbers of texts; training texts are
    drawn anew in each epoch.
    """

    def __init__(
        self,
        seed: int,
        *,
        length: Count = 256,
        digits: Count = 5,
        depth: Depth = "random",
        **options: Unpack[SyntheticOptions],
    ) -> None:
        filler = length + 1 - len(WORDS.encode(f"{STATEMENT} . {QUESTION}")) - 2 * digits
        if filler < 0:
            least = length - filler
            message = f"a key of {digits} digits and the question take {least}; write that or more"
            raise OptionError("length", message)
        spec = TextSpec(length, WORDS, targets="answers")
        super().__init__(seed, spec, **options)
        self.filler, self.digits, self.depth = filler, digits, depth

    def draw_example(self, rng: np.random.Generator) -> Example:
        key = rng.integers(10, size=self.digits)
        size = SENTENCES.shape[1]
        count = -(-self.filler // size)
        sentences = SENTENCES[rng.integers(len(SENTENCES), size=count)]
        # The first sentence is cut to fit.
        filler = sentences.ravel()[size * count - self.filler :]

        # The key comes after `before` sentences, which are counted from the end of the filler.
        is_random = self.depth == "random"
        before = int(rng.integers(count + 1)) if is_random else round(float(self.depth) * count)
        index = max(0, self.filler - size * (count - before))
        statement = [*WORDS.encode(STATEMENT), *key, *WORDS.encode(".")]
        question = [*filler[:index], *statement, *filler[index:], *WORDS.encode(QUESTION)]
        return append_answer(np.array(question), key, index / max(self.filler, 1))
