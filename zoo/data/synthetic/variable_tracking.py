"""Variable tracking, a task of RULER (Hsieh et al. 2024, arXiv:2404.06654)."""

from __future__ import annotations

from itertools import pairwise
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

NAMES = tuple(f"x{number}" for number in range(64))
WORDS = Words(
    (*map(str, range(10)), *NAMES, "var", "=", "?", *sorted(set(" ".join(FILLER).split())))
)
SENTENCES = np.array([WORDS.encode(sentence) for sentence in FILLER])  # [8, 6]
DIGITS = 5


@register
class VariableTracking(SyntheticTask):
    """Texts of `length` words: filler with `chains` of assignments, then a value.

    A chain is `var x3 = 4 7 1 9 2 .`, later `var x8 = x3 .`, and so on for `hops`. The targets are
    all variables with the value at the end, in the order of their assignments. The other chains
    have other values. The assignments of a chain are in order, at random places between sentences
    of the filler. A constant answer is right for 1 in 64. `train`, `val` and `test` are numbers of
    texts; training texts are drawn anew in each epoch.
    """

    def __init__(
        self,
        seed: int,
        *,
        length: Count = 256,
        chains: Count = 1,
        hops: Annotated[int, Between(0)] = 4,
        **options: Unpack[SyntheticOptions],
    ) -> None:
        if chains * (hops + 1) > len(NAMES):
            message = f"{chains} chains of {hops} hops take more than {len(NAMES)} variables"
            raise OptionError("hops", f"{message}; write less of either")
        # `var x = 4 7 1 9 2 .`, `var y = x .` for each hop, and `var = 4 7 1 9 2 ?`
        statements = chains * (4 + DIGITS + 5 * hops)
        # The last name of the answer is only a target.
        least = statements + 3 + DIGITS + hops
        if length < least:
            message = f"{chains} chains of {hops} hops and the question take {least}"
            raise OptionError("length", f"{message}; write that or more")
        spec = TextSpec(length, WORDS, targets="answers")
        super().__init__(seed, spec, **options)
        self.filler, self.chains, self.hops = length - least, chains, hops

    def draw_example(self, rng: np.random.Generator) -> Example:
        numbers = rng.choice(len(NAMES), (self.chains, self.hops + 1), replace=False)
        values = rng.choice(10**DIGITS, self.chains, replace=False)
        chains = []
        for row, value in zip(numbers.tolist(), values.tolist(), strict=True):
            names, digits = [NAMES[number] for number in row], " ".join(f"{value:0{DIGITS}}")
            hops = [f"var {new} = {old} ." for old, new in pairwise(names)]
            chains.append([f"var {names[0]} = {digits} .", *hops])

        # Shuffling the numbers of chains keeps the order of assignments within each.
        order = rng.permutation(np.repeat(np.arange(self.chains), self.hops + 1))
        assignments = [iter(chain) for chain in chains]
        statements = [WORDS.encode(next(assignments[chain])) for chain in order.tolist()]
        tokens = scatter_statements(rng, statements, SENTENCES, self.filler)
        digits = " ".join(f"{values[0]:0{DIGITS}}")
        tokens += WORDS.encode(f"var = {digits} ?")
        answer = WORDS.encode(" ".join(NAMES[number] for number in numbers[0]))
        return append_answer(np.array(tokens), np.array(answer))
