"""Associative recall of rebound keys (Arora et al. 2023, arXiv:2312.04927; arXiv:2410.17980)."""

from __future__ import annotations

from typing import Annotated, Unpack

import numpy as np

from zoo.data.corpus.tokenizer import Words
from zoo.data.spec import IGNORE_INDEX, TextSpec
from zoo.data.synthetic.base import Example, SyntheticOptions, SyntheticTask
from zoo.errors import OptionError
from zoo.options import Between, Count
from zoo.registry import register


@register
class Recall(SyntheticTask):
    """Sequences of `length` tokens: a key, a value, a key, a value, and so on.

    At a key that occurred before, the target is its last value; the value that follows binds it
    again. Each sequence uses `pairs` of the `keys`, drawn uniformly at each step; values are drawn
    from `values`. Guessing gets 1 in `values` right. `train`, `val` and `test` are numbers of
    sequences; training sequences are drawn anew in each epoch.
    """

    def __init__(
        self,
        seed: int,
        *,
        length: Annotated[int, Between(4)] = 256,
        pairs: Count = 32,
        keys: Count = 64,
        values: Annotated[int, Between(2)] = 64,
        **options: Unpack[SyntheticOptions],
    ) -> None:
        steps = length // 2
        if length % 2:
            message = f"{length} is odd, but tokens are pairs of key and value"
            raise OptionError("length", f"{message}; write {length + 1}")
        if pairs > keys:
            raise OptionError("pairs", f"{pairs} keys per sequence are more than all {keys} keys")
        # a sequence in which no key repeats has no target
        if steps <= pairs:
            message = f"in {steps} steps none of {pairs} keys need repeat; write less than {steps}"
            raise OptionError("pairs", message)

        names = [f"k{number}" for number in range(keys)]
        names += [f"v{number}" for number in range(values)]
        spec = TextSpec(length, Words(tuple(names)), targets="some")
        super().__init__(seed, spec, **options)
        self.steps, self.pairs, self.keys, self.values = steps, pairs, keys, values

    def draw_example(self, rng: np.random.Generator) -> Example:
        choices = rng.choice(self.keys, self.pairs, replace=False)
        keys = rng.choice(choices, self.steps)
        values = self.keys + rng.integers(self.values, size=self.steps)
        # Values are numbered after the keys. Only repeated keys have targets.
        bound: dict[int, int] = {}
        targets = np.full((self.steps, 2), IGNORE_INDEX)
        for step, (key, value) in enumerate(zip(keys.tolist(), values.tolist(), strict=True)):
            targets[step, 0] = bound.get(key, IGNORE_INDEX)
            bound[key] = value
        return Example(np.stack([keys, values], axis=1).ravel(), targets.ravel())
