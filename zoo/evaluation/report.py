"""The result of an evaluation as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zoo.reporting.tables import format_table


def table(result: Mapping[str, Any]) -> str:
    """Return a row for the data of training and for each condition, then what was refused."""
    names = list(result["metrics"])
    found = dict(_list_conditions(result))
    rows = [("", *names), ("test", *(f"{result['metrics'][name]:.4f}" for name in names))]
    rows += [
        (title, *(f"{one[name]:.4f}" for name in names))
        for title, one in found.items()
        if "refused" not in one
    ]
    lines = [format_table(rows)]
    lines += [
        f"{title}: refused: {one['refused']}" for title, one in found.items() if "refused" in one
    ]
    lines.append(f"{result['count']} samples, {result['checkpoint']}")
    lines += _protocol(result, found)
    if "figure" in result:
        lines.append(f"figure: {result['figure']}")
    return "\n".join(lines)


def _list_conditions(result: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield title and metrics of each condition; a size without extrapolation appears once."""
    sized = result.get("resolutions", {}) | result.get("lengths", {})
    for name, one in sized.items():
        yield _title(result, name), one
        for method, sizes in result.get("extrapolation", {}).items():
            if name in sizes and sizes[name] is not one:
                yield f"{_title(result, name)}, {method}", sizes[name]
    yield from result.get("data_variants", {}).items()


def _title(result: Mapping[str, Any], name: str) -> str:
    """Return the title of a size: 24 x 24, 16 x 32, 256 tokens."""
    if name in result.get("lengths", {}):
        return f"{name} tokens"
    return " x ".join(name.split("x")) if "x" in name else f"{name} x {name}"


def _protocol(result: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield how texts were cut into windows, and how images were resized."""
    cut = {
        title: one["windows"]
        for title, one in {"test": result, **found}.items()
        if "windows" in one
    }
    ways = list(dict.fromkeys(cut.values()))
    if len(ways) == 1:
        yield f"windows: {ways[0]}"
    else:
        yield from (
            f"windows {way}: {', '.join(title for title in cut if cut[title] == way)}"
            for way in ways
        )
    if "shown" in result:
        yield f"images: {result['shown']}"
