"""Counts of the targets of each class, and the refusal of splits from which nothing is learned."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from zoo.errors import DataError, OptionError
from zoo.suggestions import join_words

log = logging.getLogger("zoo")

LEAST_READ = 50
"""Number of samples that are read even if a few of them have all classes."""
MAX_SECONDS = 5.0
"""Time to read samples, such as masks, whose classes stand in no column."""
MAX_LISTED = 10
"""Number of class names that a message lists."""
HIGH_SHARE = 0.5
"""Share of targets without a class from which a message names it."""


@dataclass(frozen=True, kw_only=True)
class ClassCounts:
    """Numbers of targets in the samples of a split that were read.

    Attributes:
        targets: Number of targets that have a class, or are tokens.
        classes: Number of targets of each class; empty where targets are tokens.
        ignored: Number of targets without a class by the number that a file has for them.
        unit: What has a class: "sample", "pixel" or "token".
        excluded: The class that the task ignores, if any.
        assumed: The number in files that stands for no class only because no option says so.
        read: Number of samples that were read.
        total: Number of samples of the split.
        place: The file, folder or table, and the split, in messages.
        remedy: What may be wrong where a class has no target.
    """

    targets: int
    classes: tuple[int, ...] = ()
    ignored: Mapping[int, int] = field(default_factory=dict)
    unit: str = "sample"
    excluded: int | None = None
    assumed: int | None = None
    read: int
    total: int
    place: str
    remedy: str = ""

    @property
    def is_complete(self) -> bool:
        """True if all samples of the split were read."""
        return self.read == self.total

    @property
    def missing(self) -> tuple[int, ...]:
        """The classes without a target, except for the one that the task ignores."""
        numbers = range(len(self.classes))
        return tuple(n for n in numbers if not self.classes[n] and n != self.excluded)

    @property
    def present(self) -> tuple[int, ...]:
        """The classes with targets."""
        return tuple(number for number, count in enumerate(self.classes) if count)

    @property
    def ignored_share(self) -> float:
        """Share of targets without a class, from 0 to 1."""
        ignored = sum(self.ignored.values())
        return ignored / max(self.targets + ignored, 1)


def count_samples(
    labels: Mapping[int, int], classes: int, read: int, total: int, place: str
) -> ClassCounts:
    """Return the counts of samples that have one label each.

    Args:
        labels: {class number: how often it was found}.
        classes: Number of classes.
        read: Number of samples that were read.
        total: Number of samples of the split.
        place: The file, folder or table, and the split, in messages.
    """
    counts = tuple(labels.get(number, 0) for number in range(classes))
    return ClassCounts(
        targets=sum(counts),
        classes=counts,
        read=read,
        total=total,
        place=place,
        # the commonest reason for a first class without samples
        remedy="labels count from 0" if any(counts) and not counts[0] else "",
    )


def count_drawn(
    total: int, read: Callable[[Sequence[int]], Counter[int]], wanted: set[int]
) -> tuple[Counter[int], int]:
    """Count the numbers in samples, drawn in random order, until enough of them are read.

    Reading ends with the last sample, when all wanted numbers were found, or after 5 seconds.

    Args:
        total: Number of samples.
        read: Counts the numbers in the samples of a list of indices.
        wanted: Numbers to look for.

    Returns:
        How often each number was found, and the number of samples that were read.
    """
    # a random order, because tables may be sorted by class
    order = np.random.default_rng(0).permutation(total).tolist()
    counts: Counter[int] = Counter()
    end = time.monotonic() + MAX_SECONDS
    done = 0
    while done < total:
        counts += read(order[done : done + LEAST_READ])
        done = min(done + LEAST_READ, total)
        if wanted <= counts.keys() or time.monotonic() > end:
            break
    return counts, done


def check_counts(
    counts: ClassCounts, names: Sequence[str], split: str, *, may_refuse: bool = True
) -> None:
    """Report classes without a target, and a high share of targets without a class.

    Args:
        counts: The counts of the split.
        names: The names of the classes.
        split: train, val or test.
        may_refuse: Whether a split that cannot be used is refused.

    Raises:
        OptionError: A class has no target, and a number of files stands for no class by default.
        DataError: No target of training has a class, or all have the same one.
    """
    if not counts.targets + sum(counts.ignored.values()):
        # samples that cannot be read are reported by the loader
        return
    is_training = split == "train"
    is_single = bool(counts.classes) and len(counts.present) < 2
    facts = [_describe_missing(counts, names), _describe_ignored(counts)]
    summary = f"{counts.place}: {'; '.join(filter(None, facts))}"
    hint = f"; {counts.remedy}" if counts.remedy else ""

    is_assumed = counts.assumed is not None and bool(counts.ignored.get(counts.assumed))
    if may_refuse and is_assumed and counts.missing and (is_training or is_single):
        raise OptionError("ignore", f"{summary}{hint}")
    is_useless = counts.is_complete and (is_single or not counts.targets)
    if may_refuse and is_training and is_useless:
        raise DataError(f"{summary}; a model would learn nothing{hint}")
    if counts.missing or not counts.targets:
        # small splits of evaluation often lack some classes
        log.log(logging.WARNING if is_training or is_single else logging.INFO, summary + hint)
    elif counts.ignored_share >= HIGH_SHARE:
        log.warning(summary)


def _describe_missing(counts: ClassCounts, names: Sequence[str]) -> str:
    """Return which classes have no target, as a clause; empty if all have some."""
    unit = counts.unit
    read = "" if counts.is_complete else f" ({counts.read:,} of {counts.total:,} samples were read)"
    if not counts.targets:
        return f"no {unit} has {'a target' if unit == 'token' else 'a class'}{read}"
    missing = f"no {unit} has {_list_classes(counts.missing, names)}" if counts.missing else ""
    if counts.classes and len(counts.present) < 2:
        only = f"all {unit}s have {_list_classes(counts.present, names)}"
        return f"{', '.join(filter(None, [only, missing]))}{read}"
    return missing and f"{missing}{read}"


def _describe_ignored(counts: ClassCounts) -> str:
    """Return which numbers have no class and the share of their targets, as a clause."""
    total = counts.targets + sum(counts.ignored.values())
    pairs = sorted(counts.ignored.items(), key=lambda pair: -pair[1])
    shares = [f"{count / total:.1%} of {counts.unit}s are {number}" for number, count in pairs]
    if not shares:
        return ""
    listed = ", ".join(shares[:MAX_LISTED])
    remainder = f" and others ({len(shares) - MAX_LISTED})" if len(shares) > MAX_LISTED else ""
    return f"{listed}{remainder}, which means no class"


def _list_classes(numbers: Sequence[int], names: Sequence[str]) -> str:
    """Return classes by their numbers, and by their names if they have some."""
    listed = [str(n) if names[n] == str(n) else f"{n} ({names[n]})" for n in numbers[:MAX_LISTED]]
    remainder = f" and {len(numbers) - MAX_LISTED} more" if len(numbers) > MAX_LISTED else ""
    return f"class {join_words(listed, 'or')}{remainder}"
