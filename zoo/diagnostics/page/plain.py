"""The report as plain data: the numbers of the page, for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from zoo.diagnostics.page.fewer import thinned
from zoo.diagnostics.page.looks import coded
from zoo.diagnostics.report import Attended, Report, Sample
from zoo.reporting.spec import Panel

DIGITS = 5  # of a number that count


def plain(report: Report) -> dict[str, Any]:
    """Tensors as nested lists of rounded numbers, None where there is none; panels with their kind; no pixels.

    Of samples and queries it has those that the page has, and their weights as bytes, as the page has them.
    """
    return _plain(thinned(report))


def text(report: Report) -> str:
    """The report as JSON."""
    return json.dumps(plain(report), ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def _plain(thing: Any) -> Any:
    if isinstance(thing, Tensor):
        return _numbers(thing)
    if isinstance(thing, Sample):
        sizes = [list(picture.shape[:2]) for picture in thing.pictures]
        return {"title": thing.title, "tokens": list(thing.tokens), "pictures": sizes}
    if isinstance(thing, Attended):
        told = {field.name: getattr(thing, field.name) for field in fields(thing)}
        return {
            name: _coded(one) if isinstance(one, Tensor) else _plain(one)
            for name, one in told.items()
        }
    if is_dataclass(thing):
        kind = {"kind": type(thing).__name__.lower()} if isinstance(thing, Panel) else {}
        return kind | {field.name: _plain(getattr(thing, field.name)) for field in fields(thing)}
    if isinstance(thing, Mapping):
        return {str(key): _plain(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [_plain(value) for value in thing]
    return None if isinstance(thing, float) and not math.isfinite(thing) else thing


def _coded(weights: Tensor) -> dict[str, Any]:
    return {"shape": list(weights.shape), **coded(weights)}


def _numbers(tensor: Tensor) -> Any:
    if not tensor.is_floating_point():
        return tensor.tolist()
    exact = tensor.detach().double().cpu()
    rounded = _rounded(exact).tolist()
    return rounded if exact.isfinite().all() else _without(rounded)


def _rounded(exact: Tensor) -> Tensor:
    """To the digits that count; whole numbers, steps among them, stay as they are."""
    power = exact.abs().clamp(min=1e-17).log10().floor()
    up = 10.0 ** (DIGITS - 1 - power).clamp(min=0)
    down = 10.0 ** (power - DIGITS + 1).clamp(min=0)
    return torch.where(exact == exact.round(), exact, (exact * up / down).round() * down / up)


def _without(values: Any) -> Any:
    """None for what is no number."""
    if isinstance(values, list):
        return [_without(value) for value in values]
    return values if math.isfinite(values) else None
