"""The laws that every encoding keeps: each takes a member, makes what it needs of it and looks; facts select them."""

from zoo.laws import (
    causality,
    documents,
    interpreters,
    learning,
    precision,
    relativity,
    shapes,
    shares,
    unplaced,
)
from zoo.laws.law import Broken, Law, Ledger
from zoo.laws.member import Member

__all__ = ["LAWS", "Broken", "Law", "Ledger", "Member"]

_THEMES = (shapes, learning, interpreters, causality, relativity, precision, shares, unplaced, documents)
LAWS: tuple[Law, ...] = tuple(one for theme in _THEMES for one in vars(theme).values() if isinstance(one, Law))
"""All of them, in the order in which they are numbered."""
