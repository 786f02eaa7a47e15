"""A group of contenders under one measure at one length: made, and run in turns. What one cannot do stops no other."""

from __future__ import annotations

import gc
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field

import torch

from zoo.bench.protocol import BenchMeasure, Contender, RunFacts, Setting
from zoo.bench.result import Row
from zoo.bench.timing import Trial, is_out_of_memory, run_rounds
from zoo.errors import OptionError


def form_groups(
    contenders: Sequence[Contender], against: str, together: int
) -> list[list[Contender]]:
    """Each group begins with the reference; peers stand in the group of zoo's own that they are compared with.

    A group has more than `together` where one encoding and its peers are more.
    """
    reference = next(one for one in contenders if one.name == against)
    rivals = [one for one in contenders if one.rival == against]
    others = [one for one in contenders if one.rival is None and one is not reference]
    parties = [[one, *(peer for peer in contenders if peer.rival == one.name)] for one in others]
    found = [[reference, *rivals]]
    for party in parties:
        if len(found[-1]) > 1 and len(found[-1]) + len(party) > together:
            found.append([reference])
        found[-1] += party
    return found


log = logging.getLogger("zoo")

Tell = Callable[[str], None]
GRAPHS = 256  # of one function that are compiled at most, where each model of a group has its own


@dataclass(frozen=True, kw_only=True)
class Pace:
    """At least so many rounds after `warm` ones that do not count, and more while they took less than so many seconds."""

    rounds: int
    seconds: float
    warmup: int


class GroupRun:
    """`tell` is told what is being done."""

    def __init__(
        self, measure: BenchMeasure, setting: Setting, contenders: Sequence[Contender], tell: Tell
    ) -> None:
        self.measure, self.setting, self.contenders, self.tell = measure, setting, contenders, tell
        self.runs: dict[str, Trial] = {}
        self.facts: dict[str, RunFacts] = {}
        self.faults: dict[str, str] = {}
        self.found: list[list[float]] = []  # [rounds, contenders], NaN where one failed

    def take(self, pace: Pace) -> None:
        """Run all rounds; models are given back at the end. Raises KeyboardInterrupt where it is stopped."""
        try:
            with _compile_freely() if self.setting.shape.compile else nullcontext():
                for one in self.contenders:
                    with self._may_fail(one.name):
                        self.runs[one.name], self.facts[one.name] = self.measure.prepare(
                            one, self.setting
                        )
                self._turn(pace)
        finally:
            self.runs.clear()
            _free_memory(self.setting.device)

    def rows(self, group: int, against: str) -> list[Row]:
        """A row for each contender, with the rounds that are done."""
        return [self._row(one, group, against) for one in self.contenders]

    def _turn(self, pace: Pace) -> None:
        if not self.measure.is_repeated:
            pace = Pace(rounds=1, seconds=0, warmup=0)
        trials = [self._trial(one.name) for one in self.contenders]
        for found in run_rounds(trials, pace.rounds, pace.seconds, pace.warmup):
            self.found.append(found)

    def _trial(self, name: str) -> Trial:
        def run() -> float:
            with self._may_fail(name, f", round {len(self.found) + 1}"):
                if name in self.runs:
                    return self.runs[name]()
            return math.nan

        return run

    @contextmanager
    def _may_fail(self, name: str, where: str = "") -> Iterator[None]:
        self.tell(f"{self.measure.name} {self.setting.shape.length} {name}{where}")
        try:
            yield
        except Exception as error:  # whatever it is: hours of others' rounds are not lost for it
            self.faults[name] = _describe_error(error)
            log.warning(
                "%s, %s at %d: %s",
                name,
                self.measure.name,
                self.setting.shape.length,
                self.faults[name],
            )
            self.runs.pop(name, None)
        else:
            return
        _free_memory(self.setting.device)

    def _row(self, one: Contender, group: int, against: str) -> Row:
        facts = self.facts.get(one.name, RunFacts())
        return Row(
            measure=self.measure.name,
            unit=self.measure.unit,
            rate=self.measure.rate,
            length=self.setting.shape.length,
            name=one.name,
            peer=one.peer,
            rival=one.rival,
            group=group,
            amount=facts.amount,
            parameters=facts.parameters,
            plan=facts.plan,
            fault=self.faults.get(one.name),
            values=tuple(value for value in self._values(one.name) if not math.isnan(value)),
            ratios=self._ratios(one.name, against),
            rival_ratios=self._ratios(one.name, one.rival),
        )

    def _values(self, name: str) -> list[float]:
        names = [one.name for one in self.contenders]
        return [found[names.index(name)] for found in self.found]

    def _ratios(self, name: str, other: str | None) -> tuple[float, ...]:
        """Within each round that both were in."""
        if other not in [one.name for one in self.contenders]:
            return ()
        pairs = zip(self._values(name), self._values(str(other)), strict=True)
        return tuple(ours / theirs for ours, theirs in pairs if not math.isnan(ours + theirs))


def _describe_error(error: Exception) -> str:
    """In one line."""
    text = str(error).strip().partition("\n")[0]
    if is_out_of_memory(error):
        return "out of memory"
    return text if isinstance(error, OptionError) else f"{type(error).__name__}: {text}"


@contextmanager
def _compile_freely() -> Iterator[None]:
    """Each model of the group is compiled, none is run uncompiled because there were many before it."""
    torch.compiler.reset()
    with torch._dynamo.config.patch(recompile_limit=GRAPHS, fail_on_recompile_limit_hit=True):
        yield


def _free_memory(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


@dataclass
class Benchmark:
    """`rows` grow while it runs; whoever stops it finds there what is done so far."""

    groups: Sequence[Sequence[Contender]]
    measures: Sequence[BenchMeasure]
    lengths: Sequence[int]
    setting: Setting
    pace: Pace
    tell: Tell
    rows: list[Row] = field(default_factory=list)

    def run(self) -> None:
        for measure in self.measures:
            for length in measure.choose_lengths(self.setting, self.lengths):
                for number, group in enumerate(self.groups):
                    self._take(measure, self.setting.with_length(length), number, group)

    def _take(
        self, measure: BenchMeasure, setting: Setting, number: int, group: Sequence[Contender]
    ) -> None:
        able = [one for one in group if measure.supports(one)]
        turns = GroupRun(measure, setting, able, self.tell)
        try:
            turns.take(self.pace)
        finally:
            self.rows += turns.rows(number, against=group[0].name)
