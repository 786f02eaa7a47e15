"""Panels that encodings show of themselves: values per head, frequencies, tables, commutators.

Every function takes a title, the names of the axes and `caption`, one sentence on how to read it.
"""

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

AXES = {1: ("text",), 2: ("rows", "columns"), 3: ("time", "rows", "columns")}
QUANTILES = {"10th percentile": 0.1, "median": 0.5, "90th percentile": 0.9}
MAX_SHIFT = 32  # patches that a pair is shifted by

FREQUENCIES_CAPTION = (
    "Rotation of each pair of channels by one token: fast pairs resolve short distances, slow pairs"
    " long ones; pairs that do not rotate are not drawn."
)
WAVES_CAPTION = (
    "Each point is a pair of channels: it rotates fastest along the direction from the origin to"
    " the point, and faster the farther out; points on an axis encode rows or columns alone."
)
SHIFT_CAPTION = (
    "Change of the rotation between two neighbours when both are shifted: a flat line at 0 means"
    " that only offsets matter, a rising one that scores depend on absolute positions."
)


def to_cpu(values: Tensor) -> Tensor:
    """Return detached values on the CPU, in at least float32."""
    return upcast(values.detach().cpu())


def head_panel(title: str, y: str, values: Tensor, caption: str, *, kind: str = "head") -> Bars:
    """Show a value for each head [H]."""
    bars = {head: float(value) for head, value in label_heads(to_cpu(values), kind).items()}
    return Bars(title=title, x=kind, y=y, caption=caption, values=bars)


def curve_panel(
    title: str, x: str, y: str, x_values: Tensor, lines: Tensor, caption: str
) -> Curves:
    """Show lines [H, N] over x values [N], or one line if all heads are alike."""
    lines_by_head = label_heads(distinct(to_cpu(lines)))
    return Curves(
        title=title, x=x, y=y, caption=caption, x_values=to_cpu(x_values), lines=lines_by_head
    )


def pair_panel(
    title: str,
    y: str,
    values: Tensor,
    caption: str,
    *,
    steep: bool = True,
    x: str = "pair of channels",
) -> Points:
    """Show values [H, pairs] in the order of the pairs.

    On a logarithmic axis (`steep`) magnitudes are shown, and zeros left out.
    """
    shown = to_cpu(values)
    if steep:
        shown = shown.abs().where(shown != 0, torch.nan)
    numbers = torch.arange(shown.shape[-1]) + 1
    groups = {head: (numbers, one) for head, one in label_heads(distinct(shown)).items()}
    return Points(title=title, x=x, y=y, caption=caption, groups=groups, steep=steep)


def spread_panel(
    title: str, y: str, values: Tensor, tokens: Tokens, caption: str, *, kind: str = "head"
) -> list[Panel]:
    """Show mean and quantiles of values [1|B, n, H] of the last n tokens, without padding."""
    shown = drop_padding(values, tokens)  # [.., H]
    if not len(shown):
        return []
    heads = torch.arange(shown.shape[-1]) + 1
    groups = {"mean": (heads, shown.mean(0))}
    for label, share in QUANTILES.items():
        groups[label] = heads, shown.quantile(share, dim=0)
    return [Points(title=title, x=kind, y=y, caption=caption, groups=groups)]


def half_life_panel(logs: Tensor, tokens: Tokens, caption: str) -> list[Panel]:
    """Show the number of tokens whose log gates [1|B, n, H] halve what passes them."""
    shown = drop_padding(logs, tokens)
    if not len(shown):
        return []
    return [head_panel("Half-life", "tokens", math.log(0.5) / shown.mean(0), caption)]


def drop_padding(values: Tensor, tokens: Tokens) -> Tensor:
    """Return values [1|B, n, ..] of the last n tokens, without those of padding, [.., ..]."""
    values, document = to_cpu(values), tokens.document
    if document is None:
        return values.flatten(0, 1)
    kept = document[:, document.shape[1] - values.shape[1] :].cpu() >= 0
    batch = max(len(values), len(kept))
    return values.expand(batch, *values.shape[1:])[kept.expand(batch, -1)]


def mean_over_pairs(values: Tensor, visible: Tensor) -> Tensor:
    """Return means [H] of values [B, H, N, M] over visible pairs, bool [1|B, 1, N, M]."""
    pairs = visible.expand_as(values)
    return (values * pairs).sum((0, 2, 3)) / pairs.sum((0, 2, 3)).clamp(min=1)


def mean_over_rows(values: Tensor, visible: Tensor) -> Tensor:
    """Return means [H] of values [B, H, N] over queries that see a key, bool [1|B, 1, N, M]."""
    rows = visible.any(-1).expand_as(values)
    return (values * rows).sum((0, 2)) / rows.sum((0, 2)).clamp(min=1)


def row_norm_panel(title: str, table: Tensor, grid: Sequence[int], caption: str) -> Panel:
    """Show the norm of each row of a table [tokens, D], along a text or over a grid."""
    norms, unit = to_cpu(table).norm(dim=-1).view(*grid), "norm of the row"
    if len(grid) == 1:
        lines = {"all heads": norms}
        index = torch.arange(len(norms))
        return Curves(
            title=title, x="position", y=unit, caption=caption, x_values=index, lines=lines
        )
    x, y = "column of patches", "row of patches"
    if len(grid) == 2:
        return Heatmap(
            title=title, x=x, y=y, caption=caption, values=norms, unit=unit, signed=False
        )
    labels = tuple(f"frame {frame + 1}" for frame in range(len(norms)))
    return HeatmapGrid(
        title=title, x=x, y=y, caption=caption, values=norms, labels=labels, unit=unit
    )


