"""A report as data for the attention viewer, reduced to the size of a page, and as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from io import BytesIO
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from zoo.diagnosis.report import Attended, DiagnosedRun, Report, Sample, SegmentedImage
from zoo.packages import explain_imports
from zoo.reporting.heatmaps import to_data_address
from zoo.reporting.numbers import finite
from zoo.reporting.panel import Panel

# Limits of a page: bytes of all weights and of all images, tokens of all runs, samples of each run.
WEIGHT_BYTES = 1_600_000
PICTURE_BYTES = 300_000
MAX_TOKENS, MAX_SAMPLES = 40_000, 32
MIN_QUERIES = 4  # smallest number of queries per sample
SMALL_SIDE = 64  # images up to this side in pixels are not reduced

Cell = tuple[int, ...]
DIGITS = 5  # significant digits of a number


def collect(report: Report) -> dict[str, Any]:
    """Return the data of the viewer's script: runs with weights, and the images of samples."""
    # Several runs may show the same images: each is stored once.
    shown = [(run, run.attended) for run in thin_report(report).runs if run.attended is not None]
    measured = [len(run.attended.queries) for run in report.runs if run.attended is not None]
    samples = [sample for _, attended in shown for sample in attended.samples]
    unique = {_key(picture): picture for sample in samples for picture in sample.pictures}
    numbers = {key: number for number, key in enumerate(unique)}
    packed, shrink = _pack_pictures(list(unique.values()))
    runs = [
        _collect_run(run, attended, numbers, count)
        for (run, attended), count in zip(shown, measured, strict=True)
    ]
    return {"pictures": packed, "smaller": shrink, "runs": runs}


def describe(report: Report) -> dict[str, Any] | None:
    """Return remarks about runs that show fewer samples than were measured; None if none do."""
    if all(run.attended is None for run in report.runs):
        return None
    remarks = []
    for run, kept in zip(report.runs, thin_report(report).runs, strict=True):
        if run.attended is None or kept.attended is None:
            continue
        count, shown = len(run.attended.samples), len(kept.attended.samples)
        if shown < count:
            start = f"{run.name}: " if len(report.runs) > 1 else ""
            remarks.append(
                f"{start}measured on {count:,} samples, of which the first {shown} are shown."
            )
    return {"remarks": remarks}


