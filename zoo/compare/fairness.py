"""What cells have otherwise than the others, beside the values that vary: in words, from what their files say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zoo.compare.grid import ENCODING, within
from zoo.compare.results import Cell, Flag, Variant
from zoo.compare.run_files import Files
from zoo.compare.text import listed

ORDER, BATCH = "order of samples", "first batch"
NAMED = 3  # things that began otherwise, of all
LITTLE = 0.01  # of the parameters: a difference that marks nobody
Pick = Callable[["Known"], Sequence[Hashable]]


@dataclass(frozen=True)
class Known:
    """A cell and its files."""

    variant: str
    cell: Cell
    files: Files

    @property
    def start(self) -> dict[str, tuple[Hashable, Hashable]]:
        """{what a cell began with: (what is comparable with it, its digest)}"""
        weights = {name: one for name, one in self.files.start.get("weights", {}).items() if one}
        found: dict[str, tuple[Hashable, Hashable]] = {
            name: (tuple(shape), digest) for name, (*shape, digest) in weights.items()
        }
        if weights and (order := self.files.start.get("order")):
            found[ORDER] = ((), order)
        batch = self.files.start.get("batch")
        return found | ({BATCH: ((), batch)} if weights and batch else {})


def differing(cells: Sequence[Known], varied: Iterable[str]) -> list[Cell]:
    """The cells, with what of their start is not as in most of the same seed. Weights compare where they have one shape,
    and those of encodings where these do not vary: with another option they may begin otherwise.
    """
    starts = [one.start for one in cells]
    if any(within(key, ENCODING) for key in varied):
        starts = [
            {name: each for name, each in one.items() if "encoding" not in name.split(".")}
            for one in starts
        ]
    usual: dict[tuple[int, str, Hashable], Counter[Hashable]] = {}
    for one, start in zip(cells, starts, strict=True):
        for name, (shape, digest) in start.items():
            usual.setdefault((one.cell.seed, name, shape), Counter())[digest] += 1
    found = []
    for one, start in zip(cells, starts, strict=True):
        others = (
            name
            for name, (shape, digest) in start.items()
            if _most(usual[one.cell.seed, name, shape]) != digest
        )
        found.append(replace(one.cell, differs=tuple(others)))
    return found


def shared(cells: Sequence[Known]) -> int:
    """How many weights all variants have, by name and shape, that began equal in all cells of each seed that have begun."""
    starts = [(one.cell.seed, one.start) for one in cells if one.files.start]
    if not starts:
        return 0
    common = set.intersection(
        *({(name, shape) for name, (shape, _) in start.items()} for _, start in starts)
    )
    equal = 0
    for name, _ in common - {(ORDER, ()), (BATCH, ())}:
        digests = {(seed, start[name][1]) for seed, start in starts}
        equal += len(digests) == len({seed for seed, _ in starts})
    return equal


def unfair(variants: Sequence[Variant], cells: Sequence[Known]) -> dict[str, tuple[Flag, ...]]:
    """{variant: what else than its values differs, which seeds did not start as the others, and which failed}"""
    told: dict[str, list[Flag]] = {variant.name: [] for variant in variants}
    for name, flag in _parameters(cells):
        told[name].append(flag)
    varied = {key for variant in variants for key in variant.values}
    for what, pick in _SAME.items():
        if any(within(key, cause) for key in varied for cause in _VARY.get(what, ())):
            continue  # as it should
        for name, flag in _other(cells, what, pick):
            told[name].append(flag)
    for variant in variants:
        told[variant.name] += [*_started(variant.cells), *_failed(variant.cells)]
    return {name: tuple(dict.fromkeys(flags)) for name, flags in told.items()}


def _failed(cells: Sequence[Cell]) -> Iterator[Flag]:
    for cell in cells:
        if cell.state == "failed":
            yield Flag(
                "failed seeds", f"seed {cell.seed} failed{f': {cell.fault}' if cell.fault else ''}"
            )


def _started(cells: Sequence[Cell]) -> Iterator[Flag]:
    """Which seeds began otherwise, those with the same things in one line."""
    found: dict[tuple[str, ...], list[str]] = {}
    for cell in cells:
        if cell.differs:
            found.setdefault(cell.differs, []).append(str(cell.seed))
    for names, seeds in found.items():
        told = f"{'seed' if len(seeds) == 1 else 'seeds'} {listed(seeds)}"
        yield Flag("start", f"{told} did not start as the others: {listed(names, NAMED)}")


def _parameters(cells: Sequence[Known]) -> Iterator[tuple[str, Flag]]:
    counts = {one.variant: one.cell.parameters for one in cells if one.cell.parameters is not None}
    usual, named = _usual(counts)
    for name, count in counts.items():
        if count != usual:
            words = f"{abs(count - usual):,} {'more' if count > usual else 'fewer'} parameters than {named}"
            little = abs(count - usual) <= LITTLE * usual
            yield (
                name,
                Flag(
                    "parameters", f"{words}, within {100 * LITTLE:g} %" if little else words, little
                ),
            )


def _other(cells: Sequence[Known], what: str, pick: Pick) -> Iterator[tuple[str, Flag]]:
    """Variants of which a cell has something else than most cells."""
    found = [(one.variant, value) for one in cells for value in dict.fromkeys(pick(one))]
    known = [(name, value) for name, value in found if value not in (None, "")]
    usual = Counter(value for _, value in known).most_common(1)
    for name, value in known:
        if value != usual[0][0]:
            yield name, Flag(what, f"{what}: {value}, most have {usual[0][0]}")


def _environment(*keys: str) -> Pick:
    """Of the first try of a cell and of its last."""

    def pick(one: Known) -> list[Hashable]:
        return [
            _within(found, keys)
            for found in (one.files.environment, one.files.end.get("environment"))
        ]

    return pick


def _within(found: Any, keys: Sequence[str]) -> Hashable:
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return ", ".join(map(str, found)) if isinstance(found, list) else found


def _commits(one: Known) -> list[Hashable]:
    tries = zip(
        _environment("git", "commit")(one), _environment("git", "changed")(one), strict=True
    )
    return [
        f"{str(commit)[:12]}{' with changes' if changed else ''}" if commit else None
        for commit, changed in tries
    ]


_SAME: Mapping[str, Pick] = {
    "attention": lambda one: [", ".join(one.cell.interpreters)],
    "steps": lambda one: [one.cell.steps],
    "device": lambda one: [one.files.start.get("device"), one.files.end.get("device")],
    "GPUs": _environment("devices", "cuda"),
    "threads": _environment("devices", "threads"),
    "processes": _environment("processes"),
    "torch": _environment("packages", "torch"),
    "zoo": _environment("zoo"),
    "commit": _commits,
}
_VARY = {
    "steps": ("trainer", "data"),
    "device": ("trainer.accelerator",),
    "GPUs": ("trainer.accelerator",),
    "threads": ("trainer.num_threads",),
}
"""{what: keys that make it another where they vary}"""


def _most(counts: Counter[Hashable]) -> Hashable:
    return counts.most_common(1)[0][0]


def _usual(counts: Mapping[str, int]) -> tuple[int, str]:
    """The count that most have, the first listed where as many have another, and how those are called."""
    if not counts:
        return 0, "most"
    usual, having = Counter(counts.values()).most_common(1)[0]
    return usual, "most" if having > 1 else next(
        name for name, count in counts.items() if count == usual
    )
