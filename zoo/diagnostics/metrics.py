"""Metrics of attention weights and scores, as functions of tensors.

Weights are [B, H, N, M]. Rows need not sum to one (stick-breaking) or be positive (linear
attention): the share of a key in a row is |w| / sum |w|. A row without any weight has no shares and
its metrics are NaN, so callers average over queries with `nanmean`. Scores are -inf for hidden
pairs. Everything is computed in at least float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from zoo.attention import upcast


def rollout(layers: Sequence[Tensor], residual: float = 0.5) -> Tensor:
    """Compute attention rollout (Abnar and Zuidema 2020, arXiv:2005.00928).

    It is the product A_L ... A_1 over layers, where A is residual I + (1 - residual) mean_h |W_h|
    with rows scaled to sum to one. A row without visible keys keeps its own state.

    Args:
        layers: Weights [B, H, N, N] of all layers, from the first to the last.
        residual: Weight of the residual connection, from 0 to 1.

    Returns:
        The fraction of each input in each final state [B, N, N].
    """
    fractions: Tensor | None = None
    for weights in layers:
        mixed = (1 - residual) * upcast(weights).abs().mean(1)
        mixed = mixed + residual * torch.eye(
            mixed.shape[-1], dtype=mixed.dtype, device=mixed.device
        )
        # rows of linear attention and stick-breaking do not sum to one by themselves
        mixed = mixed / mixed.sum(-1, keepdim=True)
        fractions = mixed if fractions is None else mixed @ fractions
    if fractions is None:
        raise ValueError("a rollout needs at least one layer")
    return fractions


def effective_rank(weights: Tensor) -> Tensor:
    """Compute the effective rank of each head, [B, H] (Roy and Vetterli 2007, EUSIPCO).

    It is exp(-sum_k p_k log p_k) with p_k = sigma_k / sum sigma for singular values sigma: from 1,
    if all queries have the same weights, to the smaller of N and M. NaN for a head without weight.
    """
    # The decomposition fails for NaN: zeros take its place, for which the division gives NaN.
    weights = upcast(weights)
    finite = weights.isfinite().all((-2, -1), keepdim=True)
    values = torch.linalg.svdvals(weights.where(finite, 0))
    return torch.special.entr(values / values.sum(-1, keepdim=True)).sum(-1).exp()


def max_score(scores: Tensor) -> Tensor:
    """Return the largest finite score of each head, [B, H]; NaN without visible pairs.

    If it grows, training becomes unstable (Dehghani et al. 2023, arXiv:2302.05442).
    """
    scores = upcast(scores)
    largest = scores.masked_fill(~scores.isfinite(), float("-inf")).amax((-2, -1))
    return largest.masked_fill(largest.isinf(), float("nan"))


def head_similarity(weights: Tensor) -> Tensor:
    """Compute the cosine between the rows of two heads, averaged over queries, [B, H, H].

    Queries for which either head has no weight are left out; NaN if none is left.
    """
    # Per row, so that all queries count equally: in the cosine of full matrices, sharp rows would
    # dominate.
    rows = upcast(weights).transpose(1, 2)  # [B, N, H, M]
    unit = rows / rows.norm(dim=-1, keepdim=True)
    return (unit @ unit.mT).nanmean(1)


def first_keys(weights: Tensor, same: Tensor | None = None) -> Tensor:
    """Mark the first key of each query's document, the usual attention sink, [1|B, 1, 1|N, M].

    Idle heads attend to it (Xiao et al. 2023, arXiv:2309.17453).

    Args:
        weights: Weights [B, H, N, M].
        same: Keys in each query's document, bool [1|B, N, M]; None: one document.
    """
    if same is None:
        same = weights.new_ones(1, 1, weights.shape[-1]).bool()
    return (same & (same.cumsum(-1) == 1))[:, None]


def special_tokens(has_position: Tensor) -> Tensor:
    """Mark keys without a position, [1|B, 1, 1, M], from `has_position`, bool [1|B, M]."""
    return ~has_position[:, None, None]


def diagonal(query_index: Tensor, keys: int) -> Tensor:
    """Mark each query's own key, [1, 1, N, M], from the queries' indices [N] among the keys."""
    return (query_index[:, None] == torch.arange(keys, device=query_index.device))[None, None]


def positioned_pairs(queries: Tensor, keys: Tensor) -> Tensor:
    """Mark pairs that both have a position, [1|B, 1, N, M], from bool [1|B, N] and [1|B, M]."""
    return queries[:, None, :, None] & keys[:, None, None]


def neighbourhood(offsets: Tensor, window: float, pairs: Tensor | None = None) -> Tensor:
    """Mark pairs at most `window` apart along every axis, [1|B, 1, N, M].

    Args:
        offsets: Offsets [1|B, N, M, P].
        window: Largest offset along an axis.
        pairs: Pairs that have an offset, from `positioned_pairs`; None: all.
    """
    close = (offsets.abs() <= window).all(-1)[:, None]
    return close if pairs is None else close & pairs


def gram(table: Tensor) -> Tensor:
    """Compute the products PE(i) . PE(j), [N, N], of the rows of a table [N, D]."""
    table = upcast(table)
    return table @ table.mT


def word_position_correlations(
    word: Tensor, position: Tensor, query: Tensor, key: Tensor, valid: Tensor | None = None
) -> dict[str, Tensor]:
    """Split scores into word and position parts (TUPE, arXiv:2006.15595, equation 6, figure 2).

    The parts are the four products of (w_i + p_i) Q and (w_j + p_j) K / sqrt(K), averaged over the
    samples that have both tokens. They sum to the scores if the layer projects w + p without a norm
    or bias.

    Args:
        word: Token embeddings w [B, N, D].
        position: Positions p that are added, [N, D] or [B, N, D].
        query: Query projection [H, K, D].
        key: Key projection [H, K, D].
        valid: Which tokens are no padding, bool [1|B, N]; None: all.

    Returns:
        The parts by name, each [H, N, N], with queries as rows; NaN for pairs that no sample has.
    """
    parts = {"word": upcast(word), "position": upcast(position).expand(len(word), -1, -1)}
    count: Tensor | int = len(word)
    if valid is not None:
        parts = {name: part.masked_fill(~valid[..., None], 0) for name, part in parts.items()}
        pairs = valid[:, :, None] & valid[:, None]
        count = pairs.expand(len(word), -1, -1).sum(0)
    queries, keys = (
        {name: torch.einsum("bnd,hkd->bhnk", part, upcast(weight)) for name, part in parts.items()}
        for weight in (query, key)
    )
    scale = query.shape[1] ** -0.5
    return {
        f"{query_part} to {key_part}": scale
        * torch.einsum("bhnk,bhmk->hnm", queries[query_part], keys[key_part])
        / count
        for query_part, key_part in product(parts, parts)
    }


def weight_shares(weights: Tensor) -> Tensor:
    """Scale the rows of |weights| to sum to one, [B, H, N, M]; NaN for a row without weight."""
    # linear attention has negative weights, whose size counts as much
    sizes = upcast(weights).abs()
    return sizes / sizes.sum(-1, keepdim=True)


def weight_sum(weights: Tensor) -> Tensor:
    """Sum the weights of each row, [B, H, N]: 1 for a softmax, 0 without visible keys.

    Signs count: the sum is the output for values that are all 1.
    """
    return upcast(weights).sum(-1)


def entropy(weights: Tensor) -> Tensor:
    """Compute the entropy of each row in nats, [B, H, N], from 0 (one key) to log M (uniform)."""
    return torch.special.entr(weight_shares(weights)).sum(-1)


def share_at(weights: Tensor, where: Tensor) -> Tensor:
    """Sum the shares of each row over the pairs `where`, bool [1|B, 1|H, 1|N, M]: [B, H, N]."""
    # A product, unlike a mask, keeps the NaN of a row without weight.
    return (weight_shares(weights) * where).sum(-1)


def offsets(queries: Tensor, keys: Tensor) -> Tensor:
    """Return query positions [1|B, N, P] minus key positions [1|B, M, P], [1|B, N, M, P]."""
    return upcast(queries)[:, :, None] - upcast(keys)[:, None]


def distance(weights: Tensor, offsets: Tensor, has_position: Tensor | None = None) -> Tensor:
    """Compute the mean attended distance, [B, H, N] (Dosovitskiy et al. 2020, arXiv:2010.11929).

    It is sum_j s_j |o_j| with Euclidean norms and shares s among keys with a position.

    Args:
        weights: Weights [B, H, N, M].
        offsets: Offsets [1|B, N, M, P].
        has_position: Keys with a position, bool [1|B, M]; None: all. The caller must exclude
            queries without a position.
    """
    far = upcast(offsets).norm(dim=-1, keepdim=True)
    return _average_over_keys(weights, far, has_position)[..., 0]


def distance_by_axis(
    weights: Tensor, offsets: Tensor, has_position: Tensor | None = None
) -> Tensor:
    """Compute the mean attended distance along each axis, [B, H, N, P]. See `distance`."""
    return _average_over_keys(weights, upcast(offsets).abs(), has_position)


def _average_over_keys(weights: Tensor, values: Tensor, has_position: Tensor | None) -> Tensor:
    """Average values [1|B, N, M, P] over keys with a position, [B, H, N, P]."""
    if has_position is not None:
        weights = weights.masked_fill(~has_position[:, None, None], 0)
        # The offsets of special tokens may be anything, even infinite.
        values = values.masked_fill(~has_position[:, None, :, None], 0)
    shares = weight_shares(weights)
    return torch.einsum("bhnm,bnmp->bhnp", shares, values.to(shares.dtype))


def offset_profile(
    weights: Tensor, offsets: Tensor, visible: Tensor, pairs: Tensor | None = None
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Average the weights over all visible pairs and samples at each offset.

    Args:
        weights: Weights [B, H, N, M].
        offsets: Integer offsets [1|B, N, M, P].
        visible: Attention mask, bool [1|B, 1, N, M].
        pairs: Pairs that have an offset, from `positioned_pairs`; None: all.

    Returns:
        For each axis the offsets from -r to r, where r is the largest one along it, and the mean
        weights [H, ...]: a curve for text, a map for images, a volume for clips. NaN at offsets
        without visible pairs.

    Raises:
        ValueError: An offset is not an integer.
    """
    counted = (visible if pairs is None else visible & pairs).expand(
        len(weights), 1, *weights.shape[2:]
    )[:, 0]
    met = offsets.expand(len(weights), *offsets.shape[1:])[counted]  # [pairs, P]
    if (met != met.round()).any():
        raise ValueError("a profile needs offsets of whole tokens or patches")
    # Number the bins row by row, and add up the weights of all pairs in each.
    reach = torch.cat([met.abs(), met.new_zeros(1, met.shape[-1])]).amax(0).long()  # [P]
    sizes = (2 * reach + 1).tolist()
    bins = _flatten_index(met.long() + reach, sizes)
    shares = upcast(weights).movedim(1, -1)[counted]  # [pairs, H]
    cells = torch.Size(sizes).numel()
    sums = shares.new_zeros(cells, shares.shape[-1]).index_add_(0, bins, shares)
    values = (sums.mT / torch.bincount(bins, minlength=cells)).unflatten(-1, sizes)
    return tuple(torch.arange(-r, r + 1, device=met.device) for r in reach.tolist()), values


