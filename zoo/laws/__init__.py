"""Laws that every encoding keeps: properties to verify, selected by the facts it declares."""

from zoo.laws import backends, causality, equivariance, gradients
from zoo.laws.case import Case
from zoo.laws.law import Law, LawBroken, Recorder

__all__ = ["LAWS", "Case", "Law", "LawBroken", "Recorder"]

_THEMES = (gradients, backends, causality, equivariance)

LAWS: tuple[Law, ...] = tuple(
    value for theme in _THEMES for value in vars(theme).values() if isinstance(value, Law)
)
"""All laws, in the order of their numbers."""
