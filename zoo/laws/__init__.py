"""Laws that every encoding obeys: properties to verify, selected by its declared facts."""

from zoo.laws import backends, causality, derivatives, equivariance, gradients
from zoo.laws.case import Case
from zoo.laws.law import Law, LawBroken, Recorder

__all__ = ["LAWS", "Case", "Law", "LawBroken", "Recorder"]

# The order of the modules and of the laws in them numbers the laws.
_THEMES = (gradients, backends, causality, equivariance, derivatives)

LAWS: tuple[Law, ...] = tuple(
    value for theme in _THEMES for value in vars(theme).values() if isinstance(value, Law)
)
"""All laws, in the order of their numbers."""
