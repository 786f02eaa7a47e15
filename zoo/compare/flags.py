"""What a reader must know of a variant before believing its numbers."""

from __future__ import annotations

from zoo.compare.result import Cell, Variant


def flags(variant: Variant) -> tuple[str, ...]:
    """What is unfair, which seeds failed and why, and what of a start was not as in the others; each told once."""
    cells = [told for cell in variant.cells for told in _cell(cell)]
    unfair = [one for one in variant.unfair if not any(told.startswith(one) for told in cells)]
    return tuple(dict.fromkeys([*unfair, *cells]))


def _cell(cell: Cell) -> list[str]:
    told = []
    if cell.state == "failed":
        told.append(f"seed {cell.seed} failed{f': {cell.fault}' if cell.fault else ''}")
    if cell.differs:
        told.append(f"seed {cell.seed} did not start as the others: {', '.join(cell.differs)}")
    return told
