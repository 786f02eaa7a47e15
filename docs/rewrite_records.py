"""Rewrite recorded comparisons of zoo 0.2.0 and earlier with the keys of 0.3.0.

`python docs/rewrite_records.py docs/records/withdrawn/*/*.json` rewrites the files in place.
Conditions, measurements and values that vary become data; no number changes, which is checked
before a file is written.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zoo.cli.compare import parse_words
from zoo.comparison.grid import read_varied_keys
from zoo.comparison.results import Comparison

TRAINED = "trained"
OBSOLETE = ("condition_kinds", "training_size", "keys_renamed_in")
SIDES = {"resolutions": 2, "lengths": 1}


def rewrite(old: Mapping[str, Any]) -> dict[str, Any]:
    """Return a comparison with the keys of 0.3.0."""
    conditions = {name: build_condition(old, name) for name in old["conditions"]}
    new = {key: value for key, value in old.items() if key not in OBSOLETE}
    new["conditions"] = [*conditions.values()]
    new["axes"] = [*list_axes(old)]
    new["variants"] = [
        {**one, "cells": [rewrite_cell(cell, conditions) for cell in one["cells"]]}
        for one in old["variants"]
    ]
    if old.get("tuning"):
        new["tuning"] = rewrite_tuning(old["tuning"])
    if "analysis" in old:
        new["analysis"] = {key or TRAINED: value for key, value in old["analysis"].items()}
    return new


def build_condition(old: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a condition as data: its label was all that was kept."""
    kind = old["condition_kinds"].get(name, TRAINED)
    found: dict[str, Any] = {
        "name": name or TRAINED,
        "kind": "size" if kind in SIDES else kind,
        "size": None,
        "extrapolation": None,
        "data_variant": None,
    }
    if kind == "data_variants":
        return {**found, "kind": "data_variant", "data_variant": name.removeprefix("variant ")}
    label, _, method = (name or old["training_size"].partition(" ")[0]).partition(" by ")
    unit = old["training_size"].rpartition(" ")[2]
    if label:
        numbers = [int(side) for side in label.split("x")]
        found["size"] = numbers * 2 if unit == "pixels" and len(numbers) == 1 else numbers
    return {**found, "extrapolation": method or None}


def list_axes(old: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the axes with their values as data, which only the command had."""
    given = parse_words(shlex.split(old["command"])[3:])
    keys = {one.key: one for one in read_varied_keys(given.get("encodings"), given["vary"])}
    for axis in old["axes"]:
        known = keys[axis["key"]].values
        # labels may name options as they were called at the time
        pairs = zip(axis["values"], known, strict=True)
        assert all(old.partition("(")[0] == new.partition("(")[0] for old, new in pairs)
        yield {**axis, "settings": [*known.values()]}


def rewrite_cell(cell: Mapping[str, Any], conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cell with one list of what was measured."""
    old = ("metrics", "refused", "position_losses")
    measurements = []
    for name, condition in conditions.items():
        metrics, refused, losses = (cell[key].get(name) for key in old)
        if metrics or refused or losses:
            measurements.append(
                {
                    "condition": condition,
                    "metrics": metrics or {},
                    "refused": refused or "",
                    "position_losses": losses or [],
                }
            )
    return {
        **{key: value for key, value in cell.items() if key not in old},
        "measurements": measurements,
    }


def rewrite_tuning(old: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was tuned, without the samplers that 0.3.0 dropped."""
    assert "rungs" not in old, "successive halving cannot be rewritten"
    assert old.get("sampler", "design") == "design", "sampler=tpe cannot be rewritten"
    variants = {
        name: {
            **own,
            "trials": [{key: one[key] for key in ("settings", "value")} for one in own["trials"]],
            "edges": [{key: one[key] for key in ("key", "side")} for one in own["edges"]],
        }
        for name, own in old["variants"].items()
    }
    kept = {key: value for key, value in old.items() if key != "sampler"}
    keys = [{key: one[key] for key in ("key", "searched")} for one in old["keys"]]
    return {**kept, "keys": keys, "variants": variants}


def count_numbers(found: Mapping[str, Any]) -> Counter[tuple[Any, ...]]:
    """Count every measured number with its variant, seed, condition and metric."""
    numbers: Counter[tuple[Any, ...]] = Counter()
    for variant in found["variants"]:
        for cell in variant["cells"]:
            place = (variant["name"], cell["seed"])
            for condition, metric, value in list_values(cell):
                numbers[(*place, condition or TRAINED, metric, value)] += 1
            for key in ("curve", "parameters", "flops", "steps", "minutes", "step_seconds"):
                numbers[(*place, key, json.dumps(cell.get(key)))] += 1
            numbers[(*place, "memory", json.dumps(cell.get("peak_memory")))] += 1
            numbers[(*place, "baselines", json.dumps(cell.get("baselines")))] += 1
    for name, own in (found.get("tuning") or {"variants": {}})["variants"].items():
        for number, one in enumerate(own["trials"]):
            numbers[name, number, json.dumps(one["settings"]), one["value"]] += 1
        numbers[name, own["best"], tuple(own["near"])] += 1
    return numbers


def list_values(cell: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield (condition, metric, value) of a cell, in the old form or the new one."""
    if "measurements" in cell:
        for one in cell["measurements"]:
            name = one["condition"]["name"]
            yield from ((name, metric, value) for metric, value in one["metrics"].items())
            if one["refused"]:
                yield name, "refused", one["refused"]
            if one["position_losses"]:
                yield name, "position_losses", tuple(one["position_losses"])
        return
    for name, metrics in cell["metrics"].items():
        yield from ((name, metric, value) for metric, value in metrics.items())
    for name, reason in cell["refused"].items():
        yield name, "refused", reason
    for name, losses in cell["position_losses"].items():
        yield name, "position_losses", tuple(losses)


def rewrite_file(path: Path) -> None:
    """Rewrite a recorded comparison in place; other files, and new ones, are left unchanged."""
    text = path.read_text(encoding="utf-8")
    old = json.loads(text)
    if "condition_kinds" not in old:
        return
    new = rewrite(old)
    if count_numbers(new) != count_numbers(old):
        raise SystemExit(f"{path}: a number would change")
    indented = text.startswith("{\n")
    separators = None if indented else (",", ":")
    path.write_text(
        json.dumps(new, separators=separators, indent=1 if indented else None) + "\n",
        encoding="utf-8",
    )
    Comparison.read(path)
    print(f"{path}: {sum(count_numbers(new).values())} numbers")


if __name__ == "__main__":
    for word in sys.argv[1:]:
        rewrite_file(Path(word))
