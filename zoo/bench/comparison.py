"""A comparison: each measure at each length, group by group, in rounds that take turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from zoo.bench.contender import Contender
from zoo.bench.result import Row
from zoo.bench.shapes import Setting
from zoo.bench.trial import Measure
from zoo.bench.turns import Pace, Tell, Turns


@dataclass
class Comparison:
    """`rows` grow while it runs; whoever stops it finds there what is done so far."""

    groups: Sequence[Sequence[Contender]]
    measures: Sequence[Measure]
    lengths: Sequence[int]
    setting: Setting
    pace: Pace
    tell: Tell
    rows: list[Row] = field(default_factory=list)

    def run(self) -> None:
        for measure in self.measures:
            for length in measure.lengths(self.setting, self.lengths):
                for number, group in enumerate(self.groups):
                    self._take(measure, self.setting.at(length), number, group)

    def _take(self, measure: Measure, setting: Setting, number: int, group: Sequence[Contender]) -> None:
        able = [one for one in group if measure.able(one)]
        turns = Turns(measure, setting, able, self.tell)
        try:
            turns.take(self.pace)
        finally:
            self.rows += turns.rows(number, against=group[0].name)
