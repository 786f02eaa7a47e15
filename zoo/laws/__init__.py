"""The laws that every encoding keeps: each takes a member, makes what it needs of it and looks; facts select them."""

from zoo.laws import backends, causality, equivariance, gradients, numerics, packing, shapes
from zoo.laws.case import Case
from zoo.laws.law import Law, LawBroken, Recorder

__all__ = ["LAWS", "Case", "Law", "LawBroken", "Recorder"]

_THEMES = (shapes, gradients, backends, causality, equivariance, numerics, packing)
LAWS: tuple[Law, ...] = tuple(
    one for theme in _THEMES for one in vars(theme).values() if isinstance(one, Law)
)
"""All of them, in the order in which they are numbered."""
