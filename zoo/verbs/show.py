"""`zoo show`: a recipe resolved, with what it will build; or an encoding explained, measured and drawn."""

from __future__ import annotations

from collections.abc import Sequence

from zoo import registry


def show(what: str, words: Sequence[str]) -> str:
    """Text about an encoding if `what` names one, else about a recipe; `words` are sizes and options, or overrides."""
    if what in registry.names("encodings"):
        from zoo.verbs.explained import explained

        return explained(what, words)
    from zoo.verbs.resolved import resolved

    return resolved(what, words)
