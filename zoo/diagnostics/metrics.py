"""How far heads look, in tokens or patches."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from zoo.attention import upcast


def rollout(layers: Sequence[Tensor], residual: float = 0.5) -> Tensor:
    """A_L ... A_1, A = rows of (residual I + (1 - residual) mean_h |W_h|) scaled to sum to one (arXiv:2005.00928).

    Attention rollout (Abnar & Zuidema 2020): [B, N, N], what each last state is made of, from the weights [B, H, N, N] of
    all layers, the first one first. A row that sees nothing passes itself on.
    """
    found: Tensor | None = None
    for weights in layers:
        mixed = (1 - residual) * upcast(weights).abs().mean(1)
        mixed = mixed + residual * torch.eye(
            mixed.shape[-1], dtype=mixed.dtype, device=mixed.device
        )
        mixed = mixed / mixed.sum(-1, keepdim=True)
        found = mixed if found is None else mixed @ found
    if found is None:
        raise ValueError("a rollout needs at least one layer")
    return found


def effective_rank(weights: Tensor) -> Tensor:
    """exp(-sum_k p_k log p_k), p_k = sigma_k / sum sigma of singular values, [B, H] (Roy & Vetterli 2007, EUSIPCO).

    From 1, all queries look alike, to the smaller of N and M; NaN for a head without any weight.
    """
    weights = upcast(weights)
    known = weights.isfinite().all((-2, -1), keepdim=True)
    values = torch.linalg.svdvals(weights.where(known, 0))  # of zeros, NaN comes below
    return torch.special.entr(values / values.sum(-1, keepdim=True)).sum(-1).exp()


def max_score(scores: Tensor) -> Tensor:
    """The largest finite score, [B, H]; NaN where no pair may attend.

    Where it grows, training becomes unstable (Dehghani et al. 2023, arXiv:2302.05442).
    """
    scores = upcast(scores)
    found = scores.masked_fill(~scores.isfinite(), float("-inf")).amax((-2, -1))
    return found.masked_fill(found.isinf(), float("nan"))


def head_similarity(weights: Tensor) -> Tensor:
    """Cosine of the rows of two heads, averaged over queries, [B, H, H]; 1 on the diagonal.

    Row by row, so that each query counts alike: in the cosine of whole matrices those with sharp rows would count most.
    Queries for which either head has no weight are left out; NaN where none is left.
    """
    rows = upcast(weights).transpose(1, 2)  # [B, N, H, M]
    unit = rows / rows.norm(dim=-1, keepdim=True)
    return (unit @ unit.mT).nanmean(1)


def first_keys(weights: Tensor, same: Tensor | None = None) -> Tensor:
    """The first key of a query's document, where heads that need nothing rest (Xiao et al. 2023, arXiv:2309.17453).

    [1|B, 1, 1|N, M]. `same`, bool [1|B, N, M], tells the keys of each query's document; by default there is one.
    """
    if same is None:
        same = weights.new_ones(1, 1, weights.shape[-1]).bool()
    return (same & (same.cumsum(-1) == 1))[:, None]


def special_tokens(has_position: Tensor) -> Tensor:
    """Keys without a place, [1|B, 1, 1, M]; `placed` is bool [1|B, M]."""
    return ~has_position[:, None, None]


def diagonal(query_index: Tensor, keys: int) -> Tensor:
    """Each query's own key, [1, 1, N, M]; slots int [N] of the queries among so many keys."""
    return (query_index[:, None] == torch.arange(keys, device=query_index.device))[None, None]


def positioned_pairs(queries: Tensor, keys: Tensor) -> Tensor:
    """Pairs of a query and a key that both have a place, [1|B, 1, N, M], from bool [1|B, N] and [1|B, M]."""
    return queries[:, None, :, None] & keys[:, None, None]


def neighbourhood(offsets: Tensor, window: float, pairs: Tensor | None = None) -> Tensor:
    """Pairs at most `window` apart along every axis, [1|B, 1, N, M].

    Offsets are [1|B, N, M, P]; `placed`, as `both` gives it, leaves out pairs without an offset.
    """
    close = (offsets.abs() <= window).all(-1)[:, None]
    return close if pairs is None else close & pairs


def gram(table: Tensor) -> Tensor:
    """PE(i).PE(j), [N, N], of a table [N, D]."""
    table = upcast(table)
    return table @ table.mT


