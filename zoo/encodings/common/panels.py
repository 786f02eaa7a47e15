"""Panels about encodings: values per head, frequencies, tables, commutators.

Functions take a title, the names of the axes and a `caption`, one sentence on how to read the
panel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import combinations

import torch
from torch import Tensor

from zoo.attention import AttentionCall, Dims, Encoding, Tokens, upcast
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
MAX_SHIFT = 32  # largest shift of a pair, in patches

FREQUENCIES_CAPTION = (
    "Rotation of each pair of channels per {}: fast pairs resolve short distances, slow pairs"
    " long ones; pairs that do not rotate are not drawn."
)
WAVES_CAPTION = (
    "Each point is a pair of channels: it rotates fastest along the direction from the origin to"
    " the point, and faster the farther out; points on an axis encode only rows or only columns."
    " A vector and its opposite rotate alike: the one to the right is drawn."
)
SHIFT_CAPTION = (
    "Change of the rotation between two neighbours when both are shifted: a flat line at 0 means"
    " that only offsets matter, a rising one that scores depend on absolute positions."
)


def name_axes(dims: Dims) -> tuple[str, ...]:
    """Return the names of the axes of texts and grids; the numbers of those of points."""
    if dims.points:
        return tuple(f"axis {number + 1}" for number in range(dims.axes))
    return AXES[dims.axes]


def name_step(dims: Dims) -> str:
    """Return the unit of distances between tokens, or between points."""
    return "unit of the data" if dims.points else "token"


def to_cpu(values: Tensor) -> Tensor:
    """Return detached values on the CPU, in at least float32."""
    return upcast(values.detach().cpu())


def head_panel(title: str, y: str, values: Tensor, caption: str, *, kind: str = "head") -> Bars:
    """Make a panel of one value per head [H]."""
    bars = {head: float(value) for head, value in label_heads(to_cpu(values), kind).items()}
    return Bars(title=title, x=kind, y=y, caption=caption, values=bars)


def curve_panel(
    title: str, x: str, y: str, x_values: Tensor, lines: Tensor, caption: str
) -> Curves:
    """Make a panel of lines [H, N] over x values [N], or of one line if all heads are equal."""
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
    """Make a panel of values [H, pairs] in the order of the pairs.

    A logarithmic axis (`steep`) shows magnitudes and omits zeros.
    """
    shown = to_cpu(values)
    if steep:
        shown = shown.abs().where(shown != 0, torch.nan)
    numbers = torch.arange(shown.shape[-1]) + 1
    groups = {head: (numbers, row) for head, row in label_heads(distinct(shown)).items()}
    return Points(title=title, x=x, y=y, caption=caption, groups=groups, steep=steep)


def spread_panel(
    title: str, y: str, values: Tensor, tokens: Tokens, caption: str, *, kind: str = "head"
) -> list[Panel]:
    """Make a panel of the mean and quantiles of values [1|B, n, H] over the last n tokens.

    Padding is excluded. Without tokens there is no panel.
    """
    shown = drop_padding(values, tokens)  # [.., H]
    if not len(shown):
        return []
    heads = torch.arange(shown.shape[-1]) + 1
    groups = {"mean": (heads, shown.mean(0))}
    for label, share in QUANTILES.items():
        groups[label] = heads, shown.quantile(share, dim=0)
    return [Points(title=title, x=kind, y=y, caption=caption, groups=groups)]


def half_life_panel(logs: Tensor, tokens: Tokens, caption: str) -> list[Panel]:
    """Make a panel of the number of tokens after which log gates [1|B, n, H] leave one half."""
    shown = drop_padding(logs, tokens)
    if not len(shown):
        return []
    return [head_panel("Half-life", "tokens", math.log(0.5) / shown.mean(0), caption)]


def drop_padding(values: Tensor, tokens: Tokens) -> Tensor:
    """Return values [1|B, n, ..] of the last n tokens without padding, [tokens, ..]."""
    values, document = to_cpu(values), tokens.document
    if document is None:
        return values.flatten(0, 1)
    is_real = document[:, document.shape[1] - values.shape[1] :].cpu() >= 0
    batch = max(len(values), len(is_real))
    return values.expand(batch, *values.shape[1:])[is_real.expand(batch, -1)]


def mean_over_pairs(values: Tensor, visible: Tensor) -> Tensor:
    """Return means [H] of values [B, H, N, M] over visible pairs, bool [1|B, 1, N, M]."""
    pairs = visible.expand_as(values)
    return (values * pairs).sum((0, 2, 3)) / pairs.sum((0, 2, 3)).clamp(min=1)


def mean_over_rows(values: Tensor, visible: Tensor) -> Tensor:
    """Return means [H] of values [B, H, N] over queries with a visible key.

    `visible` is the attention mask, bool [1|B, 1, N, M].
    """
    rows = visible.any(-1).expand_as(values)
    return (values * rows).sum((0, 2)) / rows.sum((0, 2)).clamp(min=1)


def row_norm_panel(title: str, table: Tensor, grid: Sequence[int], caption: str) -> Panel:
    """Make a panel of the norm of each row of a table [tokens, D], along a sequence or a grid."""
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
    """Return the distance of neighbouring tokens along each axis [P], in units of coordinates.

    It is 1 if coordinates were given directly and no size is known.
    """
    size, length = call.keys.grid_size, encoding.dims.length
    if size is None and length is None:
        return torch.ones_like(call.keys.pos[0, 0])
    steps = spacing(call.keys, encoding.coordinates, length)  # type: ignore[arg-type]
    if size is None or steps[..., 0].numel() == 1:
        return steps[0, 0]
    # A CLS token next to documents counts as a document of its own: take the longest document.
    sizes, valid = size.expand_as(steps).prod(-1), call.keys.valid
    if valid is not None and valid.shape == sizes.shape:
        # The size of padding is the amount of it, which may exceed that of the documents.
        sizes = sizes.masked_fill(~valid, 0)
    longest = sizes.argmax()
    return steps.flatten(0, 1)[longest]


def frequency_panels(wave_vectors: Tensor, encoding: Encoding, call: AttentionCall) -> Panels:
    """Yield panels of wave vectors [P, H, pairs], given in radians per unit of the coordinates."""
    waves = to_cpu(wave_vectors) * to_cpu(token_spacing(encoding, call))[:, None, None]
    if encoding.dims.points:
        for axis, values in zip(name_axes(encoding.dims), waves, strict=True):
            step = name_step(encoding.dims)
            caption, title = FREQUENCIES_CAPTION.format(step), f"Rotation along {axis}"
            yield pair_panel(title, f"radians per {step}", values, caption)
        return
    if len(waves) == 1:
        unit = "radians per token"
        yield pair_panel(
            "Rotation frequencies", unit, waves[0], FREQUENCIES_CAPTION.format("token")
        )
        return
    # the first axis of videos is time, which has a panel of its own
    if len(waves) == 3:
        caption = "Rotation of each pair per frame; pairs that do not rotate are not drawn."
        yield pair_panel("Rotation along time", "radians per frame", waves[0], caption)
    # a vector and its opposite rotate alike, but for the order of the two channels
    down, across = waves[-2:]
    is_opposite = (across < 0) | ((across == 0) & (down < 0))
    signs = torch.where(is_opposite, -1.0, 1.0)
    heads = label_heads(distinct(torch.stack([signs * down, signs * across], dim=1)))
    yield Points(
        title="Wave vectors",
        x="radians per column",
        y="radians per row",
        caption=WAVES_CAPTION,
        groups={head: (wave[1], wave[0]) for head, wave in heads.items()},
        square=True,
    )


def angle_panels(skew: Tensor, encoding: Encoding, call: AttentionCall) -> Panels:
    """Yield panels of the angles of exp(A_a) for generators [P, H, m, b, b], one for each axis."""
    # i A is Hermitian with eigenvalues +-w, the angles of exp(A) in its invariant planes.
    pairs = skew.shape[-1] // 2
    angles = torch.linalg.eigvalsh(1j * to_cpu(skew))[..., -pairs:].flatten(2)  # [P, H, m pairs]
    angles = angles.sort(dim=-1, descending=True).values
    angles = angles * to_cpu(token_spacing(encoding, call))[:, None, None]
    step = name_step(encoding.dims)
    for axis, values in zip(name_axes(encoding.dims), angles, strict=True):
        title, x = f"Rotation along {axis}", "pair of channels, sorted"
        caption = f"Rotation of each pair per {step} along {axis}: fast pairs resolve short"
        caption = f"{caption} distances, slow pairs long ones."
        yield pair_panel(title, f"radians per {step}", values, caption, x=x)


def commutator_norms(generators: Tensor) -> Tensor:
    """Return ||[A, B]|| / (||A|| ||B||), averaged over pairs of n generators, [H].

    Args:
        generators: Blocks on the diagonal of each generator, [n, H, m, b, b].

    Returns:
        Ratios of Frobenius norms; 0 for generators that commute or are 0.
    """
    matrices = to_cpu(generators)
    norms = matrices.flatten(2).norm(dim=-1)  # [n, H]
    ratios = []
    for first, second in combinations(range(len(matrices)), 2):
        bracket = matrices[first] @ matrices[second] - matrices[second] @ matrices[first]
        size = norms[first] * norms[second]
        ratios.append(bracket.flatten(1).norm(dim=-1) / size.where(size > 0, 1))
    return torch.stack(ratios).mean(0)


def commutator_panel(generators: Tensor) -> Panel:
    """Make a panel of the commutators of generators [P, H, m, b, b] of several axes."""
    caption = (
        "Difference between rotating along one axis and then another, and the other order: at 0"
        " scores depend only on offsets."
    )
    norms = commutator_norms(generators)
    return head_panel("Commutators of axes", "|AB - BA| / (|A| |B|)", norms, caption)


def shift_changes(
    compute_rotation: Callable[[Tensor], Tensor], shifts: Tensor, steps: Tensor
) -> Tensor:
    """Return how far R(s)^T R(s + e) differs from R(0)^T R(e), averaged over steps e.

    Args:
        compute_rotation: Returns R [1, H, N, m, b, b] at coordinates [1, N, P].
        shifts: Shifts s [S, P].
        steps: Steps e [E, P].

    Returns:
        Frobenius norms [H, S], relative to the distance of two unrelated rotations.
    """
    # Two unrelated rotations R, R' of dimension n have E |R - R'|^2 = 2 n.
    points = torch.cat([torch.zeros_like(steps[:1]), steps])  # [1 + E, P]
    pos = (shifts[:, None] + points).flatten(0, 1)[None]
    rotations = to_cpu(compute_rotation(pos))[0].unflatten(1, (len(shifts), -1))
    relative = rotations[:, :, :1].mT @ rotations[:, :, 1:]  # [H, S, E, m, b, b]
    change = (relative - relative[:, :1]).flatten(3).norm(dim=-1)  # [H, S, E]
    return change.mean(-1) / (2 * relative.shape[-3] * relative.shape[-1]) ** 0.5


def shift_change_panels(
    compute_rotation: Callable[[Tensor], Tensor], encoding: Encoding, call: AttentionCall
) -> Panels:
    """Yield a panel of how rotations between neighbours change if both are shifted."""
    unit, pos = token_spacing(encoding, call), call.keys.pos.flatten(0, 1)
    extent = int(((pos.amax(0) - pos.amin(0)) / unit).round().amin())  # patches
    shifts = torch.arange(min(extent, MAX_SHIFT), device=unit.device)
    if len(shifts) < 2:
        return
    step = "units of the data" if encoding.dims.points else "patches"
    yield curve_panel(
        "Change under shifts",
        f"shift along every axis, in {step}",
        "change, 1 for unrelated rotations",
        shifts,
        shift_changes(compute_rotation, shifts[:, None] * unit, unit.diag()),
        SHIFT_CAPTION,
    )
