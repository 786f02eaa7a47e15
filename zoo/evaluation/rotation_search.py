"""A search for the divisors of LongRoPE: one for each frequency of a rotation.

A divisor of frequency t is factor^e_t, with exponents e_t that do not fall from one frequency to
the next slower one (Ding et al. 2024, arXiv:2402.13753, section 3). Exponents carry from the length
of the search to a longer one: e_t = 1 for all t is position interpolation at any factor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

MARGIN = 1.25
"""Largest divisor, relative to the factor."""
POPULATION, PARENTS, GENERATIONS = 8, 4, 3
MUTATION = 0.3
"""Probability that a mutation draws an exponent anew."""
CANDIDATES = POPULATION + GENERATIONS * POPULATION
"""Candidates of a search, each scored once."""


def search_exponents(
    score: Callable[[Tensor], float], starts: Sequence[Tensor], factor: float, seed: int = 0
) -> Tensor:
    """Search for the exponents with the lowest score by mutation and crossover.

    The best of a population are parents of the next: half of the children are mutations of one,
    half take each exponent from one of two.

    Args:
        score: Function of exponents [R], lower is better; a value that is not finite is worst.
        starts: Exponents [R] of known rules, the first candidates; at most POPULATION.
        factor: Length of texts relative to the trained length, more than 1.
        seed: Seed of the draws.

    Returns:
        Exponents [R].
    """
    generator = torch.Generator().manual_seed(seed)
    highest = 1 + math.log(MARGIN) / math.log(factor)

    def mutate(parent: Tensor) -> Tensor:
        drawn = highest * torch.rand(len(parent), generator=generator, dtype=torch.float64)
        is_drawn = torch.rand(len(parent), generator=generator) < MUTATION
        return torch.where(is_drawn, drawn, parent).sort().values

    def cross(first: Tensor, second: Tensor) -> Tensor:
        is_first = torch.rand(len(first), generator=generator) < 0.5
        return torch.where(is_first, first, second).sort().values

    def rank(candidates: Sequence[Tensor]) -> list[tuple[float, Tensor]]:
        values = [score(candidate) for candidate in candidates]
        finite = [value if math.isfinite(value) else math.inf for value in values]
        return [*zip(finite, candidates, strict=True)]

    first = [start.double().clamp(0, highest).cummax(0).values for start in starts]
    first += [mutate(first[n % len(starts)]) for n in range(POPULATION - len(starts))]
    scored = rank(first)
    for _ in range(GENERATIONS):
        scored.sort(key=lambda pair: pair[0])
        parents = [candidate for _, candidate in scored[:PARENTS]]
        mutations = [mutate(parents[n % PARENTS]) for n in range(POPULATION // 2)]
        pairs = torch.randint(PARENTS, (POPULATION - len(mutations), 2), generator=generator)
        crossed = [cross(parents[a], parents[b]) for a, b in pairs.tolist()]
        scored += rank([*mutations, *crossed])
    return min(scored, key=lambda pair: pair[0])[1]
