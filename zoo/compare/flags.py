"""What a reader must know of a variant before believing its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zoo.compare.result import Cell, Variant
from zoo.compare.wording import listed

LITTLE = "within 1 %: "  # how what is told of a variant begins that is too little to mark it by
NAMED = 3  # things that began otherwise, of all


def flags(variant: Variant) -> tuple[str, ...]:
    """What is unfair, which seeds failed and why, and what of a start was not as in the others; each told once."""
    cells = [*(told for cell in variant.cells for told in _failed(cell)), *_started(variant.cells)]
    unfair = [one for one in variant.unfair if not any(told.startswith(one) for told in cells)]
    return tuple(dict.fromkeys([*unfair, *cells]))


def grave(told: Sequence[str]) -> tuple[str, ...]:
    """Of what is told, what a variant is marked by."""
    return tuple(one for one in told if not one.startswith(LITTLE))


def _failed(cell: Cell) -> list[str]:
    if cell.state != "failed":
        return []
    return [f"seed {cell.seed} failed{f': {cell.fault}' if cell.fault else ''}"]


def _started(cells: Sequence[Cell]) -> Iterator[str]:
    """Which seeds began otherwise, those with the same things in one line."""
    found: dict[tuple[str, ...], list[str]] = {}
    for cell in cells:
        if cell.differs:
            found.setdefault(cell.differs, []).append(str(cell.seed))
    for names, seeds in found.items():
        told = f"{'seed' if len(seeds) == 1 else 'seeds'} {listed(seeds)}"
        yield f"{told} did not start as the others: {listed(names, NAMED)}"
