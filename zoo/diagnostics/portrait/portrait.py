"""Pictures of encodings, measured through the protocol without knowing which encoding it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch

from zoo.attention import Dims
from zoo.attention.chain import Chain, encoding, encoding_class
from zoo.diagnostics.portrait.image_panels import collect_image_panels
from zoo.diagnostics.portrait.probe import SEED, EncodingProbe, build_probe
from zoo.diagnostics.portrait.text_panels import collect_text_panels
from zoo.options import Choice
from zoo.packages import explain_imports
from zoo.reporting.panel import Panel

# Largest grid of tokens by number of axes; one frame of a clip.
MAX_SIZES = {1: (64,), 2: (15, 15), 3: (1, 15, 15)}
DIM, HEADS, DEPTH = 128, 4, 2  # default sizes of a picture
MAX_PANELS = 4  # largest number of panels for one number of axes


@torch.no_grad()
def draw_portrait(choices: Sequence[Choice], path: Path, dims: Dims | None = None) -> None:
    """Write a PNG that shows the effect of encodings.

    Args:
        choices: Names and options of the encodings.
        path: The PNG file.
        dims: Sizes. None: default sizes for text and for images, if the encodings accept them.
    """
    with explain_imports():
        import altair as alt

        from zoo.reporting import charts
        from zoo.reporting.style import Style, clean

    probes = [probe_encodings(choices, sizes) for sizes in ([dims] if dims else _usual(choices))]
    panels = [panel for probe in probes for panel in islice(collect_panels(probe), MAX_PANELS)]
    style = Style(width=300, height=200)
    title = alt.Title(
        clean(" + ".join(choice.name for choice in choices)),
        subtitle=_describe(probes),
        anchor="start",
        fontSize=18,
        offset=8,
        color=style.palette.ink,
        subtitleColor=style.palette.quiet,
    )
    drawn = [charts.draw_panel(panel, style) for panel in panels]
    figure = alt.concat(*drawn, columns=2, spacing=30).resolve_scale(color="independent")
    charts.save_figure(figure.properties(title=title), path, scale=1.5)


def probe_encodings(choices: Sequence[Choice], dims: Dims) -> EncodingProbe:
    """Build a list of encodings with a fixed seed, and return a probe of it."""
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(SEED)
        chain = Chain.of(encoding(choices, dims))
    is_causal = dims.axes == 1 and chain.causal_only
    most = MAX_SIZES[dims.axes]
    sizes = tuple(map(min, most, dims.sizes)) if dims.length else most
    return build_probe(chain, sizes, is_causal)


def collect_panels(probe: EncodingProbe, *, masked: bool = True) -> Iterator[Panel]:
    """Yield the panels of an encoding, the most informative first.

    Args:
        probe: The encoding.
        masked: Show weights of text under a causal mask, even if the encoding needs none.
    """
    if probe.dims.axes == 1:
        return collect_text_panels(probe, masked)
    return collect_image_panels(probe)


def _describe(probes: Sequence[EncodingProbe]) -> str:
    """Return the sizes of the heads and the state of the parameters as text."""
    has_parameters = any(any(True for _ in probe.chain.parameters()) for probe in probes)
    state = "initial parameters" if has_parameters else "no parameters"
    if any(probe.moved for probe in probes):
        state = "random parameters, since the initial ones have almost no effect"
    return f"{probes[0].dims.heads} heads of {probes[0].dims.head_dim} channels, {state}"


def _usual(choices: Sequence[Choice]) -> list[Dims]:
    """Return sizes for text and for images, or for clips if neither is accepted."""
    accepted = set.intersection(*(set(encoding_class(choice.name).axes) for choice in choices))
    shown = sorted(accepted & {1, 2}) or sorted(accepted)[:1]
    return [Dims(DIM, HEADS, axes=axes, length=MAX_SIZES[axes], depth=DEPTH) for axes in shown]
