"""What scores depend on: places, contents, and where all of it stands.

A softmax sees scores up to a constant for each row, so that rows are centred before anything is compared.
"""

from __future__ import annotations

from torch import Tensor

from zoo.attention import precise


def explained_by_position(scores: Tensor, *, clamped: bool = True) -> Tensor:
    """1 - W / T: the share of the variance of scores that is a function of the two places alone, [H].

    Scores [B, H, N, M] are of B samples with different contents at the same places, their rows centred over the pairs
    visible in all. W is the mean over pairs of the variance over samples (with B - 1), T the mean square over samples and
    pairs. Where scores are m + e, a fixed m of each pair and noise e of each sample, T has the expectation m^2 + var e and
    W var e, so that T - W is unbiased for m^2 (one-way analysis of variance; Fisher 1925). The estimate scatters around
    the truth, so below 0 too: `clamped` lifts it to 0, without it a mean of estimates is right. NaN where a head's rows are
    constant. Raises ValueError for fewer than two samples.
    """
    if len(scores) < 2:
        raise ValueError(f"the share that position explains needs at least two samples, got {len(scores)}")
    values = _centred(scores, scores.isfinite().all(0))
    share = 1 - values.var(0).sum((-2, -1)) / values.square().mean(0).sum((-2, -1))
    return share.clamp(min=0) if clamped else share


def explained_by(scores: Tensor, part: Tensor) -> Tensor:
    """Squared correlation of centred scores [B, H, N, M] with another set of them over all pairs and samples, [H].

    With scores of the same contents at one place, this is what content alone explains. Pairs must be visible in both; NaN
    where the rows of either are constant.
    """
    first, second = _matched(scores, part)
    return _sum(first * second).square() / (_sum(first.square()) * _sum(second.square()))


def departure(scores: Tensor, shifted: Tensor) -> Tensor:
    """sqrt(mean (s' - s)^2 / mean s^2), [H]: how much centred scores change when all places are shifted by one vector.

    0 for a relative encoding; NaN where rows are constant before and after. Pairs must be visible in both.
    """
    first, second = _matched(scores, shifted)
    return (_sum((second - first).square()) / _sum(first.square())).sqrt()


def _matched(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Both sets of scores, centred over the pairs visible in both."""
    counted = first.isfinite() & second.isfinite()
    return _centred(first, counted), _centred(second, counted)


def _centred(scores: Tensor, counted: Tensor) -> Tensor:
    """Scores less the mean of their row over the pairs that count, 0 for the others."""
    scores = precise(scores)
    # less the largest first, so that a constant row becomes exactly 0
    highest = scores.masked_fill(~counted, float("-inf")).amax(-1, keepdim=True)
    values = (scores - highest).masked_fill(~counted, 0)
    mean = values.sum(-1, keepdim=True) / counted.sum(-1, keepdim=True)  # NaN where nothing counts, and nothing is kept
    return (values - mean).masked_fill(~counted, 0)


def _sum(values: Tensor) -> Tensor:
    return values.sum((0, -2, -1))
