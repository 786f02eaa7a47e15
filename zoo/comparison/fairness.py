"""Find unintended differences between cells: all that differs besides the values that vary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from zoo.comparison.grid import ENCODING, is_below
from zoo.comparison.record import SHORT_DIGITS, CellRecord, Environment, group_by_module
from zoo.comparison.results import ComparisonCell, Flag, Variant
from zoo.comparison.text import join_names

ORDER, BATCH = "order of samples", "first batch"
MAX_NAMES = 3
# share of the parameters up to which a difference is minor
MINOR_SHARE = 0.01

Start = Mapping[str, tuple[tuple[Any, ...], Hashable]]
"""{what a cell began with: (what must be equal for two of them to be comparable, digest)}"""

Pick = Callable[[CellRecord], Sequence[Hashable]]
"""Returns the values of a cell that should be the same in all cells."""


def find_different_starts(
    records: Sequence[CellRecord], varied: Iterable[str]
) -> list[tuple[str, ...]]:
    """Return for each cell what of its start differs from most cells of the same seed.

    Weights are compared if their shapes agree. Those of encodings are left out if encodings vary:
    with another option they may begin otherwise.

    Args:
        records: All cells.
        varied: The keys that vary.
    """
    ignores_encodings = any(is_below(key, ENCODING) for key in varied)
    starts = [_read_start(record, ignores_encodings) for record in records]

    # no cell is known to be right, so what most of a seed have is the reference
    digests: dict[Hashable, Counter[Hashable]] = {}
    for record, start in zip(records, starts, strict=True):
        for name, (shape, digest) in start.items():
            digests.setdefault((record.seed, name, shape), Counter())[digest] += 1

    return [
        tuple(
            name
            for name, (shape, digest) in start.items()
            if _find_most_common(digests[record.seed, name, shape]) != digest
        )
        for record, start in zip(records, starts, strict=True)
    ]


def count_shared_weights(records: Sequence[CellRecord]) -> int:
    """Count the weights that all variants have, by name and shape, with equal initial values.

    They are equal if, for each seed, they began equal in all cells that have begun.
    """
    begun = [(record.seed, _read_start(record)) for record in records if record.weights]
    if not begun:
        return 0
    shapes = [{(name, shape) for name, (shape, _) in start.items()} for _, start in begun]
    seeds = {seed for seed, _ in begun}
    count = 0
    # equal for each seed means: one digest per seed, and no more
    for name, shape in set.intersection(*shapes) - {(ORDER, ()), (BATCH, ())}:
        digests = {(seed, start[name][1]) for seed, start in begun}
        if len(digests) == len(seeds):
            # of weights that have the same name in all blocks
            count += shape[0]
    return count


def find_flags(
    variants: Sequence[Variant], records: Sequence[CellRecord]
) -> dict[str, tuple[Flag, ...]]:
    """Return {variant: flags}: other differences than its values, different starts, failures."""
    by_variant: dict[str, list[Flag]] = {variant.name: [] for variant in variants}
    # models whose sizes vary on purpose are compared with those of their own size
    sizes: dict[str, set[str]] = {}
    for variant in variants:
        sizes.setdefault(_describe_size(variant), set()).add(variant.name)
    for names in sizes.values():
        for name, flag in _flag_parameters(
            [record for record in records if record.variant in names]
        ):
            by_variant[name].append(flag)

    varied = {key for variant in variants for key in variant.values}
    for kind, pick in EQUAL.items():
        causes = EXPECTED_CAUSES.get(kind, ())
        # varied on purpose, so it is no unfairness
        if any(is_below(key, cause) for key in varied for cause in causes):
            continue
        for name, flag in _flag_unequal(records, kind, pick):
            by_variant[name].append(flag)

    for variant in variants:
        by_variant[variant.name] += [*_flag_starts(variant.cells), *_flag_failures(variant.cells)]
    return {name: tuple(dict.fromkeys(flags)) for name, flags in by_variant.items()}


def _read_start(record: CellRecord, ignores_encodings: bool = False) -> Start:
    start: dict[str, tuple[tuple[Any, ...], Hashable]] = {}
    for name, (count, shapes, values) in group_by_module(record.weights).items():
        if not (ignores_encodings and "encoding" in name.split(".")):
            start[name] = (count, shapes), values
    if not record.weights:
        return {}
    if record.order:
        start[ORDER] = (), record.order[:SHORT_DIGITS]
    if record.batch:
        start[BATCH] = (), record.batch[:SHORT_DIGITS]
    return start


def _flag_failures(cells: Sequence[ComparisonCell]) -> Iterator[Flag]:
    for cell in cells:
        if cell.state == "failed":
            reason = f": {cell.error}" if cell.error else ""
            yield Flag("failed seeds", f"seed {cell.seed} failed{reason}")


def _flag_starts(cells: Sequence[ComparisonCell]) -> Iterator[Flag]:
    """Flag different starts; seeds with the same differences share a line."""
    seeds: dict[tuple[str, ...], list[str]] = {}
    for cell in cells:
        if cell.different_start:
            seeds.setdefault(cell.different_start, []).append(str(cell.seed))
    for names, numbers in seeds.items():
        word = "seed" if len(numbers) == 1 else "seeds"
        different = join_names(names, MAX_NAMES)
        sentence = f"{word} {join_names(numbers)} did not start as the others: {different}"
        yield Flag("start", sentence)


def _describe_size(variant: Variant) -> str:
    """Return the numbers of its model that vary, such as its width."""
    return repr(
        [
            (key, value)
            for key, value in sorted(variant.values.items())
            if is_below(key, "model")
            and not is_below(key, ENCODING)
            and isinstance(value, int | float)
            and not isinstance(value, bool)
        ]
    )


def _flag_parameters(records: Sequence[CellRecord]) -> Iterator[tuple[str, Flag]]:
    counts = {
        record.variant: record.parameters for record in records if record.parameters is not None
    }
    usual, owner = _find_usual_count(counts)
    for name, count in counts.items():
        difference = abs(count - usual)
        if difference:
            word = "more" if count > usual else "fewer"
            sentence = f"{difference:,} {word} parameters than {owner}"
            is_minor = difference <= MINOR_SHARE * usual
            bound = f", within {100 * MINOR_SHARE:g} %" if is_minor else ""
            yield name, Flag("parameters", f"{sentence}{bound}", is_minor)


def _find_usual_count(counts: Mapping[str, int]) -> tuple[int, str]:
    """Return the most frequent count, the first listed of equally frequent ones, and who has it."""
    if not counts:
        return 0, "most"
    usual, owners = Counter(counts.values()).most_common(1)[0]
    first_owner = next(name for name, count in counts.items() if count == usual)
    return usual, "most" if owners > 1 else first_owner


def _flag_unequal(
    records: Sequence[CellRecord], kind: str, pick: Pick
) -> Iterator[tuple[str, Flag]]:
    """Flag the variants of which a cell has another value than most cells."""
    values = []
    for record in records:
        # a resumed cell may have ended on another machine than it began on
        for value in dict.fromkeys(pick(record)):
            if value not in (None, ""):
                values.append((record.variant, value))
    usual = _find_most_common(Counter(value for _, value in values)) if values else None
    for name, value in values:
        if value != usual:
            yield name, Flag(kind, f"{kind}: {value}, most have {usual}")


def _pick_twice(look_up: Callable[[Environment], Any]) -> Pick:
    """Pick a value of the environment, of the first attempt at a cell and of its last."""

    def pick(record: CellRecord) -> list[Hashable]:
        both = (record.environment, record.last_environment)
        return [_join_list(look_up(environment)) for environment in both]

    return pick


def _join_list(value: Any) -> Hashable:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _describe_commit(environment: Environment) -> str | None:
    git = environment.git or {}
    suffix = " with changes" if git.get("changed") else ""
    commit = git.get("commit")
    return f"{str(commit)[:12]}{suffix}" if commit else None


def _find_most_common(counts: Counter[Hashable]) -> Hashable:
    return counts.most_common(1)[0][0]


EQUAL: Mapping[str, Pick] = {
    "attention": lambda record: [", ".join(record.backends)],
    "steps": lambda record: [record.steps],
    "device": lambda record: [record.device],
    "GPUs": _pick_twice(lambda environment: environment.devices.get("cuda")),
    "threads": _pick_twice(lambda environment: environment.devices.get("threads")),
    "processes": _pick_twice(lambda environment: environment.processes),
    "torch": _pick_twice(lambda environment: environment.packages.get("torch")),
    "zoo": _pick_twice(lambda environment: environment.zoo),
    "commit": _pick_twice(_describe_commit),
}
"""{kind of a flag: what should be equal in all cells}"""

EXPECTED_CAUSES: Mapping[str, Sequence[str]] = {
    "steps": ("trainer", "data"),
    "device": ("trainer.accelerator",),
    "GPUs": ("trainer.accelerator",),
    "threads": ("trainer.num_threads",),
}
"""{kind of a flag: keys that, if they vary, are expected to change it}"""
