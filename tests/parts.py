"""A part of a long grid for every commit, and all of it at night."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeVar

import pytest

Member = TypeVar("Member")

KINDS = (
    "alibi",
    "cope",
    "fox",
    "learned",
    "path",
    "rope",
    "selective_rope",
    "shaw",
    "stickbreaking",
    "t5",
)
"""Encodings that together change all that an encoding of text can change."""


def mark_others(names: Iterable[str], kept: Collection[str] = KINDS, *more: Any) -> list[Any]:
    """Return parameters of a test, of which those with other names than the kept run at night.

    Args:
        names: The first value of each parameter.
        kept: The names that are tested for every commit.
        *more: The other values, the same for all names.
    """
    night = pytest.mark.nightly
    return [pytest.param(name, *more, marks=() if name in kept else night) for name in names]


def run_parts(step: int) -> pytest.MarkDecorator:
    """Run a test with its argument `step` for every commit, and with a step of 1 at night.

    Args:
        step: The distance between the members that are tested for every commit.
    """
    part = pytest.param(step, id=f"1 of {step}")
    return pytest.mark.parametrize(
        "step", [part, pytest.param(1, id="all", marks=pytest.mark.nightly)]
    )


def draw_part(members: Sequence[Member], step: int, index: int) -> Sequence[Member]:
    """Return every `step`-th member of one axis of a grid.

    The first of them depends on the index of the other axis. A part of a grid so has all members of
    both axes, if the other axis has at least `step` members.

    Args:
        members: The members of one axis.
        step: As `run_parts` gives it.
        index: Index of a member of the other axis.
    """
    return members[index % step :: step]