def thin_report(report: Report) -> Report:
    """Reduce the samples and queries of each run to the size of a page."""
    count = max(sum(run.attended is not None for run in report.runs), 1)
    runs = []
    for run in report.runs:
        if run.attended is not None:
            attended = _keep_samples(run.attended, count)
            run = replace(run, attended=_keep_queries(attended, WEIGHT_BYTES // count))
        runs.append(run)
    return replace(report, runs=tuple(runs))


def choose_queries(attended: Attended, room: int) -> list[int]:
    """Choose queries evenly over the grid, as many as fit, but at least one.

    Args:
        attended: Weights of one run.
        room: Largest number of weights.

    Returns:
        Indices of the chosen queries among those of `attended`.
    """
    count, extra = len(attended.queries), len(attended.extra)
    most = max(1, min(count, room * count // max(attended.weights.numel(), 1)))
    if most == count:
        return list(range(count))

    # Keep all special tokens, and choose cells of the grid for the others.
    cells = [
        _find_cell(slot - extra, attended.grid) if slot >= extra else None
        for slot in attended.queries
    ]
    on_grid = [cell for cell in cells if cell is not None]
    kept = _choose_cells(on_grid, most - (count - len(on_grid)))
    if kept:
        return [number for number, cell in enumerate(cells) if cell is None or cell in kept]
    return sorted(set(torch.linspace(0, count - 1, most).round().long().tolist()))


def encode_weights(weights: Tensor) -> dict[str, str]:
    """Encode weights [..., keys] as bytes, with a scale for each row.

    Returns:
        `levels` (a byte for each weight; 255 is the largest of its row) and `largest` (two bytes
        for each row; 65,535 is 1), both in base64.
    """
    exact = weights.detach().float().nan_to_num(0.0, 0.0, 0.0).clamp(0, 1).cpu()
    largest = exact.amax(-1, keepdim=True)
    # One byte per weight is exact to 1/255 of the largest weight of the query.
    levels = (exact / largest.clamp(min=1e-30) * 255).round().to(torch.uint8)
    scales = (largest[..., 0] * 65535).round().int()
    pairs = torch.stack([scales % 256, scales // 256], dim=-1).to(torch.uint8)  # low byte first
    return {"levels": _encode_bytes(levels), "largest": _encode_bytes(pairs)}


def _scale_places(places: Tensor | None) -> list[list[float] | None] | None:
    """Return where tokens lie in a box, in percent from its left and top; None for padding."""
    if places is None:
        return None
    real = places.isfinite().all(1)
    low, high = places[real].amin(0), places[real].amax(0)
    shares = (places - low) / (high - low).clamp(min=1e-30)
    shares[:, 1] = 1 - shares[:, 1]
    return [
        [round(100 * share, 2) for share in pair] if is_real else None
        for pair, is_real in zip(shares.tolist(), real.tolist(), strict=True)
    ]


def _collect_run(
    run: DiagnosedRun, attended: Attended, numbers: dict[bytes, int], count: int
) -> dict[str, Any]:
    samples = [
        {
            "title": sample.title,
            "tokens": list(sample.tokens),
            "pictures": [numbers[_key(picture)] for picture in sample.pictures],
            "places": _scale_places(sample.places),
            "axes": list(sample.axes),
        }
        for sample in attended.samples
    ]
    return {
        "name": run.name,
        "unit": run.unit,
        "grid": list(attended.grid),
        "extra": list(attended.extra),
        "layers": list(attended.layers),
        "heads": attended.weights.shape[2],
        "samples": samples,
        "queries": list(attended.queries),
        "of": count,
        "weights": encode_weights(attended.weights),
        "rollout": None if attended.rollout is None else encode_weights(attended.rollout),
    }


def _keep_samples(attended: Attended, runs: int) -> Attended:
    """Keep as many first samples as fit with some queries of each."""
    # Weights of a sample with the fewest queries that are worth showing.
    samples, layers, heads, queries, keys = attended.weights.shape
    weights = layers * heads * min(queries, MIN_QUERIES + len(attended.extra)) * keys
    rooms = (WEIGHT_BYTES // (runs * weights), MAX_TOKENS // (runs * keys))
    most = max(1, min(samples, MAX_SAMPLES, *rooms))
    return replace(
        attended,
        samples=attended.samples[:most],
        weights=attended.weights[:most],
        rollout=None if attended.rollout is None else attended.rollout[:most],
    )


def _keep_queries(attended: Attended, room: int) -> Attended:
    kept = choose_queries(attended, room)
    return replace(
        attended,
        queries=tuple(attended.queries[number] for number in kept),
        weights=attended.weights[..., kept, :],
        rollout=None if attended.rollout is None else attended.rollout[:, kept],
    )


def _choose_cells(cells: Sequence[Cell], most: int) -> set[Cell]:
    """Choose at most `most` cells of a grid evenly along all axes; none if they are no grid."""
    axes = [sorted(set(axis)) for axis in zip(*cells, strict=True)]
    if most < 1 or prod(map(len, axes)) != len(cells):
        return set()

    # Add a cell along the coarsest axis as long as the product fits.
    counts = [1] * len(axes)
    while True:
        longer = [
            axis
            for axis in range(len(axes))
            if counts[axis] < len(axes[axis])
            and prod(counts) // counts[axis] * (counts[axis] + 1) <= most
        ]
        if not longer:
            break
        counts[max(longer, key=lambda axis: len(axes[axis]) / counts[axis])] += 1
    chosen = [
        [axis[(2 * part + 1) * len(axis) // (2 * count)] for part in range(count)]
        for axis, count in zip(axes, counts, strict=True)
    ]
    return set(product(*chosen))


def _find_cell(slot: int, grid: Cell) -> Cell:
    """Return the cell of a row-major index."""
    cell: Cell = ()
    for side in reversed(grid):
        slot, at = divmod(slot, side)
        cell = (at, *cell)
    return cell


def _pack_pictures(pictures: Sequence[Tensor]) -> tuple[list[str], int]:
    """Encode images uint8 [height, width, 3], reduced by the smallest factor so that they fit."""
    for shrink in (1, 2, 4, 8, 16):
        packed = [_encode_picture(_shrink(picture, shrink)) for picture in pictures]
        if sum(map(len, packed)) <= PICTURE_BYTES:
            break
    return packed, shrink


def _shrink(picture: Tensor, factor: int) -> Tensor:
    if factor == 1 or min(picture.shape[:2]) <= SMALL_SIDE:
        return picture
    means = F.avg_pool2d(picture.permute(2, 0, 1).float(), factor, ceil_mode=True)
    return means.round().to(torch.uint8).permute(1, 2, 0)


def _encode_picture(picture: Tensor) -> str:
    with explain_imports():
        from PIL import Image

    # Small images are PNG, because every pixel is visible when they are enlarged.
    image, file = Image.fromarray(picture.contiguous().numpy()), BytesIO()
    if max(picture.shape[:2]) <= SMALL_SIDE:
        image.save(file, "PNG", optimize=True)
        return to_data_address(file.getvalue(), "png")
    image.save(file, "JPEG", quality=82, optimize=True)
    return to_data_address(file.getvalue(), "jpeg")


def _key(picture: Tensor) -> bytes:
    return bytes(picture.contiguous().numpy().tobytes())


def _encode_bytes(tensor: Tensor) -> str:
    return base64.b64encode(tensor.contiguous().numpy().tobytes()).decode()


def to_json(report: Report) -> str:
    """Return the report as JSON."""
    return json.dumps(to_dict(report), ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def to_dict(report: Report) -> dict[str, Any]:
    """Return the report as plain data, with tensors as lists and None for NaN and infinity.

    Panels have their kind. Samples and queries are those of the page, with weights encoded as
    bytes. Images are represented by their sizes.
    """
    found: dict[str, Any] = finite(to_plain(thin_report(report)))
    return found


def to_plain(thing: Any) -> Any:
    """Return a report, or a part of one, as plain data."""
    if isinstance(thing, Tensor):
        return (
            _round(thing.detach().double().cpu()) if thing.is_floating_point() else thing.tolist()
        )
    if isinstance(thing, SegmentedImage):
        return {"title": thing.title, "size": list(thing.mask.shape)}
    if isinstance(thing, Sample):
        sizes = [list(picture.shape[:2]) for picture in thing.pictures]
        return {"title": thing.title, "tokens": list(thing.tokens), "pictures": sizes}
    if is_dataclass(thing):
        found = {field.name: getattr(thing, field.name) for field in fields(thing)}
        if isinstance(thing, Attended):
            coded = {name: one for name, one in found.items() if isinstance(one, Tensor)}
            weights = {
                name: {"shape": list(one.shape), **encode_weights(one)}
                for name, one in coded.items()
            }
            return (
                to_plain({name: one for name, one in found.items() if name not in coded}) | weights
            )
        kind = {"kind": type(thing).__name__.lower()} if isinstance(thing, Panel) else {}
        return kind | to_plain(found)
    if isinstance(thing, Mapping):
        return {str(key): to_plain(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [to_plain(value) for value in thing]
    return thing


def _round(exact: Tensor) -> Any:
    """Round to significant digits; integers, for example steps, are unchanged."""
    # Multiply or divide by powers of ten of at least 1, which float64 represents exactly.
    power = exact.abs().clamp(min=1e-17).log10().floor()
    up = 10.0 ** (DIGITS - 1 - power).clamp(min=0)
    down = 10.0 ** (power - DIGITS + 1).clamp(min=0)
    rounded = (exact * up / down).round() * down / up
    return torch.where(exact == exact.round(), exact, rounded).tolist()