def word_position_correlations(word: Tensor, position: Tensor, query: Tensor, key: Tensor) -> dict[str, Tensor]:
    """The four parts of (w_i + p_i) Q (w_j + p_j) K / sqrt(K), each [H, N, N], by name, averaged over samples.

    TUPE (Ke, He & Liu 2020, arXiv:2006.15595), equation 6 and figure 2: word to word, word to position, position to word,
    position to position, of the first layer of BERT for a batch of sentences. Words [B, N, D] and positions [N, D] or
    [B, N, D] are what is added up before the projections query [H, K, D] and key [H, K, D]; rows are queries. The parts
    add up to the scores where the layer projects that sum itself, with no norm or bias between.
    """
    parts = {"word": upcast(word), "position": upcast(position).expand(len(word), -1, -1)}
    queries, keys = (
        {name: torch.einsum("bnd,hkd->bhnk", part, upcast(weight)) for name, part in parts.items()}
        for weight in (query, key)
    )
    scale = query.shape[1] ** -0.5 / len(word)
    return {
        f"{one} to {other}": scale * torch.einsum("bhnk,bhmk->hnm", queries[one], keys[other])
        for one, other in product(parts, parts)
    }


def weight_shares(weights: Tensor) -> Tensor:
    """|w_j| / sum_j |w_j| along each row, [B, H, N, M]; NaN along a row without any weight."""
    sizes = upcast(weights).abs()
    return sizes / sizes.sum(-1, keepdim=True)


def weight_sum(weights: Tensor) -> Tensor:
    """sum_j w_j, [B, H, N]: how much is attended at all. 1 for a softmax, 0 for a row that sees nothing.

    Signs count: it is what comes of a value of 1 that all keys share.
    """
    return upcast(weights).sum(-1)


def entropy(weights: Tensor) -> Tensor:
    """-sum_j s_j log s_j of shares s in nats, [B, H, N]: from 0, one key, to log M, all keys alike (Shannon 1948)."""
    return torch.special.entr(weight_shares(weights)).sum(-1)


def share_at(weights: Tensor, where: Tensor) -> Tensor:
    """The share [B, H, N] of a row that falls on the pairs `where`, bool [1|B, 1|H, 1|N, M]."""
    # a product, not a mask: a row without weight stays NaN
    return (weight_shares(weights) * where).sum(-1)


def offsets(queries: Tensor, keys: Tensor) -> Tensor:
    """Place of the query less place of the key, [1|B, N, M, P], from indices [1|B, N, P] and [1|B, M, P]."""
    return upcast(queries)[:, :, None] - upcast(keys)[:, None]


def distance(weights: Tensor, offsets: Tensor, has_position: Tensor | None = None) -> Tensor:
    """sum_j s_j |o_j|, [B, H, N]: Euclidean distance of what a query looks at (Dosovitskiy et al. 2020, arXiv:2010.11929).

    Shares s are of keys that have a place alone, `placed` bool [1|B, M]; NaN where these have no weight. Offsets o are
    [1|B, N, M, P]. Queries without a place are the caller's to leave out.
    """
    far = upcast(offsets).norm(dim=-1, keepdim=True)
    return _average_over_keys(weights, far, has_position)[..., 0]


def distance_by_axis(weights: Tensor, offsets: Tensor, has_position: Tensor | None = None) -> Tensor:
    """sum_j s_j |o_jp| along each axis p, [B, H, N, P]; the rest is as in `distance`."""
    return _average_over_keys(weights, upcast(offsets).abs(), has_position)


def _average_over_keys(weights: Tensor, values: Tensor, has_position: Tensor | None) -> Tensor:
    """Mean over placed keys of values [1|B, N, M, P], [B, H, N, P]."""
    if has_position is not None:
        weights = weights.masked_fill(~has_position[:, None, None], 0)
        values = values.masked_fill(~has_position[:, None, :, None], 0)  # whatever stands there
    found = weight_shares(weights)
    return torch.einsum("bhnm,bnmp->bhnp", found, values.to(found.dtype))


