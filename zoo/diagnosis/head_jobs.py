"""Heads with a known job: how much of a head's attention falls on the keys of the job.

A score is the mean weight on these keys: of softmax weights w it is the sum of w over the keys, of
rows with a larger sum of |w| (linear attention) that of |w| / sum |w|. What is missing from 1
because of a sink without a key, or of stick-breaking, counts against every job.

Jobs in texts:

- previous token: the token before the query (Elhage et al. 2021, A Mathematical Framework for
  Transformer Circuits; Olsson et al. 2022, arXiv:2209.11895)
- first token: the first of the document, an attention sink (Xiao et al. 2023, arXiv:2309.17453)
- same token: the query itself
- induction: in a repeated random text, the tokens after earlier copies of the query (the prefix
  matching score of Olsson et al. 2022, arXiv:2209.11895)
- duplicate token: there, the earlier copies themselves (Wang et al. 2023, arXiv:2211.00593)

Jobs in images: one neighbour of the query, at a fixed offset as in a convolution (Cordonnier et al.
2020, arXiv:1911.03584); the patch itself; CLS and register tokens (Darcet et al. 2023,
arXiv:2309.16588).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

import torch
from torch import Tensor

from zoo.attention.backends.reference import attention_mask
from zoo.attention.tokens import upcast
from zoo.data.spec import IGNORE_INDEX
from zoo.diagnostics import metrics
from zoo.diagnostics.capture import LayerAttention
from zoo.errors import OptionError

SEED = 0
LEAST = 8  # tokens that are repeated: fewer do not tell heads apart
PERIODS = 4  # numbers of tokens after which different samples repeat
NOTABLE = 0.3
"""Least score of a head that has a job, by which Gu et al. 2024 (arXiv:2410.10781) define sinks."""
SIDES = {
    1: (),
    2: (("above", "below"), ("left", "right")),
    3: (("earlier", "later"), ("above", "below"), ("left", "right")),
}
"""The names of the two neighbours of a patch along each axis."""


@dataclass(frozen=True)
class RepeatedText:
    """Random tokens that repeat, with targets where the repetition tells the next token.

    Attributes:
        tokens: int64 [B, N].
        targets: The next token int64 [B, N]; `IGNORE_INDEX` before the repetition.
    """

    tokens: Tensor
    targets: Tensor


def draw_repeated_text(
    vocabulary: Sequence[int], length: int, samples: int, seed: int = SEED
) -> RepeatedText:
    """Draw random texts of 2 `length` tokens, each of which repeats.

    Samples repeat after `length`, `length` - 1, ... tokens: a head that attends a fixed distance
    back would otherwise be taken for one that finds copies. Tokens differ within a period where the
    vocabulary has enough of them.

    Args:
        vocabulary: The tokens to draw from.
        length: Number of tokens of the longest period.
        samples: Number of texts B.
        seed: Seed of the texts.

    Raises:
        OptionError: The text is too short, or there are fewer than two tokens.
    """
    if length < LEAST:
        problem = f"a random text of {length} tokens, repeated once, is too short"
        raise OptionError("length", f"{problem}; {LEAST} tokens are needed")
    if len(vocabulary) < 2:
        raise OptionError("length", "a vocabulary of one token has no random texts")
    generator = torch.Generator().manual_seed(seed)
    known, rows, targets = torch.tensor(vocabulary), [], []
    for sample in range(samples):
        period = length - sample % PERIODS
        if len(known) >= period:
            drawn = torch.randperm(len(known), generator=generator)[:period]
        else:
            drawn = torch.randint(len(known), (period,), generator=generator)
        # the shortest period needs four copies
        row = known[drawn].repeat(4)[: 2 * length + 1]
        after = row[1:].clone()
        # the last token of the first copy does not tell that the text starts again
        after[:period] = IGNORE_INDEX
        rows.append(row[:-1])
        targets.append(after)
    return RepeatedText(torch.stack(rows), torch.stack(targets))


@dataclass(frozen=True)
class HeadJob:
    """A job of heads.

    Attributes:
        name: Its name in the JSON file.
        title: Its title in tables.
        caption: One sentence on what the score is.
        mark: Marks the keys of the job, bool [1|B, Q, M], and the queries that are counted, bool
            [1|B, Q].
    """

    name: str
    title: str
    caption: str
    mark: Callable[[LayerAttention], tuple[Tensor, Tensor]]


@dataclass(frozen=True, kw_only=True)
class JobScores:
    """The scores of all heads for one job.

    Attributes:
        name: The name of the job.
        title: Its title.
        caption: One sentence on what the score is.
        values: Scores [L, H], the mean over samples; NaN for heads that a layer has not.
        even: Score of attention spread evenly over all visible keys, in the first layer.
    """

    name: str
    title: str
    caption: str
    values: Tensor
    even: float


def score_job(attention: LayerAttention, job: HeadJob) -> Tensor:
    """Return the score of each head of a layer for a job, [H]; NaN if no query is counted."""
    where, counted = job.mark(attention)
    return average_weight(attention.weights, where, counted)


def average_weight(weights: Tensor, where: Tensor, counted: Tensor) -> Tensor:
    """Average the weight on marked keys over counted queries, then over samples: [H].

    Args:
        weights: Weights [B, H, Q, M].
        where: The marked keys, bool [1|B, Q, M].
        counted: The counted queries, bool [1|B, Q].
    """
    sizes = upcast(weights).abs()
    # rows of linear attention may sum to anything, and count as shares
    sizes = sizes / sizes.sum(-1, keepdim=True).clamp(min=1)
    on_keys = (sizes * where[:, None]).sum(-1)  # [B, H, Q]
    rows = counted[:, None].expand(len(weights), 1, -1)
    means = (on_keys * rows).sum(-1) / rows.sum(-1)  # [B, H], NaN for samples without such queries
    return means.nanmean(0)


def spread_evenly(attention: LayerAttention, job: HeadJob) -> float:
    """Return the score of attention that is spread evenly over all visible keys."""
    where, counted = job.mark(attention)
    visible = attention_mask(attention.call).expand(len(attention.weights), 1, *where.shape[1:])
    even = visible / visible.sum(-1, keepdim=True).clamp(min=1)
    return float(average_weight(even, where, counted))


def list_text_jobs() -> Iterator[HeadJob]:
    """Yield the jobs that any text shows."""
    yield HeadJob(
        "previous",
        "previous token",
        "Mean weight on the token before the query.",
        lambda attention: (
            _same_document(attention) & (_offsets(attention) == 1).all(-1),
            _has_past(attention),
        ),
    )
    yield HeadJob(
        "first",
        "first token",
        "Mean weight on the first token of the document, where heads without work rest.",
        lambda attention: (
            metrics.first_keys(attention.weights, _same_document(attention))[:, 0],
            _has_past(attention),
        ),
    )
    yield HeadJob(
        "same",
        "same token",
        "Mean weight of a token on itself.",
        lambda attention: (_diagonal(attention), _has_past(attention)),
    )


def list_copy_jobs(tokens: Tensor) -> Iterator[HeadJob]:
    """Yield the jobs that a repeated text shows.

    Args:
        tokens: The text, int64 [B, N].
    """

    def find_copies(attention: LayerAttention) -> Tensor:
        # equal tokens before the query, bool [B, Q, N]
        rows = tokens.to(attention.query_index.device)
        is_copy = rows[:, attention.query_index, None] == rows[:, None]
        return is_copy & (_distances(attention) > 0)

    def find_followers(attention: LayerAttention) -> Tensor:
        # the last key is no copy of a later query, so that nothing wraps around to the first
        return find_copies(attention).roll(1, -1) & (_distances(attention) >= 0)

    yield HeadJob(
        "induction",
        "induction",
        "Mean weight on the tokens after earlier copies of the query, in a repeated random text.",
        lambda attention: (find_followers(attention), find_copies(attention).any(-1)),
    )
    yield HeadJob(
        "duplicate",
        "duplicate token",
        "Mean weight on earlier copies of the query, in a repeated random text.",
        lambda attention: (find_copies(attention), find_copies(attention).any(-1)),
    )


def list_grid_jobs(attention: LayerAttention) -> Iterator[HeadJob]:
    """Yield the jobs of heads in images and videos; of points, without neighbours.

    Args:
        attention: One layer of the model.
    """
    dims = attention.chain.dims
    sides = () if dims.points else SIDES[dims.axes]
    for axis, names in enumerate(sides):
        for name, step in zip(names, (1, -1), strict=True):
            yield _make_neighbour(name, axis, step)
    yield HeadJob(
        "same",
        "same patch",
        "Mean weight of a patch on itself.",
        lambda seen: (_diagonal(seen), _on_grid(seen)),
    )
    if not attention.grid[1].all():
        yield HeadJob(
            "special",
            "CLS and registers",
            "Mean weight of patches on CLS and register tokens, where heads without work rest.",
            lambda seen: (~seen.grid[1][:, None].expand(-1, _count(seen), -1), _on_grid(seen)),
        )


def _make_neighbour(name: str, axis: int, step: int) -> HeadJob:
    """Make the job of heads that attend to a neighbour, `step` before the query along an axis."""

    def mark(attention: LayerAttention) -> tuple[Tensor, Tensor]:
        # offsets are those of queries minus those of keys: the neighbour above has a smaller row
        offsets = _offsets(attention)
        wanted = torch.zeros(offsets.shape[-1], device=offsets.device)
        wanted[axis] = step
        rows, columns = attention.grid
        is_neighbour = (offsets == wanted).all(-1) & rows[..., None] & columns[:, None]
        return is_neighbour, is_neighbour.any(-1)

    caption = f"Mean weight of patches on the neighbour {name}, where there is one."
    return HeadJob(name, f"neighbour {name}", caption, mark)


class JobMeasures:
    """The scores of layers, one layer after another, so that only one is in memory at a time.

    Args:
        jobs: Returns the jobs for the first layer.
    """

    def __init__(self, jobs: Callable[[LayerAttention], Iterator[HeadJob]]) -> None:
        self._list_jobs = jobs
        self._jobs: list[HeadJob] = []
        self._even: list[float] = []
        self._values: list[list[Tensor]] = []

    def add(self, attention: LayerAttention) -> None:
        """Score the next layer."""
        # all layers have the jobs of the first one
        if not self._jobs:
            self._jobs = [*self._list_jobs(attention)]
            self._even = [spread_evenly(attention, job) for job in self._jobs]
            self._values = [[] for _ in self._jobs]
        for job, layers in zip(self._jobs, self._values, strict=True):
            layers.append(score_job(attention, job).double().cpu())

    def list_scores(self) -> Iterator[JobScores]:
        """Yield the scores of all layers."""
        for job, even, layers in zip(self._jobs, self._even, self._values, strict=True):
            # in a picture of one patch nothing has a neighbour
            if all(layer.isnan().all() for layer in layers):
                continue
            yield JobScores(
                name=job.name,
                title=job.title,
                caption=job.caption,
                values=pad_heads(layers),
                even=even,
            )


def pad_heads(layers: Sequence[Tensor]) -> Tensor:
    """Stack values [H, ..] of layers to [L, H, ..]; layers with fewer heads end with NaN."""
    sizes = [max(sizes) for sizes in zip(*(layer.shape for layer in layers), strict=True)]
    stacked = torch.full((len(layers), *sizes), torch.nan, dtype=layers[0].dtype)
    for row, layer in zip(stacked, layers, strict=True):
        row[tuple(slice(size) for size in layer.shape)] = layer
    return stacked


def choose_heads(scores: Sequence[Tensor], most: int) -> list[tuple[int, int]]:
    """Choose at most `most` heads as (row, head): the best of each job in turn, from the best down.

    Args:
        scores: The scores of each job [L, H]; NaN for heads that a layer has not.
        most: Largest number of heads.
    """
    if not scores:
        return []
    # of each job the heads from the best down, without those that a layer has not
    orders = []
    for values in scores:
        ranked = values.flatten().nan_to_num(-1).argsort(descending=True, stable=True).tolist()
        orders.append([n for n in ranked if not values.flatten()[n].isnan()])
    heads = scores[0].shape[1]
    # the best of every job, then the second best of every job, ...
    ranks = zip_longest(*orders)
    chosen = dict.fromkeys(n for rank in ranks for n in rank if n is not None)
    return [divmod(number, heads) for number in [*chosen][:most]]


def _count(attention: LayerAttention) -> int:
    return len(attention.query_index)


def _offsets(attention: LayerAttention) -> Tensor:
    """Return positions of queries minus those of keys, [1|B, Q, M, P]."""
    return metrics.offsets(attention.call.queries.index, attention.call.keys.index)


def _distances(attention: LayerAttention) -> Tensor:
    """Return sequence indices of queries minus those of keys, int [1, Q, M]."""
    keys = torch.arange(attention.weights.shape[-1], device=attention.query_index.device)
    return (attention.query_index[:, None] - keys)[None]


def _diagonal(attention: LayerAttention) -> Tensor:
    return _distances(attention) == 0


def _on_grid(attention: LayerAttention) -> Tensor:
    """Mark queries that belong to the image and are no padding, bool [1|B, Q]."""
    return attention.grid[0] & attention.is_real[0]


def _same_document(attention: LayerAttention) -> Tensor:
    """Mark keys in the document of each query, without padding, bool [1|B, Q, M]."""
    queries, keys = attention.is_real
    both = queries[..., None] & keys[:, None]
    if attention.document is None:
        return both
    own = attention.document[:, attention.query_index, None]
    return both & (own == attention.document[:, None])


def _has_past(attention: LayerAttention) -> Tensor:
    """Mark queries after the second token of a document, bool [1|B, Q].

    Only for these are the first token, the previous one and the query three different keys.
    """
    earlier = _same_document(attention) & (_distances(attention) > 0)
    return earlier.sum(-1) >= 2
