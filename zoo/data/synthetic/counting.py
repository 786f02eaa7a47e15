"""Counting increments of a variable since it was set (Golovneva et al. 2024, arXiv:2405.18719)."""

from __future__ import annotations

from typing import Annotated, Unpack

import numpy as np

from zoo.data.corpus.tokenizer import Words
from zoo.data.spec import TextSpec
from zoo.data.synthetic.base import (
    Example,
    LoaderOptions,
    SyntheticTask,
    append_answer,
    refuse_least,
)
from zoo.options import Between, Count
from zoo.registry import register

MAX_VALUE = 10
NAMES = "xyzvw"
WORDS = Words(("pass", ";", "=", "++", "print", *NAMES, *map(str, range(MAX_VALUE + 1))))
# Weights of the statements in the draw; the first two apply to each variable.
SET_WEIGHT, INCREMENT_WEIGHT, PASS_WEIGHT = 1, 7, 50
MAX_STATEMENT = 4
"""Number of words of the longest statement."""
PASS = WORDS.encode("pass ;")
SET = [WORDS.encode(f"{name} = 0 ;") for name in NAMES]
INCREMENT = [WORDS.encode(f"{name} ++ ;") for name in NAMES]


@register
class Counting(SyntheticTask):
    """Programs of `least` to `steps` statements, `x = 0 ;`, `x ++ ;` or `pass ;`, then `print x`.

    The target is the printed value. Variables start at 0. A statement sets each variable with
    weight 1, increments it with weight 7, and is `pass` with weight 50; an increment beyond 10 also
    becomes `pass`. The printed variable is drawn uniformly. The most frequent value is right in 20
    to 22 % of programs of up to 512 statements. `train`, `val` and `test` are numbers of programs,
    which are the same in each epoch.
    """

    pads = True
    fresh_epochs = False

    def __init__(
        self,
        seed: int,
        *,
        steps: Count = 512,
        least: Count = 3,
        variables: Annotated[int, Between(1, len(NAMES))] = 1,
        train: Count = 10_000,
        val: Count = 1_000,
        test: Count = 1_000,
        **options: Unpack[LoaderOptions],
    ) -> None:
        refuse_least(least, steps, "steps")
        spec = TextSpec(MAX_STATEMENT * steps + 2, WORDS, targets="some")
        super().__init__(seed, spec, train=train, val=val, test=test, **options)
        self.least, self.steps, self.variables = least, steps, variables

    def draw_example(self, rng: np.random.Generator) -> Example:
        count = self.variables
        weights = np.array([PASS_WEIGHT, *[SET_WEIGHT] * count, *[INCREMENT_WEIGHT] * count])
        steps = rng.integers(self.least, self.steps + 1)
        statements = rng.choice(len(weights), steps, p=weights / weights.sum())

        values, program = [0] * count, []
        for statement in statements.tolist():
            # The kind is -1 for pass, 0 for set and 1 for increment.
            kind, variable = divmod(statement - 1, count)
            if kind < 0 or (kind == 1 and values[variable] == MAX_VALUE):
                program += PASS
            elif kind == 0:
                values[variable] = 0
                program += SET[variable]
            else:
                values[variable] += 1
                program += INCREMENT[variable]

        printed = int(rng.integers(count))
        question = np.array([*program, *WORDS.encode(f"print {NAMES[printed]}")])
        return append_answer(question, np.array(WORDS.encode(str(values[printed]))))
