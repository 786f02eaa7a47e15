"""What attention does, as numbers: pure functions of weights, scores and places.

Weights are [B, H, N, M]. They need not sum to one along a row (stick-breaking) nor be positive (linear attention): what a
key gets of a row is its share |w| / sum |w|. A row without any weight has no shares, so what is measured of it is NaN, and
it is left out wherever rows are averaged: callers average queries with `nanmean`. Scores are -inf where a pair may not
attend. Everything is computed in at least float32.
"""

from zoo.diagnostics.measures.flow import rollout
from zoo.diagnostics.measures.heads import effective_rank, largest, similarity
from zoo.diagnostics.measures.pairs import both, first, near, own, unplaced
from zoo.diagnostics.measures.places import distance, distance_by_axis, offsets, profile
from zoo.diagnostics.measures.products import correlations, gram
from zoo.diagnostics.measures.rows import entropy, mass, shares, total
from zoo.diagnostics.measures.variance import departure, explained_by, explained_by_position

__all__ = [
    "both",
    "correlations",
    "departure",
    "distance",
    "distance_by_axis",
    "effective_rank",
    "entropy",
    "explained_by",
    "explained_by_position",
    "first",
    "gram",
    "largest",
    "mass",
    "near",
    "offsets",
    "own",
    "profile",
    "rollout",
    "shares",
    "similarity",
    "total",
    "unplaced",
]
