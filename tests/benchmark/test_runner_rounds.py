"""Contenders take turns, ratios are benchmark within rounds, and what one cannot do stops no other."""

from dataclasses import dataclass
from itertools import count

import pytest
import torch

from zoo.benchmark.protocol import SHAPES, Contender, PreparedRun, RunFacts, Workload, run_rounds
from zoo.benchmark.runner import Benchmark, Pace, form_groups

SETTING = Workload(shape=SHAPES["lm_toy"])


@pytest.fixture(autouse=True)
def _nothing_to_give_back(monkeypatch):
    """Collecting garbage takes longer than these tests, which hold no model."""
    monkeypatch.setattr("zoo.benchmark.runner._free_memory", lambda device: None)


def contender(name, counterpart=None):
    return Contender(
        name=name,
        make=lambda setting: None,
        counterpart=counterpart,
        library="theirs" if counterpart else None,
    )


@dataclass
class Clock:
    """A measure whose runs take what `takes` says of a name and a round; an exception is raised."""

    takes: object
    name: str = "train"
    unit: str = "seconds"
    rate: str = "tokens"
    is_repeated: bool = True

    def choose_lengths(self, setting, asked):
        return asked

    def supports(self, contender):
        return True

    def prepare(self, contender, setting):
        numbers = count()

        def run():
            found = self.takes(contender.name, next(numbers))
            if isinstance(found, BaseException):
                raise found
            return found

        return PreparedRun(run, RunFacts(amount=10))


def run_benchmark(
    takes, *names, told=lambda text: None, pace=Pace(rounds=3, seconds=0, warmup=0), rivals=()
):
    contenders = [contender(name) for name in names] + [
        contender(f"their {name}", name) for name in rivals
    ]
    benchmark = Benchmark(
        form_groups(contenders, names[0], 8), [Clock(takes)], [32], SETTING, pace, told
    )
    benchmark.run()
    return {row.name: row for row in benchmark.rows}


def test_all_are_run_in_each_round():
    seen = []
    trials = [lambda name=name: seen.append(name) or ord(name) for name in "abc"]
    assert [*run_rounds(trials, 2, warmup=1)] == [[97, 98, 99]] * 2
    assert "".join(seen) == "abc" + "abc" + "bca"


def test_rounds_go_on_while_there_is_time():
    assert len([*run_rounds([lambda: 0.0], 1, min_seconds=0.01, warmup=0)]) > 1


def test_a_ratio_is_made_within_its_round():
    rows = run_benchmark(
        lambda name, number: (number + 1) * (3.0 if name == "b" else 2.0), "a", "b"
    )
    assert rows["b"].ratios == (1.5, 1.5, 1.5)
    assert rows["b"].values == (3.0, 6.0, 9.0)
    assert rows["b"].per_second == 10 / 6


def test_a_peer_is_compared_with_its_rival():
    rows = run_benchmark(
        lambda name, number: {"a": 1.0, "b": 2.0}.get(name, 6.0), "a", "b", rivals=["b"]
    )
    assert rows["their b"].counterpart_ratios == (3.0, 3.0, 3.0)
    assert rows["their b"].ratio == 6.0


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"), "out of memory"),
        (
            RuntimeError(
                "[enforce fail at alloc_cpu.cpp] . DefaultCPUAllocator: can't allocate memory"
            ),
            "out of memory",
        ),
        (NotImplementedError("no kernel\nand more"), "NotImplementedError: no kernel"),
    ],
    ids=["gpu", "cpu", "kernel"],
)
def test_what_fails_is_told_and_stops_no_other(error, told, caplog):
    rows = run_benchmark(
        lambda name, number: error if name == "b" and number == 1 else 1.0, "a", "b", "c"
    )
    assert rows["b"].error == told
    assert len(rows["b"].ratios) == 1
    assert len(rows["c"].ratios) == 3
    assert told in caplog.text


def test_what_was_done_before_a_stop_is_kept():
    contenders = [contender("a"), contender("b")]
    takes = lambda name, number: KeyboardInterrupt() if (name, number) == ("b", 2) else 1.0  # noqa: E731
    pace = Pace(rounds=9, seconds=0, warmup=0)
    benchmark = Benchmark([contenders], [Clock(takes)], [32], SETTING, pace, lambda text: None)
    with pytest.raises(KeyboardInterrupt):
        benchmark.run()
    assert [len(row.ratios) for row in benchmark.rows] == [2, 2]


def test_the_reference_stands_in_each_group_and_peers_beside_their_rival():
    some = [contender(name) for name in "abcd"] + [
        contender("their c", "c"),
        contender("their a", "a"),
    ]
    found = [[one.name for one in group] for group in form_groups(some, "a", 3)]
    assert found == [["a", "their a", "b"], ["a", "c", "their c"], ["a", "d"]]
