"""The numbers of the page as JSON, for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from zoo.diagnostics.page.viewer_data import encode_weights, thin_report
from zoo.diagnostics.report import Attended, Report, Sample
from zoo.reporting.json import finite
from zoo.reporting.panel import Panel

DIGITS = 5  # significant digits of a number


def to_json(report: Report) -> str:
    """Return the report as JSON."""
    return json.dumps(to_dict(report), ensure_ascii=True, allow_nan=False, separators=(",", ":"))


def to_dict(report: Report) -> dict[str, Any]:
    """Return the report as plain data: tensors as nested lists, None for what is not finite.

    Panels have their kind. Samples and queries are those of the page, their weights are bytes as
    in the page; of pictures there are the sizes only.
    """
    found: dict[str, Any] = finite(_convert(thin_report(report)))
    return found


def _convert(thing: Any) -> Any:
    if isinstance(thing, Tensor):
        return (
            _round(thing.detach().double().cpu()) if thing.is_floating_point() else thing.tolist()
        )
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
                _convert({name: one for name, one in found.items() if name not in coded}) | weights
            )
        kind = {"kind": type(thing).__name__.lower()} if isinstance(thing, Panel) else {}
        return kind | _convert(found)
    if isinstance(thing, Mapping):
        return {str(key): _convert(value) for key, value in thing.items()}
    if isinstance(thing, list | tuple):
        return [_convert(value) for value in thing]
    return thing


def _round(exact: Tensor) -> Any:
    """Round to significant digits; whole numbers, for example steps, stay as they are."""
    power = exact.abs().clamp(min=1e-17).log10().floor()
    up = 10.0 ** (DIGITS - 1 - power).clamp(min=0)
    down = 10.0 ** (power - DIGITS + 1).clamp(min=0)
    rounded = (exact * up / down).round() * down / up
    return torch.where(exact == exact.round(), exact, rounded).tolist()