def token_spacing(encoding: Encoding, call: AttentionCall) -> Tensor:
    """Return the distance of neighbouring tokens along each axis [P], in coordinates.

    It is 1 if coordinates were given directly and no size is known.
    """
    size, length = call.keys.grid_size, encoding.dims.length
    if size is None and length is None:
        return torch.ones_like(call.keys.pos[0, 0])
    steps = spacing(call.keys, encoding.coordinates, length)  # type: ignore[arg-type]
    if size is None or steps[..., 0].numel() == 1:
        return steps[0, 0]
    # a class token beside documents is a document of its own: take the longest
    longest = size.expand_as(steps).prod(-1).argmax()
    return steps.flatten(0, 1)[longest]


def frequency_panels(wave_vectors: Tensor, encoding: Encoding, call: AttentionCall) -> Panels:
    """Show wave vectors [P, H, pairs], given in radians per unit of the coordinates."""
    waves = to_cpu(wave_vectors) * to_cpu(token_spacing(encoding, call))[:, None, None]
    if len(waves) == 1:
        unit = "radians per token"
        yield pair_panel("Rotation frequencies", unit, waves[0], FREQUENCIES_CAPTION)
        return
    if len(waves) == 3:
        caption = "Rotation of each pair by one frame; pairs that do not rotate are not drawn."
        yield pair_panel("Rotation along time", "radians per frame", waves[0], caption)
    heads = label_heads(distinct(waves[-2:].transpose(0, 1)))
    yield Points(
        title="Wave vectors",
        x="radians per column",
        y="radians per row",
        caption=WAVES_CAPTION,
        groups={head: (wave[1], wave[0]) for head, wave in heads.items()},
        square=True,
    )


def angle_panels(skew: Tensor, encoding: Encoding, call: AttentionCall) -> Panels:
    """Show the angles of exp(A_a) of generators [P, H, m, b, b], along each axis by itself."""
    pairs = skew.shape[-1] // 2
    angles = torch.linalg.eigvalsh(1j * to_cpu(skew))[..., -pairs:].flatten(2)  # [P, H, m pairs]
    angles = angles.sort(dim=-1, descending=True).values
    angles = angles * to_cpu(token_spacing(encoding, call))[:, None, None]
    for axis, values in zip(AXES[len(angles)], angles, strict=True):
        title, x = f"Rotation along {axis}", "pair of channels, sorted"
        caption = f"Rotation of each pair by one token along {axis}: fast pairs resolve short"
        caption = f"{caption} distances, slow pairs long ones."
        yield pair_panel(title, "radians per token", values, caption, x=x)


def commutator_norms(generators: Tensor) -> Tensor:
    """Return ||[A, B]|| / (||A|| ||B||), the mean over pairs of n generators: [H].

    Args:
        generators: Blocks on the diagonal of each generator, [n, H, m, b, b].

    Returns:
        Ratios of Frobenius norms; 0 for generators that commute or are 0.
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
    """Show the commutators of generators [P, H, m, b, b] of several axes."""
    caption = (
        "Difference between rotating along one axis and then another, and the other order: at 0"
        " scores depend on offsets alone."
    )
    norms = commutator_norms(generators)
    return head_panel("Commutators of axes", "|AB - BA| / (|A| |B|)", norms, caption)


def shift_changes(
    compute_rotation: Callable[[Tensor], Tensor], shifts: Tensor, steps: Tensor
) -> Tensor:
    """Return how far R(s)^T R(s + e) differs from R(0)^T R(e), the mean over steps e: [H, S].

    Args:
        compute_rotation: Returns R [1, H, N, m, b, b] at coordinates [1, N, P].
        shifts: Shifts s [S, P].
        steps: Steps e [E, P].

    Returns:
        Frobenius norms, relative to the distance of two unrelated rotations.
    """
    points = torch.cat([torch.zeros_like(steps[:1]), steps])  # [1 + E, P]
    pos = (shifts[:, None] + points).flatten(0, 1)[None]
    found = to_cpu(compute_rotation(pos))[0].unflatten(1, (len(shifts), -1))
    relative = found[:, :, :1].mT @ found[:, :, 1:]  # [H, S, E, m, b, b]
    change = (relative - relative[:, :1]).flatten(3).norm(dim=-1)  # [H, S, E]
    return change.mean(-1) / (2 * relative.shape[-3] * relative.shape[-1]) ** 0.5


def shift_change_panels(
    compute_rotation: Callable[[Tensor], Tensor], encoding: Encoding, call: AttentionCall
) -> Panels:
    """Show how rotations between neighbours change under shifts within the tokens of the call."""
    unit, pos = token_spacing(encoding, call), call.keys.pos.flatten(0, 1)
    extent = int(((pos.amax(0) - pos.amin(0)) / unit).round().amin())  # patches
    shifts = torch.arange(min(extent, MAX_SHIFT), device=unit.device)
    if len(shifts) < 2:
        return
    yield curve_panel(
        "Change under shifts",
        "shift along every axis, in patches",
        "change, 1 for unrelated rotations",
        shifts,
        shift_changes(compute_rotation, shifts[:, None] * unit, unit.diag()),
        SHIFT_CAPTION,
    )
