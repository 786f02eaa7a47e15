"""The shortest chain that an encoding can run in, and the name of a chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zoo.attention.encoding import Encoding
from zoo.options import Choice

# The bias before an encoding that consumes the biases of others.
BIASED = Choice("alibi")


def build_shortest_chain(
    cls: type[Encoding], options: Mapping[str, Any] | None = None
) -> list[Choice]:
    """Return the shortest chain that an encoding can be in: alone, or after a bias."""
    choice = Choice(cls.name, options or {})
    return [BIASED, choice] if cls.consumes_biases else [choice]


def format_chain(choices: Sequence[Choice]) -> str:
    """Format a chain with its options: `kerple+dape`, `liere(block=8)`."""
    return "+".join(map(_format_choice, choices))


def _format_choice(choice: Choice) -> str:
    options = ",".join(f"{key}={value}" for key, value in choice.options.items())
    return f"{choice.name}({options})" if options else choice.name
