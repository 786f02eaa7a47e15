"""What a variant has otherwise than the others, beside its name."""

from __future__ import annotations

from zoo.compare.results import Variant
from zoo.diagnostics.drawing.markup import Markup, tag


def marks(variant: Variant) -> Markup | None:
    """In a word each; the pointer shows them in full, a click leads to the list of all."""
    if not variant.marks:
        return None
    label = ", ".join(variant.marks)
    told = [flag.words for flag in variant.unfair if not flag.little]
    return tag(
        "a",
        label,
        href="#flags",
        class_="flag",
        data_tip="\n".join(told),
        aria_label=f"{label}: {'; '.join(told)}",
    )
