"""The recorded time and memory of an attention layer with each encoding, which come with zoo.

`python docs/build/record_layers.py` writes the files of times, and
`python tests/gpu/train_on_missing_device.py --record` that of memory, which is counted.
`zoo show ENCODING` and the site read them: a time that is measured anew each time differs by a
fifth on a busy machine.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import as_file, files

from zoo.benchmark.result import BenchResult, BenchRow, compute_quartiles, merge_references
from zoo.run.machine import format_machine

FOLDER = "benchmark/recorded"
"""Where the files are, relative to the package; each is the bench.json of a shape."""
MEASURE = "layer"
MEMORY = "benchmark/layer_memory.json"
"""{encoding: backend, bytes kept for the backward pass, bytes in use at the peak of both passes}"""


@cache
def read_recorded_layers() -> tuple[BenchResult, ...]:
    """Return the recorded benchmarks, one for each shape.

    Raises:
        DataError: A file holds no benchmark.
    """
    with as_file(files("zoo").joinpath(FOLDER)) as folder:
        return tuple(BenchResult.read(path) for path in sorted(folder.glob("*.json")))


def describe_recorded_layers(name: str) -> dict[str, str]:
    """Describe the time of a layer with an encoding, relative to one without.

    Args:
        name: A chain of encodings in its default options, such as rope or kerple+dape.

    Returns:
        {shape: the median of the ratios within rounds, their quartiles, and the sizes}, and under
        "recorded on" where; empty for what is not recorded.
    """
    times, places = {}, []
    for result in read_recorded_layers():
        rows = {row.name: row for row in merge_references(result.rows)}
        if name in rows and rows[name].ratios:
            times[str(result.shape["name"])] = _describe_row(result, rows[name])
            places.append(
                f"{format_machine(result.machine)}; torch {result.machine['torch']}; "
                f"zoo {result.zoo_version}; {result.created}"
            )
    return {**times, "recorded on": " | ".join(dict.fromkeys(places))} if times else {}


def describe_recorded_memory(name: str) -> dict[str, str]:
    """Describe the memory of a layer with an encoding on a GPU, and relative to one without.

    Args:
        name: An encoding, in its default options.

    Returns:
        The bytes beyond weights and input, by what they are for; empty for what is not recorded.
    """
    recorded = json.loads(files("zoo").joinpath(MEMORY).read_text())
    if name not in recorded:
        return {}
    layer, plain = recorded[name], recorded["none"]

    def describe(key: str) -> str:
        return f"{layer[key] / 1e6:,.1f} MB, {layer[key] / plain[key]:,.2f} of `none`"

    return {
        "kept for the backward pass": describe("bytes"),
        "peak of both passes": describe("peak"),
        "backend": layer["backend"],
    }


def _describe_row(result: BenchResult, row: BenchRow) -> str:
    shape, quartiles = result.shape, compute_quartiles(row.ratios)
    ratio = f"{row.ratio:.2f}"
    if quartiles:
        ratio += " ({:.2f} to {:.2f})".format(*quartiles)
    tokens = row.length
    if shape["kind"] == "image":
        tokens = (row.length // shape["patch_size"]) ** 2
    sizes = f"width {shape['dim']}, {shape['heads']} heads, {tokens:,} tokens"
    rounds = f"median and quartiles of {len(row.ratios)} rounds"
    return f"{ratio}; {sizes}, batch {shape['batch']}; {rounds}"
