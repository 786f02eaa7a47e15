"""What differs between two recipes once they are resolved, key by key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from zoo.config.recipe import Recipe
from zoo.config.tree import join, upward
from zoo.config.words import value

DEFAULT = "by default"


@dataclass(frozen=True)
class Side:
    """A value of one of the recipes, as YAML has it, and where it was given; of a key that is not there, neither."""

    value: Any
    place: str | None

    def __str__(self) -> str:
        return (
            "nothing"
            if self.place is None
            else value(self.value)
            if not isinstance(self.value, str)
            else self.value
        )


def differences(one: Recipe, other: Recipe) -> Iterator[tuple[str, Side, Side]]:
    """Each key whose value is not the same, in the order of sections, with both sides."""
    left, right = dict(_leaves(one.plain())), dict(_leaves(other.plain()))
    order = {key: number for number, key in enumerate(one.plain())}
    for key in sorted({**left, **right}, key=lambda key: order[key.partition(".")[0]]):
        if key not in left or key not in right or left[key] != right[key]:
            yield key, _side(one, left, key), _side(other, right, key)


def told(one: Side, other: Side) -> list[str]:
    """Both in short, or in whole where they differ only in what is left out of that."""
    short = [str(one), str(other)]
    return short if short[0] != short[1] else [repr(one.value), repr(other.value)]


def _leaves(plain: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """What has no keys below it; a list of plain values is one."""
    nested = isinstance(plain, dict) or (
        isinstance(plain, list) and any(isinstance(one, dict | list) for one in plain)
    )
    if not nested or not plain:
        yield key, plain
        return
    for part, below in plain.items() if isinstance(plain, dict) else enumerate(plain):
        yield from _leaves(below, join(key, part))


def _side(recipe: Recipe, leaves: dict[str, Any], key: str) -> Side:
    if key not in leaves:
        return Side(None, None)
    inside = [known for known in recipe.places if known == key or known.startswith(f"{key}.")]
    return Side(leaves[key], recipe.places[inside[0]] if inside else _above(recipe, key))


def _above(recipe: Recipe, key: str) -> str:
    """A name may be given in short, as the list or the entry that it stands for; any other key is left at its default."""
    if key.rpartition(".")[2] != "name":
        return DEFAULT
    return next(
        (recipe.places[known] for known in upward(key) if known and known in recipe.places), DEFAULT
    )
