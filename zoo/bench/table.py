"""A result as text: Markdown whose columns are aligned, so that a terminal shows it as well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from zoo.bench.result import Result, Row, pluralize, spread, told
from zoo.reporting.tables import format_markdown

MB = 2**20


def table(result: Result) -> str:
    """What was measured, on what, and a table for each measure and length; then zoo against its peers."""
    rows = pooled(result.rows)
    parts = [
        heading(result),
        *_trained(result, rows),
        *_decoded(result, rows),
        *_layers(result, rows),
    ]
    parts += [*_rivals(rows), *_left_out(result), *_faults(rows)]
    return "\n\n".join(parts)


def heading(result: Result) -> str:
    """The conditions, in a few lines."""
    shape, machine = result.shape, result.machine
    length = (
        f"{shape['length']} pixels, patch_size {shape['patch_size']}"
        if shape["kind"] == "image"
        else "texts"
    )
    sizes = f"width {shape['dim']}, {shape['heads']} heads, {shape['depth']} layers, batch {shape['batch']}, {length}"
    run = f"{shape['precision']}, {'compiled' if shape['compile'] else 'not compiled'}"
    jitter = (
        f", places jittered by {result.options['jitter']}" if result.options.get("jitter") else ""
    )
    peers = "".join(f", {name} {version}" for name, version in machine.get("peers", {}).items())
    lines = [
        f"{shape['name']}: {sizes}; {run}{jitter}.",
        f"{told(machine)}; torch {machine['torch']}, zoo {result.zoo}{peers}; {result.made}.",
        f"Ratios to {result.against} within each round: medians, and quartiles in brackets; "
        f"{pluralize(result.options['rounds'], 'round')} at least.",
    ]
    return "\n".join([*(["PARTIAL: stopped before its end"] if result.partial else []), *lines])


def pooled(rows: Sequence[Row]) -> list[Row]:
    """The rows, with those of the reference, which stands in each group, joined."""
    found: dict[tuple[str, int, str], Row] = {}
    for row in rows:
        key = row.measure, row.length, row.name
        if before := found.get(key):
            values, ratios = before.values + row.values, before.ratios + row.ratios
            row = replace(before, values=values, ratios=ratios, fault=before.fault or row.fault)
        found[key] = row
    return list(found.values())


def of(rows: Sequence[Row], measure: str, length: int | None = None) -> list[Row]:
    """Those of one measure, and of one length, that have values, the quickest first."""
    some = [
        row
        for row in rows
        if row.measure == measure and length in (None, row.length) and row.values
    ]
    return sorted(some, key=lambda row: row.ratio or median(row.values))


def lengths(rows: Sequence[Row], *measures: str) -> list[int]:
    return sorted({row.length for row in rows if row.measure in measures})


def _trained(result: Result, rows: Sequence[Row]) -> Iterator[str]:
    unit = "images" if result.shape["kind"] == "image" else "tokens"
    for length in lengths(rows, "train", "memory"):
        times, weights = (
            {row.name: row for row in of(rows, measure, length)} for measure in ("train", "memory")
        )
        head = ["model", "parameters", "step ms", "ratio", f"{unit}/s", "peak MB", "ratio"]
        lines = [_training(times.get(name), weights.get(name)) for name in {**times, **weights}]
        if lines:
            yield f"## Training, {_length(result, length)}\n\n{format_markdown(*_filled(head, lines))}"
            yield from _plans([{**weights, **times}[name] for name in {**times, **weights}])


def _training(time: Row | None, weight: Row | None) -> list[str]:
    known = time or weight
    assert known is not None
    timed = [
        _milliseconds(time),
        _ratio(time),
        f"{time.per_second:,.1f}" if time and time.per_second else "",
    ]
    weighed = [
        f"{median(weight.values) / MB:,.1f}" if weight else "",
        f"{weight.ratio:.2f}" if weight and weight.ratio else "",
    ]
    return [known.name, f"{known.parameters:,}", *timed, *weighed]


def _plans(rows: Sequence[Row]) -> Iterator[str]:
    """What computes attention of which models: beside the numbers it would make a table wider than a terminal."""
    plans = dict.fromkeys(row.plan for row in rows if row.plan)
    if plans:
        lines = [
            f"- {plan}: {', '.join(row.name for row in rows if row.plan == plan)}" for plan in plans
        ]
        yield "Attention is computed by\n\n" + "\n".join(lines)


def _filled(
    head: Sequence[str], lines: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """The columns that say something."""
    kept = [index for index in range(len(head)) if any(line[index] for line in lines)]
    return [head[index] for index in kept], [[line[index] for index in kept] for line in lines]


def _decoded(result: Result, rows: Sequence[Row]) -> Iterator[str]:
    whole = {row.name: row for row in of(rows, "decode")}
    at = lengths(rows, "context")
    each = {length: {row.name: row for row in of(rows, "context", length)} for length in at}
    if not whole and not at:
        return
    options = result.options
    head = ["model", "tokens/s", "ratio of time", *(f"ms per token at {length:,}" for length in at)]
    head += [f"{at[-1]:,} over {at[0]:,}"] if len(at) > 1 else []
    lines = []
    for name in dict.fromkeys([*whole, *(name for rows in each.values() for name in rows)]):
        row, later = whole.get(name), [each[length].get(name) for length in at]
        rate = f"{row.per_second:,.1f}" if row and row.per_second else ""
        line = [name, rate, _ratio(row), *map(_milliseconds, later)]
        lines.append(line + ([_over(later[-1], later[0])] if len(at) > 1 else []))
    title = f"{options['tokens']} tokens after {options['prompt']}, greedily, one sample"
    yield f"## Decoding, {title}\n\n{format_markdown(head, lines)}"


def _over(one: Row | None, other: Row | None) -> str:
    return f"{median(one.values) / median(other.values):.2f}" if one and other else ""


def _layers(result: Result, rows: Sequence[Row]) -> Iterator[str]:
    for length in lengths(rows, "layer"):
        lines = [
            [row.name, f"{row.parameters:,}", _milliseconds(row), _ratio(row)]
            for row in of(rows, "layer", length)
        ]
        title = f"## One attention layer, forward and backward, {_length(result, length)}"
        yield f"{title}\n\n{format_markdown(['model', 'parameters', 'ms', 'ratio'], lines)}"


def _rivals(rows: Sequence[Row]) -> Iterator[str]:
    """What peers take over what zoo takes: more than 1 where zoo takes less."""
    lines = []
    for row in rows:
        if row.rival_ratios:
            own = next(
                one
                for one in rows
                if (one.measure, one.length, one.name) == (row.measure, row.length, row.rival)
            )
            values = [_value(own), _value(row), _spread(row.rival_ratios)]
            lines.append([row.name, row.measure, f"{row.length:,}", *values])
    if lines:
        yield f"## Against peers\n\n{format_markdown(['model', 'measure', 'length', 'zoo', 'peer', 'peer / zoo'], lines)}"


def _value(row: Row) -> str:
    return (
        f"{median(row.values) / MB:,.1f} MB" if row.unit == "bytes" else f"{_milliseconds(row)} ms"
    )


def _left_out(result: Result) -> Iterator[str]:
    if result.left_out:
        yield f"Left out, since they do not apply (bench.json says why): {', '.join(result.left_out)}"


def _faults(rows: Sequence[Row]) -> Iterator[str]:
    told = [
        f"- {row.name}, {row.measure} at {row.length:,}: {row.fault}" for row in rows if row.fault
    ]
    if told:
        yield "Failed:\n\n" + "\n".join(told)


def _length(result: Result, length: int) -> str:
    return (
        f"{length} by {length} pixels"
        if result.shape["kind"] == "image"
        else pluralize(length, "token")
    )


def _milliseconds(row: Row | None) -> str:
    return f"{median(row.values) * 1e3:,.1f}" if row else ""


def _ratio(row: Row | None) -> str:
    return _spread(row.ratios) if row else ""


def _spread(ratios: Sequence[float]) -> str:
    if not ratios:
        return ""
    around = spread(ratios)
    return f"{median(ratios):.2f}" + (f" ({around[0]:.2f} to {around[1]:.2f})" if around else "")
