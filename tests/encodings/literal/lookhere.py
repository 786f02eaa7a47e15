"""LookHere: -global_slope layer_slope head_slope |p_i - p_j|, -inf outside a head's field of view."""

from __future__ import annotations

import math

INF = float("inf")

SEES = {
    "up": lambda dx, dy: dy <= 0,
    "down": lambda dx, dy: dy >= 0,
    "left": lambda dx, dy: dx <= 0,
    "right": lambda dx, dy: dx >= 0,
    "tri_up": lambda dx, dy: dy <= -abs(dx),
    "tri_down": lambda dx, dy: dy >= abs(dx),
    "tri_left": lambda dx, dy: dx <= -abs(dy),
    "tri_right": lambda dx, dy: dx >= abs(dy),
}
"""Whether a key at (dx, dy) columns and rows from the query is seen."""

FIRST = {
    180: [("up",), ("down",), ("left",), ("right",)],
    90: [("up", "left"), ("up", "right"), ("down", "left"), ("down", "right")],
    45: [("tri_up", "left"), ("tri_down", "left"), ("tri_left", "up"), ("tri_right", "up")],
}
"""Directions of the first group: a head sees what all of its directions see."""

SECOND = {
    90: [("tri_up",), ("tri_down",), ("tri_left",), ("tri_right",)],
    45: [("tri_up", "right"), ("tri_down", "right"), ("tri_left", "down"), ("tri_right", "down")],
}

DIAGONALS = [
    ("tri_up", "tri_right"),
    ("tri_up", "tri_left"),
    ("tri_down", "tri_right"),
    ("tri_down", "tri_left"),
]
"""The second group of 180 degrees: a head sees what one of its two directions sees."""

DISTANCES = {"linear": lambda d: d, "sqrt": math.sqrt, "square": lambda d: d * d}


def is_seen(group: int, number: int, fov: int, dx: float, dy: float) -> bool:
    """Whether head `number` of a group sees a key."""
    if group == 2:
        return True
    if group == 1 and fov == 180:
        return any(SEES[one](dx, dy) for one in DIAGONALS[number % 4])
    fields = (FIRST, SECOND)[group][fov]
    return all(SEES[one](dx, dy) for one in fields[number % 4])


def head_slope(group: int, number: int, heads: int) -> float:
    """The slope of head `number` of a group of so many heads."""
    if group == 2:
        each = heads // 4 if heads > 4 else 1
        return (1 / 4, 1 / 16, 1 / 64, 1 / 256)[number // each]
    return 1 / 2 ** (1 + number // 4)


def lookhere(groups, pos, layer, depth, fov=180, scale=1.0, slopes=(1.5, 0.5), distance="linear"):
    """The biases [H][N][N] as nested lists; `groups` are the numbers of heads of the three groups."""
    first, last = slopes
    layer_slope = first if depth == 1 else first + (last - first) * layer / (depth - 1)
    biases = []
    for group, heads in enumerate(groups):
        for number in range(heads):
            slope = scale * layer_slope * head_slope(group, number, heads)
            biases.append(
                [
                    [
                        -slope * DISTANCES[distance](math.dist(query, key))
                        if is_seen(group, number, fov, key[1] - query[1], key[0] - query[0])
                        else -INF
                        for key in pos
                    ]
                    for query in pos
                ]
            )
    return biases