def _flatten_index(places: Tensor, sizes: list[int]) -> Tensor:
    """Convert grid positions [pairs, P] to row-major cell numbers."""
    flat = torch.zeros_like(places[:, 0])
    for axis, size in enumerate(sizes):
        flat = flat * size + places[:, axis]
    return flat


def position_r2(scores: Tensor, *, clamp: bool = True) -> Tensor:
    """Estimate the fraction of the variance of scores that the two positions explain, [H].

    It is the mean of `position_r2_by_sample`, which may be negative.

    Args:
        scores: Scores [B, H, N, M] of B samples.
        clamp: Raise negative estimates to 0. Set it to False to average estimates.
    """
    share = position_r2_by_sample(scores).mean(0)
    return share.clamp(min=0) if clamp else share


def position_r2_by_sample(scores: Tensor) -> Tensor:
    """Estimate the fraction that `position_r2` is of, with one value for each sample, [B, H].

    The fraction is 1 - W / T of a one-way analysis of variance (Fisher 1925), where W is the
    variance over samples, and T the mean square, of a pair's centred scores. The mean product of
    two samples estimates T - W without bias, whatever their number. Its ratio to T has a bias of
    the order of 1 / B, which the jackknife removes (Quenouille 1956, Biometrika 43). The values are
    its pseudo-values: their mean is the estimate, and their spread gives its standard error.

    Args:
        scores: Scores [B, H, N, M] of B samples with different contents at the same positions.
            Only pairs that are visible in all samples count.

    Raises:
        ValueError: There are fewer than two samples.
    """
    count = len(scores)
    if count < 2:
        raise ValueError(
            f"the variance that position explains needs at least two samples, got {count}"
        )
    return explain_by_position(center_rows(scores, scores.isfinite().all(0)))


