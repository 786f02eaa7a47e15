"""Multi-key passkey retrieval, a task of RULER (Hsieh et al. 2024, arXiv:2404.06654)."""

from __future__ import annotations

from typing import Annotated, Unpack

import numpy as np

from zoo.data.corpus.tokenizer import Words
from zoo.data.spec import TextSpec
from zoo.data.synthetic.base import (
    Example,
    SyntheticOptions,
    SyntheticTask,
    append_answer,
    scatter_statements,
)
from zoo.data.synthetic.passkey import FILLER
from zoo.errors import OptionError
from zoo.options import Between, Count
from zoo.registry import register

NAMES = tuple(f"n{number}" for number in range(64))
STATEMENT, QUESTION = "the key of is .", "what is the key of ?"
WORDS = Words(
    (*map(str, range(10)), *NAMES, *sorted(set(" ".join((*FILLER, STATEMENT, QUESTION)).split())))
)
SENTENCES = np.array([WORDS.encode(sentence) for sentence in FILLER])  # [8, 6]


@register
class MultikeyPasskey(SyntheticTask):
    """Texts of `length` words: filler that states a key for each of `keys` names, then a question.

    The question names one of them, and the targets are the `digits` of its key. The other keys are
    distractors, as in RULER's multi-key needles. Guessing gets a tenth of the digits right. Keys
    are placed at random between sentences of the filler. `train`, `val` and `test` are numbers of
    texts; training texts are drawn anew in each epoch.
    """

    def __init__(
        self,
        seed: int,
        *,
        length: Count = 256,
        keys: Annotated[int, Between(1, len(NAMES))] = 4,
        digits: Count = 7,
        **options: Unpack[SyntheticOptions],
    ) -> None:
        statements = keys * (len(STATEMENT.split()) + 1 + digits)
        # The question has a name in addition, and the last digit of the answer is only a target.
        least = statements + len(QUESTION.split()) + digits
        if length < least:
            message = f"{keys} keys of {digits} digits and the question take {least}"
            raise OptionError("length", f"{message}; write that or more")
        spec = TextSpec(length, WORDS, targets="answers")
        super().__init__(seed, spec, **options)
        self.filler, self.keys, self.digits = length - least, keys, digits

    def draw_example(self, rng: np.random.Generator) -> Example:
        names = rng.choice(len(NAMES), self.keys, replace=False)
        keys = rng.integers(10, size=(self.keys, self.digits))
        statements = []
        for name, key in zip(names.tolist(), keys.tolist(), strict=True):
            digits = " ".join(map(str, key))
            statements.append(WORDS.encode(f"the key of {NAMES[name]} is {digits} ."))

        tokens = scatter_statements(rng, statements, SENTENCES, self.filler)
        # Names are drawn in random order, so the first one is a random choice.
        tokens += WORDS.encode(f"what is the key of {NAMES[names[0]]} ?")
        return append_answer(np.array(tokens), keys[0])
