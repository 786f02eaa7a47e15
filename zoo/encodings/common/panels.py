"""What encodings say of themselves, as panels: a number per head, a spread over tokens, a size per row of a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

import torch
from torch import Tensor

from zoo.attention import AttentionCall, Encoding, Tokens, upcast
from zoo.attention.coordinates import spacing
from zoo.reporting.panel import (
    Bars,
    Curves,
    Heatmap,
    HeatmapGrid,
    Panel,
    Points,
    distinct,
    label_heads,
)

Panels = Iterable[Panel]

AXES = {
    1: ("text",),
    2: ("rows", "columns"),
    3: ("time", "rows", "columns"),
}  # what is counted along each axis
SHARES = {"a tenth lies below": 0.1, "half lies below": 0.5, "nine tenths lie below": 0.9}


def to_cpu(values: Tensor) -> Tensor:
    """The same values on the CPU, in at least float32, with no gradient to where they came from."""
    return upcast(values.detach().cpu())


def head_panel(title: str, y: str, values: Tensor, says: str, *, kind: str = "head") -> Bars:
    """A number for each of [H]."""
    numbers = {head: float(value) for head, value in label_heads(to_cpu(values), kind).items()}
    return Bars(title=title, x=kind, y=y, says=says, values=numbers)


def curve_panel(title: str, x: str, y: str, places: Tensor, lines: Tensor, says: str) -> Curves:
    """Lines [H, N] over places [N]: one for each head, or one in all."""
    shown = label_heads(distinct(to_cpu(lines)))
    return Curves(title=title, x=x, y=y, says=says, places=to_cpu(places), lines=shown)


def pair_panel(
    title: str,
    y: str,
    values: Tensor,
    says: str,
    *,
    steep: bool = True,
    x: str = "pair of channels",
) -> Points:
    """Values [H, pairs] of pairs of channels in their order; on a steep axis by their size, and NaN where there is none."""
    found = to_cpu(values)
    found = found.abs().where(found != 0, torch.nan) if steep else found
    places = torch.arange(found.shape[-1]) + 1
    groups = {head: (places, one) for head, one in label_heads(distinct(found)).items()}
    return Points(title=title, x=x, y=y, says=says, groups=groups, steep=steep)


def spread_panel(
    title: str, y: str, values: Tensor, tokens: Tokens, says: str, *, kind: str = "head"
) -> list[Panel]:
    """The mean and what shares of the tokens lie below, of values [1|B, n, H] of the last n tokens, padding left out.

    Nothing where no token is left.
    """
    found = drop_padding(values, tokens)  # [.., H]
    if not len(found):
        return []
    heads = torch.arange(found.shape[-1]) + 1
    marks = {
        "mean": found.mean(0),
        **{label: found.quantile(share, dim=0) for label, share in SHARES.items()},
    }
    groups = {label: (heads, mark) for label, mark in marks.items()}
    return [Points(title=title, x=kind, y=y, says=says, groups=groups)]


def half_life_panel(logs: Tensor, tokens: Tokens, says: str) -> list[Panel]:
    """log(1/2) over the mean of log gates [1|B, n, H]: the number of tokens that halve what passes them."""
    found = drop_padding(logs, tokens)
    return (
        [head_panel("Half-life", "tokens", math.log(0.5) / found.mean(0), says)]
        if len(found)
        else []
    )


def drop_padding(values: Tensor, tokens: Tokens) -> Tensor:
    """Of values [1|B, n, ..] of the last n tokens, those of tokens that are no padding, [.., ..]."""
    found, document = to_cpu(values), tokens.document
    if document is None:
        return found.flatten(0, 1)
    kept = document[:, document.shape[1] - found.shape[1] :].cpu() >= 0
    batch = max(len(found), len(kept))
    return found.expand(batch, *found.shape[1:])[kept.expand(batch, -1)]


def mean_over_pairs(values: Tensor, visible: Tensor) -> Tensor:
    """Means [H] of finite values [B, H, N, M] over the pairs that may attend, bool [1|B, 1, N, M]."""
    pairs = visible.expand_as(values)
    return (values * pairs).sum((0, 2, 3)) / pairs.sum((0, 2, 3)).clamp(min=1)


def mean_over_rows(values: Tensor, visible: Tensor) -> Tensor:
    """Means [H] of values [B, H, N] over the queries that see anything, given what they see, bool [1|B, 1, N, M]."""
    rows = visible.any(-1).expand_as(values)
    return (values * rows).sum((0, 2)) / rows.sum((0, 2)).clamp(min=1)


def row_norm_panel(title: str, table: Tensor, grid: Sequence[int], says: str) -> Panel:
    """The norm of each row of a table [tokens, D], along a text, over an image, or frame by frame."""
    norms = to_cpu(table).norm(dim=-1).view(*grid)
    unit = "norm of the row"
    if len(grid) == 1:
        places = torch.arange(len(norms))
        return Curves(
            title=title,
            x="place, in tokens",
            y=unit,
            says=says,
            places=places,
            lines={"all heads": norms},
        )
    x, y = "column of patches", "row of patches"
    if len(grid) == 2:
        return Heatmap(title=title, x=x, y=y, says=says, values=norms, unit=unit, signed=False)
    labels = tuple(f"frame {frame + 1}" for frame in range(len(norms)))
    return HeatmapGrid(title=title, x=x, y=y, says=says, values=norms, labels=labels, unit=unit)


FREQUENCIES = (
    "How far one token turns each pair of channels of queries and keys: fast pairs tell near places apart, slow ones far"
    " places; a pair that is not drawn tells none."
)
WAVES = (
    "Each point is a pair of channels: it turns fastest along the direction from the middle to the point, the faster the"
    " farther out; points on the axes tell rows or columns alone."
)


def token_spacing(encoding: Encoding, call: AttentionCall) -> Tensor:
    """How far a token is from the next along each axis [P], in the coordinates of an encoding.

    Coordinates that were given as such, by somebody who said no size, are taken to count tokens.
    """
    if call.keys.grid_size is None and encoding.dims.length is None:
        return torch.ones_like(call.keys.pos[0, 0])
    found, extent = (
        spacing(call.keys, encoding.coordinates, encoding.dims.length),  # type: ignore[arg-type]
        call.keys.grid_size,
    )
    if extent is None or found[..., 0].numel() == 1:
        return found[0, 0]
    longest = (
        extent.expand_as(found).prod(-1).argmax()
    )  # a class token beside documents is a document of its own
    return found.flatten(0, 1)[longest]


def frequency_panels(waves: Tensor, encoding: Encoding, call: AttentionCall) -> Panels:
    """Wave vectors [P, H, pairs], in radians per unit of the coordinates, as radians per token."""
    found = to_cpu(waves) * to_cpu(token_spacing(encoding, call))[:, None, None]
    if len(found) == 1:
        yield pair_panel("Frequencies of turns", "radians per token", found[0], FREQUENCIES)
        return
    if len(found) == 3:
        told = "How far one step in time turns each pair of channels; a pair that is not drawn does not tell steps apart."
        yield pair_panel("Turns along time", "radians per step", found[0], told)
    groups = {
        head: (one[1], one[0])
        for head, one in label_heads(distinct(found[-2:].transpose(0, 1))).items()
    }
    yield Points(
        title="Wave vectors of turns",
        x="radians per column",
        y="radians per row",
        says=WAVES,
        groups=groups,
        square=True,
    )


FARTHEST = 32  # patches that a pair is moved by


def angle_panels(skew: Tensor, encoding: Encoding, call: AttentionCall) -> Panels:
    """The turns of exp(A_a) for generators [P, H, m, b, b] that need not commute, along each axis by itself."""
    found = torch.linalg.eigvalsh(1j * to_cpu(skew))[..., -(skew.shape[-1] // 2) :].flatten(
        2
    )  # [P, H, pairs]
    found = (
        found.sort(dim=-1, descending=True).values
        * to_cpu(token_spacing(encoding, call))[:, None, None]
    )
    for axis, one in zip(AXES[len(found)], found, strict=True):
        told = f"How far one step turns each pair of channels, where steps go along {axis} alone: near and far places."
        yield pair_panel(
            f"Turns along {axis}", "radians per token", one, told, x="pair of channels, sorted"
        )


def commutator_norms(generators: Tensor) -> Tensor:
    """||[A, B]|| / (||A|| ||B||) in the Frobenius norm, the mean over pairs of n generators [n, H, m, b, b]: [H].

    A generator of a head has m blocks on its diagonal. 0 for generators that commute or are 0.
    """
    found = to_cpu(generators)
    norms = found.flatten(2).norm(dim=-1)  # [n, H]
    ratios = []
    for first, second in combinations(range(len(found)), 2):
        bracket = found[first] @ found[second] - found[second] @ found[first]
        size = norms[first] * norms[second]
        ratios.append(bracket.flatten(1).norm(dim=-1) / size.where(size > 0, 1))
    return torch.stack(ratios).mean(0)


def commutator_panel(generators: Tensor) -> Panel:
    """Of generators [P, H, m, b, b] of several axes."""
    told = "How far turning along one axis and then another differs from the other order: at 0 scores depend on offsets alone."
    return head_panel(
        "Commutators of axes", "|AB - BA| / (|A| |B|)", commutator_norms(generators), told
    )


def shift_changes(rotations: Callable[[Tensor], Tensor], shifts: Tensor, steps: Tensor) -> Tensor:
    """How far R(p)^T R(p + e) changes where p = 0 is moved by each of shifts [S, P], the mean over steps e [E, P]: [H, S].

    In the Frobenius norm, as a share of what two unrelated rotations are apart. `rotations` gives R [1, H, N, m, b, b] at
    coordinates [1, N, P].
    """
    places = torch.cat([torch.zeros_like(steps[:1]), steps])  # [1 + E, P]
    where = (shifts[:, None] + places).flatten(0, 1)[None]
    found = to_cpu(rotations(where))[0].unflatten(1, (len(shifts), -1))  # [H, S, 1 + E, m, b, b]
    met = found[:, :, :1].mT @ found[:, :, 1:]  # [H, S, E, m, b, b]
    apart = (met - met[:, :1]).flatten(3).norm(dim=-1)  # [H, S, E]
    return apart.mean(-1) / (2 * met.shape[-3] * met.shape[-1]) ** 0.5


def shift_change_panels(
    rotations: Callable[[Tensor], Tensor], encoding: Encoding, call: AttentionCall
) -> Panels:
    """A score's turn against how far both of its places are moved, as far as the tokens of the call reach."""
    one, pos = token_spacing(encoding, call), call.keys.pos.flatten(0, 1)
    reach = min(
        int(((pos.amax(0) - pos.amin(0)) / one).round().amin()), FARTHEST
    )  # patches from the first to the last
    if reach < 2:
        return
    counts = torch.arange(reach, device=one.device)
    found = shift_changes(rotations, counts[:, None] * one, one.diag())
    yield curve_panel(
        "Departure from relativity",
        "shift along every axis, in patches",
        "change, 1 for unrelated rotations",
        counts,
        found,
        "How much the turn between two neighbours changes when both are moved: a flat line at 0 tells that offsets alone"
        " count, a rising one that scores depend on where a pair stands.",
    )