def explain_by_position(centred: Tensor) -> Tensor:
    """Compute `position_r2_by_sample` of values [B, H, N, M] whose rows are centred, [B, H]."""
    count, values = len(centred), centred.transpose(0, 1).flatten(2)  # [H, B, P]
    products = values @ values.mT  # [H, B, B]
    squares = products.diagonal(dim1=-2, dim2=-1)  # [H, B]
    # Of each sample with all others, twice where the total counts each pair of samples twice.
    shared = products.sum(-1) - squares
    total, square = shared.sum(-1, keepdim=True), squares.sum(-1, keepdim=True)
    whole = total / (count - 1) / square
    if count == 2:  # without either sample, there is no pair
        return whole.expand(-1, 2).mT
    without = (total - 2 * shared) / (count - 2) / (square - squares)
    return (count * whole - (count - 1) * without).mT


def squared_correlation(scores: Tensor, part: Tensor) -> Tensor:
    """Compute the squared correlation of centred scores with other centred scores, [H].

    If the others have the same contents at one position, it is the fraction that content explains.
    Only pairs that are visible in both count; NaN if the rows of either are constant.
    """
    centered_scores, centered_part = _center_both(scores, part)
    return _sum_pairs(centered_scores * centered_part).square() / (
        _sum_pairs(centered_scores.square()) * _sum_pairs(centered_part.square())
    )


