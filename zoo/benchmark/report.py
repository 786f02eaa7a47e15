"""A benchmark as text, and the files of its output folder: numbers, tables and pictures."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from zoo.benchmark.result import (
    MB,
    BenchResult,
    BenchRow,
    compute_quartiles,
    list_lengths,
    merge_references,
    select_rows,
)
from zoo.errors import ARGUMENT, ConfigIssue, DataError, RecipeError
from zoo.packages import skip_without_package
from zoo.reporting.numbers import pluralize
from zoo.reporting.tables import (
    CSV,
    LATEX,
    ResultColumn,
    ResultRow,
    ResultTable,
    ResultValue,
    format_markdown,
    format_tables,
)
from zoo.run.machine import format_machine
from zoo.utils import check_writable, escape_strings, name_file

NUMBERS, TABLE, PICTURE = "bench.json", "bench.md", "bench.png"
VECTORS = ("bench.svg", "bench.pdf")


# Files


def write_result(result: BenchResult, folder: Path) -> None:
    """Write numbers, table and picture; existing files are overwritten."""
    numbers = json.dumps(result.to_dict(), indent=1)
    texts = {NUMBERS: f"{numbers}\n", TABLE: f"{format_result(result)}\n"}
    for name, content in {**texts, **format_tables(build_result_table(result))}.items():
        with name_file(folder / name):
            (folder / name).write_text(content, encoding="utf-8")
    with skip_without_package(f"no {PICTURE}"):
        # altair takes its time to import
        from zoo.benchmark.plots import draw_result
        from zoo.reporting import charts

        charts.save_formats(draw_result(result), folder / PICTURE)


def prepare_folder(to: str) -> Path:
    """Create the output folder. Raises RecipeError if it is not writable or holds other files."""
    folder = Path(to)
    try:
        folder.mkdir(exist_ok=True)
        check_writable(folder)
        other_files = list_other_files(folder)
        if (folder / NUMBERS).exists():
            BenchResult.read(folder / NUMBERS)
    except DataError as error:
        raise RecipeError(ConfigIssue(ARGUMENT, "to", str(error), "name another folder")) from None
    except OSError as error:
        message = f"{folder} cannot be written, {error.strerror or error}"
        raise RecipeError(ConfigIssue(ARGUMENT, "to", message, "name another folder")) from None
    if other_files:
        message = f"{folder} holds other files, {other_files[0]} among them"
        raise RecipeError(ConfigIssue(ARGUMENT, "to", message, "name a folder of its own"))
    return folder


def list_other_files(folder: Path) -> list[str]:
    """List the files of a folder that are not of a result."""
    result_files = (NUMBERS, TABLE, PICTURE, *VECTORS, LATEX, CSV)
    return sorted(path.name for path in folder.iterdir() if path.name not in result_files)


# Tables


def format_result(result: BenchResult) -> str:
    """Format the conditions, a table for each measure and length, and zoo against its peers."""
    result = escape_strings(result)
    rows = merge_references(result.rows)
    parts = [
        format_heading(result),
        *_format_training(result, rows),
        *_format_decoding(result, rows),
        *_format_layers(result, rows),
        *_format_peers(rows),
    ]
    if result.excluded:
        names = ", ".join(result.excluded)
        parts.append(f"Left out, since they do not apply (bench.json says why): {names}")
    errors = [
        f"- {row.name}, {row.measure} at {row.length:,}: {row.error}" for row in rows if row.error
    ]
    if errors:
        parts.append("Failed:\n\n" + "\n".join(errors))
    return "\n\n".join(parts)


def build_result_table(result: BenchResult) -> ResultTable:
    """Return a row for each model and, for each measure and length, its value and its ratio."""
    rows = merge_references(result.rows)
    groups = [
        (measure, length, {row.name: row for row in select_rows(rows, measure, length)})
        for measure in dict.fromkeys(row.measure for row in rows)
        for length in list_lengths(rows, measure)
    ]
    groups = [group for group in groups if group[2]]
    columns = []
    for measure, length, row_by_name in groups:
        is_memory = next(iter(row_by_name.values())).unit == "bytes"
        name = f"{measure}, {_format_length(result, length)}"
        title = "MB" if is_memory else "ms"
        columns.append(ResultColumn(title=title, group=name, decimals=1, better="low"))
        columns.append(ResultColumn(title="ratio", group=name, decimals=2, better="low"))
    names = dict.fromkeys(name for _, _, row_by_name in groups for name in row_by_name)
    lines = []
    for name in names:
        pairs = [_build_values(row_by_name.get(name)) for _, _, row_by_name in groups]
        lines.append(ResultRow(name=name, values=tuple(value for pair in pairs for value in pair)))
    machine = format_machine(result.machine)
    return ResultTable(
        head="model",
        columns=tuple(columns),
        rows=tuple(lines),
        caption=f"{result.shape['name']} on {machine}: medians, and ratios to {result.reference}.",
        label=f"bench-{result.shape['name']}",
        marks={
            "differs": f"the quartiles of its ratios to {result.reference} lie on one side of 1"
        },
        interval="quartiles of the ratios",
        command=result.command,
    )


def _build_values(row: BenchRow | None) -> tuple[ResultValue, ResultValue]:
    """Return the value and the ratio of a model under a measure."""
    if row is None:
        return ResultValue(None), ResultValue(None)
    value = ResultValue(median(row.values) * (1 / MB if row.unit == "bytes" else 1e3))
    if row.ratio is None:
        return value, ResultValue(None)
    low, high = compute_quartiles(row.ratios) or (None, None)
    differs = low is not None and high is not None and (low > 1 or high < 1)
    return value, ResultValue(row.ratio, low, high, "differs" if differs else "")


def format_heading(result: BenchResult) -> str:
    """Format the conditions of a benchmark in a few lines."""
    shape, machine, options = result.shape, result.machine, result.options
    length = "texts"
    if shape["kind"] == "image":
        length = f"{shape['length']} pixels, patch_size {shape['patch_size']}"
    sizes = f"width {shape['dim']}, {shape['heads']} heads, {result.describe_depth()}"
    compiled = "compiled" if shape["compile"] else "not compiled"
    jitter = f", positions jittered by {options['jitter']}" if options.get("jitter") else ""
    peers = "".join(f", {name} {version}" for name, version in machine.get("peers", {}).items())
    versions = f"torch {machine['torch']}, zoo {result.zoo_version}{peers}"
    lines = [
        f"{shape['name']}: {sizes}, batch {shape['batch']}, {length}; "
        f"{shape['precision']}, {compiled}{jitter}.",
        f"{format_machine(machine)}; {versions}; {result.created}.",
        f"Ratios to {result.reference} within each round: medians, and quartiles in brackets; "
        f"{pluralize(options['rounds'], 'round')} at least.",
    ]
    return "\n".join(["PARTIAL: stopped before its end", *lines] if result.partial else lines)


def _format_training(result: BenchResult, rows: Sequence[BenchRow]) -> Iterator[str]:
    unit = "images" if result.shape["kind"] == "image" else "tokens"
    for length in list_lengths(rows, "train", "memory"):
        times = {row.name: row for row in select_rows(rows, "train", length)}
        memories = {row.name: row for row in select_rows(rows, "memory", length)}
        names = dict.fromkeys([*times, *memories])
        if not names:
            continue
        head = ["model", "parameters", "step ms", "ratio", f"{unit}/s", "peak MB", "ratio"]
        lines = [_list_training_cells(times.get(name), memories.get(name)) for name in names]
        # drop columns without values
        filled = [column for column in range(len(head)) if any(line[column] for line in lines)]
        lines = [[line[column] for column in filled] for line in lines]
        table = format_markdown([head[column] for column in filled], lines)
        yield f"## Training, {_format_length(result, length)}\n\n{table}"
        yield from _format_backends([{**memories, **times}[name] for name in names])


def _list_training_cells(time: BenchRow | None, memory: BenchRow | None) -> list[str]:
    row = time or memory
    assert row is not None
    return [
        row.name,
        f"{row.parameters:,}",
        _format_milliseconds(time),
        _format_ratio(time),
        f"{time.per_second:,.1f}" if time and time.per_second else "",
        f"{median(memory.values) / MB:,.1f}" if memory else "",
        f"{memory.ratio:.2f}" if memory and memory.ratio else "",
    ]


def _format_backends(rows: Sequence[BenchRow]) -> Iterator[str]:
    """List the attention backend of each model below the table."""
    names: dict[str, list[str]] = {}
    for row in rows:
        if row.backend:
            names.setdefault(row.backend, []).append(row.name)
    if names:
        lines = [f"- {backend}: {', '.join(models)}" for backend, models in names.items()]
        yield "Attention is computed by\n\n" + "\n".join(lines)


def _format_decoding(result: BenchResult, rows: Sequence[BenchRow]) -> Iterator[str]:
    decoded = {row.name: row for row in select_rows(rows, "decode")}
    contexts = list_lengths(rows, "context")
    by_context = [
        {row.name: row for row in select_rows(rows, "context", length)} for length in contexts
    ]
    sizes = list_lengths(rows, "cache")
    caches = [{row.name: row for row in select_rows(rows, "cache", length)} for length in sizes]
    names = dict.fromkeys(decoded)
    for row_by_name in (*by_context, *caches):
        names |= dict.fromkeys(row_by_name)
    if not names:
        return

    head = ["model", "tokens/s", "ratio of time"]
    head += [f"ms per token at {length:,}" for length in contexts]
    if len(contexts) > 1:
        head.append(f"{contexts[-1]:,} over {contexts[0]:,}")
    head += [f"cache MB at {length:,}" for length in sizes]
    lines = []
    for name in names:
        row, later = decoded.get(name), [row_by_name.get(name) for row_by_name in by_context]
        rate = f"{row.per_second:,.1f}" if row and row.per_second else ""
        line = [name, rate, _format_ratio(row), *map(_format_milliseconds, later)]
        if len(contexts) > 1:
            line.append(_divide(later[-1], later[0]))
        line += [_format_megabytes(row_by_name.get(name)) for row_by_name in caches]
        lines.append(line)
    options = result.options
    title = f"{options['tokens']} tokens after {options['prompt']}, greedily, one sample"
    yield f"## Decoding, {title}\n\n{format_markdown(head, lines)}"


def _format_megabytes(row: BenchRow | None) -> str:
    return f"{median(row.values) / MB:,.2f}" if row else ""


def _divide(numerator: BenchRow | None, denominator: BenchRow | None) -> str:
    return (
        f"{median(numerator.values) / median(denominator.values):.2f}"
        if numerator and denominator
        else ""
    )


def _format_layers(result: BenchResult, rows: Sequence[BenchRow]) -> Iterator[str]:
    for length in list_lengths(rows, "layer"):
        lines = [
            [row.name, f"{row.parameters:,}", _format_milliseconds(row), _format_ratio(row)]
            for row in select_rows(rows, "layer", length)
        ]
        table = format_markdown(["model", "parameters", "ms", "ratio"], lines)
        title = f"One attention layer, forward and backward, {_format_length(result, length)}"
        yield f"## {title}\n\n{table}"


def _format_peers(rows: Sequence[BenchRow]) -> Iterator[str]:
    """Format ratios of other libraries to zoo; above 1 means that zoo is faster or smaller."""
    row_by_key = {(row.measure, row.length, row.name): row for row in rows}
    lines = []
    for row in rows:
        if row.counterpart_ratios and row.counterpart:
            counterpart = row_by_key[row.measure, row.length, row.counterpart]
            ratio = _format_spread(row.counterpart_ratios)
            values = [_format_value(counterpart), _format_value(row), ratio]
            lines.append([row.name, row.measure, f"{row.length:,}", *values])
    if lines:
        head = ["model", "measure", "length", "zoo", "peer", "peer / zoo"]
        yield f"## Against peers\n\n{format_markdown(head, lines)}"


def _format_value(row: BenchRow) -> str:
    if row.unit == "bytes":
        return f"{median(row.values) / MB:,.1f} MB"
    return f"{_format_milliseconds(row)} ms"


def _format_length(result: BenchResult, length: int) -> str:
    if result.shape["kind"] == "image":
        return f"{length} by {length} pixels"
    return pluralize(length, "token")


def _format_milliseconds(row: BenchRow | None) -> str:
    return f"{median(row.values) * 1e3:,.1f}" if row else ""


def _format_ratio(row: BenchRow | None) -> str:
    return _format_spread(row.ratios) if row else ""


def _format_spread(ratios: Sequence[float]) -> str:
    if not ratios:
        return ""
    quartiles = compute_quartiles(ratios)
    middle = f"{median(ratios):.2f}"
    return f"{middle} ({quartiles[0]:.2f} to {quartiles[1]:.2f})" if quartiles else middle
