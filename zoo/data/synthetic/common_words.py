"""Common words, a task of RULER (Hsieh et al. 2024, arXiv:2404.06654)."""

from __future__ import annotations

from typing import Annotated, Unpack

import numpy as np

from zoo.data.corpus.tokenizer import Words
from zoo.data.spec import TextSpec
from zoo.data.synthetic.base import Example, SyntheticOptions, SyntheticTask, append_answer
from zoo.errors import OptionError
from zoo.options import Between, Count
from zoo.registry import register


@register
class CommonWords(SyntheticTask):
    """Lists of words in random order, with the question which of them are common.

    Each of `common` words occurs `common_repeats` times, every other word `other_repeats` times
    (one of them less often, so that list, question and answer have `length` words). The targets are
    the common words, sorted by number. All words are drawn from `words`; a longer list has more
    words that are not common, as in RULER. A constant answer is right for about 1 in `words`, more
    because answers are sorted. `train`, `val` and `test` are numbers of lists; training lists are
    drawn anew in each epoch.
    """

    def __init__(
        self,
        seed: int,
        *,
        length: Count = 512,
        common: Count = 10,
        common_repeats: Annotated[int, Between(2)] = 30,
        other_repeats: Count = 3,
        words: Count = 512,
        **options: Unpack[SyntheticOptions],
    ) -> None:
        if other_repeats >= common_repeats:
            message = f"other words would occur as often, {other_repeats} times"
            raise OptionError("common_repeats", f"{message}; write {other_repeats + 1} or more")
        # The list, the question mark and the answer, whose last word is only a target.
        taken = common * common_repeats + common
        if length < taken:
            message = f"{common} words {common_repeats} times, with the answer, take {taken}"
            raise OptionError("length", f"{message}; write that or more")
        fillers = -(-(length - taken) // other_repeats)
        if common + fillers > words:
            message = f"a list of {length} has {common + fillers} different words, not {words}"
            raise OptionError("words", f"{message}; write that or more, or a shorter length")

        names = [f"w{number}" for number in range(words)]
        spec = TextSpec(length, Words((*names, "?")), targets="answers")
        super().__init__(seed, spec, **options)
        self.words, self.common, self.others = words, common, fillers
        self.filler = length - taken
        self.common_repeats, self.other_repeats = common_repeats, other_repeats

    def draw_example(self, rng: np.random.Generator) -> Example:
        # The first of the drawn words are common; the filler is cut in its last word.
        drawn = rng.choice(self.words, self.common + self.others, replace=False)
        common, fillers = drawn[: self.common], drawn[self.common :]
        filler = np.repeat(fillers, self.other_repeats)[: self.filler]
        listed = rng.permutation([*np.repeat(common, self.common_repeats), *filler])
        return append_answer(np.array([*listed, self.words]), np.sort(common))
