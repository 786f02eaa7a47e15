"""The results of tuning, as text."""

from __future__ import annotations

import json
from typing import Any

from zoo.comparison.results import Comparison
from zoo.comparison.tuning import NEAR, is_finite_number
from zoo.reporting.tables import format_markdown

CONVENTIONS = (
    "optim.lr",
    "optim.encoding_lr",
    "model.scale_embeddings",
    "model.position_augmentation",
)
"""Keys that are known to reverse rankings: each is said to be held, varied or tuned."""


def format_tuning(comparison: Comparison) -> str:
    """Format what tuning found as Markdown; empty if nothing was tuned."""
    tuning = comparison.tuning
    if tuning is None:
        return ""
    keys = [one.key for one in tuning.keys]
    rows = []
    for name, found in tuning.variants.items():
        best = None if found.best is None else found.trials[found.best].value
        rows.append(
            [
                name,
                *(_format_setting(found.settings.get(key)) for key in keys),
                f"{found.best}",
                _format_value(best),
                _format_value(found.trials[0].value),
                f"{len(found.near)} of {len(found.trials)}",
            ]
        )
    near = f"within {NEAR:.0%}"
    head = ["variant", *keys, "best trial", tuning.monitor, "at the recipe's own", near]
    table = format_markdown(head, rows, ("variant",))
    notes = [describe_tuning(comparison)]
    notes += [f"- {line}" for line in list_warnings(comparison)]
    return "## Tuning\n\n" + table + "\n\n" + "\n".join(notes)


def describe_tuning(comparison: Comparison) -> str:
    """Describe how variants were tuned; empty if none was."""
    tuning = comparison.tuning
    if tuning is None:
        return ""
    searched = ", ".join(f"{one.key} over {one.searched}" for one in tuning.keys)
    return (
        f"Each variant was tuned by {tuning.budget} trials with the same settings: {searched}; "
        f"trial 0 is the recipe's own. The best {tuning.monitor} of seed {tuning.seed} decided; no "
        "trial was tested, and no seed of the results was used."
    )


def describe_conventions(comparison: Comparison) -> str:
    """Name the keys that were held equal, that varied and that were tuned."""
    varied = [axis.key for axis in comparison.axes]
    tuned = [one.key for one in comparison.tuning.keys] if comparison.tuning else []
    named = [*varied, *tuned]
    held = [
        key
        for key in CONVENTIONS
        if not any(one == key or one.endswith(f".{key}") for one in named)
    ]
    parts = [f"held equal: {', '.join(held)} and all other keys"]
    parts.append(f"varied: {', '.join(varied)}")
    if tuned:
        parts.append(f"tuned for each variant: {', '.join(tuned)}")
    text = "; ".join(parts)
    if not any(one.endswith(".coordinates") for one in named):
        text += "; coordinates: each encoding's own"
    if methods := comparison.extrapolation_methods:
        text += f"; the same trained models are evaluated unchanged and by {', '.join(methods)}"
    return f"{text[0].upper()}{text[1:]}. An encoding's own options are part of its entry."


def list_warnings(comparison: Comparison) -> list[str]:
    """Name variants whose best setting lies at an edge, and trials without a value."""
    tuning = comparison.tuning
    found = []
    searched = {one.key: one.searched for one in tuning.keys} if tuning else {}
    for name, own in tuning.variants.items() if tuning else ():
        for edge in own.edges:
            setting = _format_setting(own.settings[edge.key])
            found.append(
                f"{name}: {edge.key} = {setting} lies at the {edge.side} edge of what was tried of "
                f"{searched[edge.key]}; widen it"
            )
        failed = [str(number) for number, one in enumerate(own.trials) if one.value is None]
        if failed:
            found.append(f"{name}: trials {', '.join(failed)} became non-finite")
    return found


def _format_setting(value: Any) -> str:
    return f"{value:g}" if is_finite_number(value) else json.dumps(value, ensure_ascii=False)


def _format_value(value: float | None) -> str:
    return "non-finite" if value is None else f"{value:.4f}"
