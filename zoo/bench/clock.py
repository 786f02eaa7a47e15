"""Seconds of what runs on a device, and of several things in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import torch

Trial = Callable[[], float]
"""Does what is measured once, and says how much it took."""


def wait(device: str) -> None:
    """Until a device has done all that it was told."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(act: Callable[[], object], device: str) -> float:
    """How long it takes to do something once."""
    wait(device)
    start = time.perf_counter()
    act()
    wait(device)
    return time.perf_counter() - start


def rounds(trials: Sequence[Trial], least: int, seconds: float = 0.0, warm: int = 1) -> Iterator[list[float]]:
    """What each trial took, round by round: all in turn, so that a machine that changes its pace changes it for all.

    Each round begins with the next of them: who comes after the largest finds the caches cold. At least so many rounds, and
    more while they have not taken so many seconds; `warm` ones before them do not count.
    """
    for _ in range(warm):
        for trial in trials:
            trial()
    end, count = time.perf_counter() + seconds, 0
    while count < least or time.perf_counter() < end:
        found = {one: trials[one]() for one in _turned(len(trials), count)}
        yield [found[one] for one in range(len(trials))]
        count += 1


def _turned(count: int, first: int) -> Iterator[int]:
    """0 to count - 1, from another one on for each `first`."""
    return ((first + step) % count for step in range(count))
