"""Counting (Golovneva et al. 2024, arXiv:2405.18719): how often a variable was incremented since it was last set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from zoo.data.corpus.tokenizer import Words
from zoo.data.generated.sequences import Example, Sequences, answered
from zoo.data.generated.source import Generated, Workers, ordered
from zoo.data.spec import TextSpec
from zoo.registry import Between, Count, register

MOST = 10  # a variable counts no further
NAMES = "xyzvw"
WORDS = Words(("pass", ";", "=", "++", "print", *NAMES, *map(str, range(MOST + 1))))
SET, INCREMENT, PASS = 1, 7, 50  # how often each is drawn: the first two for each variable
LONGEST = 4  # words of a step
NOTHING = WORDS.encode("pass ;")
STEPS = [[WORDS.encode(f"{name} {how} ;") for name in NAMES] for how in ("= 0", "++")]


@register
class Counting(Generated):
    """Programs of `least` to `steps` steps, `x = 0 ;`, `x ++ ;` or `pass ;`, then `print x`. Asked is what is printed.

    Variables start at 0. For each of them a step sets it with weight 1 and increments it with weight 7, and any step does
    nothing with weight 50; what would increment past 10 does nothing. The variable printed is any of them. Always
    answering the commonest value is right in 20 to 22 % of programs of up to 512 steps. `train`, `val` and `test` are
    numbers of programs, the same in every epoch.
    """

    def __init__(
        self,
        seed: int,
        *,
        steps: Count = 512,
        least: Count = 3,
        variables: Annotated[int, Between(1, len(NAMES))] = 1,
        batch_size: Count = 64,
        train: Count = 10_000,
        val: Count = 1_000,
        test: Count = 1_000,
        workers: Workers = 0,
    ) -> None:
        super().__init__(seed, batch_size, (train, val, test), workers)
        ordered(least, steps, "steps")
        self.programs = Programs(least, steps, variables)
        self.samples = TextSpec(LONGEST * steps + 2, WORDS, asks="some")

    def drawn(self, size: int, seed: tuple[int, int]) -> Sequences:
        return Sequences(self.programs, size, seed, padded=True, anew=False)


@dataclass(frozen=True)
class Programs:
    least: int
    most: int
    variables: int

    def __call__(self, draw: np.random.Generator) -> Example:
        weights = np.array([PASS, *[SET] * self.variables, *[INCREMENT] * self.variables])
        steps = draw.choice(
            len(weights), draw.integers(self.least, self.most + 1), p=weights / weights.sum()
        )
        values, words = [0] * self.variables, []
        for step in steps.tolist():
            kind, variable = divmod(step - 1, self.variables)  # -1: pass, 0: set, 1: increment
            if kind < 0 or (kind == 1 and values[variable] == MOST):
                words += NOTHING
                continue
            values[variable] = values[variable] + 1 if kind else 0
            words += STEPS[kind][variable]
        asked = int(draw.integers(self.variables))
        question = np.array([*words, *WORDS.encode(f"print {NAMES[asked]}")])
        return answered(question, np.array(WORDS.encode(str(values[asked]))))