def shift_sensitivity(scores: Tensor, shifted: Tensor) -> Tensor:
    """Compute the relative change of centred scores if all positions shift by one vector, [H].

    It is sqrt(mean (s' - s)^2 / mean s^2): 0 for a shift-invariant encoding, NaN if rows are
    constant before and after. Only pairs that are visible in both count.
    """
    centered, centered_shifted = _center_both(scores, shifted)
    return (
        _sum_pairs((centered_shifted - centered).square()) / _sum_pairs(centered.square())
    ).sqrt()


def _center_both(scores: Tensor, reference: Tensor) -> tuple[Tensor, Tensor]:
    """Center both sets of scores over the pairs that are visible in both."""
    counted = scores.isfinite() & reference.isfinite()
    return center_rows(scores, counted), center_rows(reference, counted)


def center_rows(scores: Tensor, counted: Tensor) -> Tensor:
    """Subtract from each score the mean of its row over `counted` pairs; others become 0."""
    scores = upcast(scores)
    # The largest score is subtracted first, so that a constant row becomes exactly 0.
    highest = scores.masked_fill(~counted, float("-inf")).amax(-1, keepdim=True)
    values = (scores - highest).masked_fill(~counted, 0)
    # The mean of a row without counted pairs is NaN, but none of its values is kept.
    mean = values.sum(-1, keepdim=True) / counted.sum(-1, keepdim=True)
    return (values - mean).masked_fill(~counted, 0)


def _sum_pairs(values: Tensor) -> Tensor:
    return values.sum((0, -2, -1))


__all__ = [
    "diagonal",
    "distance",
    "distance_by_axis",
    "effective_rank",
    "entropy",
    "first_keys",
    "gram",
    "head_similarity",
    "max_score",
    "neighbourhood",
    "offset_profile",
    "offsets",
    "position_r2",
    "position_r2_by_sample",
    "positioned_pairs",
    "rollout",
    "share_at",
    "shift_sensitivity",
    "special_tokens",
    "squared_correlation",
    "weight_shares",
    "weight_sum",
    "word_position_correlations",
]
