"""A picture of what encodings do, measured through the protocol: none is asked for its name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch

from zoo.api import encoding, encoding_class
from zoo.attention import Dims
from zoo.attention.chain import Chain
from zoo.diagnostics.portrait import image, text
from zoo.diagnostics.portrait.probe import SEED, Probe, probe
from zoo.registry import Choice
from zoo.reporting.panel import Panel

SHOWN = {
    1: (64,),
    2: (15, 15),
    3: (1, 15, 15),
}  # tokens at most by the number of axes: of clips one frame
DIM, HEADS, DEPTH = 128, 4, 2  # of pictures, where nobody asks for other sizes
MOST = 4  # panels for one number of axes


@torch.no_grad()
def draw(choices: Sequence[Choice], path: Path, dims: Dims | None = None) -> None:
    """Write a PNG of what encodings do, in these sizes or in those of a text and of an image.

    Args:
        choices: Names and options of the encodings.
        path: The PNG file.
        dims: Sizes; by default a text and an image, as far as the encodings accept them.
    """
    import altair as alt

    from zoo.reporting import charts, render

    probes = [probed(choices, sizes) for sizes in ([dims] if dims else _usual(choices))]
    shown = [panel for one in probes for panel in islice(panels(one), MOST)]
    style = charts.Style(width=300, height=200)
    title = alt.Title(
        charts.clean(" + ".join(choice.name for choice in choices)),
        subtitle=_state(probes),
        anchor="start",
        fontSize=18,
        offset=8,
        color=style.palette.ink,
        subtitleColor=style.palette.quiet,
    )
    drawn = [charts.draw_panel(panel, style) for panel in shown]
    figure = alt.concat(*drawn, columns=2, spacing=30).resolve_scale(color="independent")
    render.save_figure(figure.properties(title=title), path, scale=1.5)


def _state(probes: Sequence[Probe]) -> str:
    """What the values are those of."""
    learned = any(True for one in probes for _ in one.chain.parameters())
    state = "parameters as they start" if learned else "nothing to learn"
    if any(one.moved for one in probes):
        state = "parameters at random, as what they start with hardly tells"
    return f"{probes[0].dims.heads} heads of {probes[0].dims.head_dim} channels, {state}"


def probed(choices: Sequence[Choice], dims: Dims) -> Probe:
    """A list of encodings, made with a fixed seed, and ready to be measured."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(SEED)
        made = Chain.of(encoding(choices, dims))
    causal = dims.axes == 1 and made.causal_only
    sizes = tuple(map(min, SHOWN[dims.axes], dims.sizes)) if dims.length else SHOWN[dims.axes]
    return probe(made, sizes, causal)


def panels(probe: Probe, *, masked: bool = True) -> Iterator[Panel]:
    """What there is to see, the most telling first; `masked` shows weights over a text behind a causal mask in any case."""
    return text.panels(probe, masked) if probe.dims.axes == 1 else image.panels(probe)


def _usual(choices: Sequence[Choice]) -> list[Dims]:
    """Sizes of a text and of an image; of a clip if neither is accepted."""
    accepted = set.intersection(*(set(encoding_class(choice.name).axes) for choice in choices))
    shown = sorted(accepted & {1, 2}) or sorted(accepted)[:1]
    return [Dims(DIM, HEADS, axes=axes, length=SHOWN[axes], depth=DEPTH) for axes in shown]