def offset_profile(
    weights: Tensor, offsets: Tensor, visible: Tensor, pairs: Tensor | None = None
) -> tuple[tuple[Tensor, ...], Tensor]:
    """Mean weight at each offset over all visible pairs and samples: for each axis the offsets, and values [H, ...].

    An axis runs from -r to r, with r the farthest offset that is met along it; values are NaN at offsets that no visible
    pair has. A curve for a text, a map for an image, a volume for a clip. `visible` is bool [1|B, 1, N, M], as is `placed`,
    which `pairs.both` gives. Raises ValueError where offsets [1|B, N, M, P] are not whole numbers.
    """
    counted = (visible if pairs is None else visible & pairs).expand(
        len(weights), 1, *weights.shape[2:]
    )[:, 0]
    met = offsets.expand(len(weights), *offsets.shape[1:])[counted]  # [pairs, P]
    if (met != met.round()).any():
        raise ValueError("a profile needs offsets of whole tokens or patches")
    reach = torch.cat([met.abs(), met.new_zeros(1, met.shape[-1])]).amax(0).long()  # [P]
    sizes = (2 * reach + 1).tolist()
    bins = _flatten_index(met.long() + reach, sizes)
    found = upcast(weights).movedim(1, -1)[counted]  # [pairs, H]
    cells = torch.Size(sizes).numel()
    sums = found.new_zeros(cells, found.shape[-1]).index_add_(0, bins, found)
    values = (sums.mT / torch.bincount(bins, minlength=cells)).unflatten(-1, sizes)
    return tuple(torch.arange(-r, r + 1, device=met.device) for r in reach.tolist()), values


def _flatten_index(places: Tensor, sizes: list[int]) -> Tensor:
    """Places [pairs, P] in a grid as numbers of its cells, row by row."""
    flat = torch.zeros_like(places[:, 0])
    for axis, size in enumerate(sizes):
        flat = flat * size + places[:, axis]
    return flat


def position_r2(scores: Tensor, *, clamp: bool = True) -> Tensor:
    """1 - W / T: the share of the variance of scores that is a function of the two places alone, [H].

    Scores [B, H, N, M] are of B samples with different contents at the same places, their rows centred over the pairs
    visible in all. W is the mean over pairs of the variance over samples (with B - 1), T the mean square over samples and
    pairs. Where scores are m + e, a fixed m of each pair and noise e of each sample, T has the expectation m^2 + var e and
    W var e, so that T - W is unbiased for m^2 (one-way analysis of variance; Fisher 1925). The estimate scatters around
    the truth, so below 0 too: `clamped` lifts it to 0, without it a mean of estimates is right. NaN where a head's rows are
    constant. Raises ValueError for fewer than two samples.
    """
    if len(scores) < 2:
        raise ValueError(
            f"the share that position explains needs at least two samples, got {len(scores)}"
        )
    values = _center_rows(scores, scores.isfinite().all(0))
    share = 1 - values.var(0).sum((-2, -1)) / values.square().mean(0).sum((-2, -1))
    return share.clamp(min=0) if clamp else share


def squared_correlation(scores: Tensor, part: Tensor) -> Tensor:
    """Squared correlation of centred scores [B, H, N, M] with another set of them over all pairs and samples, [H].

    With scores of the same contents at one place, this is what content alone explains. Pairs must be visible in both; NaN
    where the rows of either are constant.
    """
    first, second = _center_both(scores, part)
    return _sum_pairs(first * second).square() / (_sum_pairs(first.square()) * _sum_pairs(second.square()))


def shift_sensitivity(scores: Tensor, shifted: Tensor) -> Tensor:
    """sqrt(mean (s' - s)^2 / mean s^2), [H]: how much centred scores change when all places are shifted by one vector.

    0 for a relative encoding; NaN where rows are constant before and after. Pairs must be visible in both.
    """
    first, second = _center_both(scores, shifted)
    return (_sum_pairs((second - first).square()) / _sum_pairs(first.square())).sqrt()


def _center_both(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Both sets of scores, centred over the pairs visible in both."""
    counted = first.isfinite() & second.isfinite()
    return _center_rows(first, counted), _center_rows(second, counted)


def _center_rows(scores: Tensor, counted: Tensor) -> Tensor:
    """Scores less the mean of their row over the pairs that count, 0 for the others."""
    scores = upcast(scores)
    # less the largest first, so that a constant row becomes exactly 0
    highest = scores.masked_fill(~counted, float("-inf")).amax(-1, keepdim=True)
    values = (scores - highest).masked_fill(~counted, 0)
    mean = values.sum(-1, keepdim=True) / counted.sum(
        -1, keepdim=True
    )  # NaN where nothing counts, and nothing is kept
    return (values - mean).masked_fill(~counted, 0)


def _sum_pairs(values: Tensor) -> Tensor:
    return values.sum((0, -2, -1))


__all__ = [
    "positioned_pairs",
    "word_position_correlations",
    "shift_sensitivity",
    "distance",
    "distance_by_axis",
    "effective_rank",
    "entropy",
    "squared_correlation",
    "position_r2",
    "first_keys",
    "gram",
    "max_score",
    "share_at",
    "neighbourhood",
    "offsets",
    "diagonal",
    "offset_profile",
    "rollout",
    "weight_shares",
    "head_similarity",
    "weight_sum",
    "special_tokens",
]
