"""The pictures of docs/tour.md and tour.ipynb: `python examples/tour_pictures.py` writes them.

Each picture is one function. Values come from zoo, in float64 with fixed seeds, or from a recorded
measurement; they are rounded, so that the files are the same on all machines.
"""

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import zoo
from zoo.encodings.common.spectral_rotation import spectrum
from zoo.functional import embed, scores, weights
from zoo.reporting import charts
from zoo.reporting.panel import Bars, Curves, Heatmap, HeatmapGrid, Panel, Points
from zoo.reporting.style import Style

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "images" / "tour"
RECORD = ROOT / "docs" / "extend" / "extension.json"
if not RECORD.is_file():
    raise ImportError(f"{RECORD}: no such file; the pictures are drawn in a clone of the project")


def make(name, dims, **options):
    torch.manual_seed(0)
    return zoo.encoding(name, dims, **options).double().requires_grad_(False)


def place(count: int, start: float = 0.0) -> Tensor:
    """Return the coordinates [N, 1] of successive tokens."""
    return start + torch.arange(float(count), dtype=torch.float64)[:, None]


def place_grid(side: int) -> Tensor:
    """Return the coordinates [side^2, 2] of an image's patches."""
    return torch.cartesian_prod(*2 * [torch.arange(float(side), dtype=torch.float64)])


def draw_set() -> Panel:
    heads = torch.ones(1, 1, 32, 8, dtype=torch.float64)
    none = make("none", zoo.Dims(8, 1))
    lines = {
        name: weights(none, heads, heads, place(32), causal=causal)[0, 0, :, 0]
        for name, causal in (("without a mask", False), ("causal mask", True))
    }
    return Curves(
        title="Equal tokens without an encoding",
        x="position of the query",
        y="weight of the first key",
        x_values=place(32)[:, 0],
        lines=lines,
    )


def draw_sinusoids() -> Panel:
    table = embed(make("sinusoidal", zoo.Dims(64, 1)), torch.zeros(1, 64, 64).double(), place(64))
    return Heatmap(
        title="What sinusoidal adds to each token",
        x="channel",
        y="position",
        values=table[0],
        unit="value",
        signed=True,
    )


def draw_products() -> Panel:
    encoding = make("sinusoidal", zoo.Dims(64, 1))
    apart = torch.arange(-32.0, 33.0, dtype=torch.float64)
    middle = torch.eye(64, dtype=torch.float64)
    random = torch.randn(64, 64, generator=torch.Generator().manual_seed(1)).double() / 8

    def multiply(matrix: Tensor, start: float) -> Tensor:
        pos = torch.cat([torch.zeros(1).double(), apart])[:, None] + start
        waves = embed(encoding, torch.zeros(1, len(pos), 64).double(), pos)[0]
        return waves[1:] @ matrix @ waves[0] / 32

    lines = {"directly, at any position": multiply(middle, 50)}
    lines |= {f"projected, query at {n}": multiply(random, n) for n in (50, 100, 200)}
    return Curves(
        title="Products of the sinusoids of two positions",
        x="position of the key - position of the query",
        y="product / 32",
        x_values=apart,
        lines=lines,
    )


def draw_buckets() -> Panel:
    dims = zoo.Dims(64, 1)
    shaw, t5 = make("shaw", dims), make("t5", dims)
    classes = torch.arange(float(len(shaw.key)), dtype=torch.float64)
    shaw.key.copy_(classes[:, None].expand_as(shaw.key) / 8)
    t5.table.copy_(torch.arange(float(len(t5.table)))[:, None])
    q = torch.zeros(1, 1, 161, 64).double()
    one = q.index_fill(3, torch.tensor([0]), 64.0)
    seen = {
        "shaw, 16 distances": 16 - scores(shaw, one, q, place(161), causal=True)[0, 0, -1],
        "t5, 32 buckets to 128": scores(t5, q, q, place(161), causal=True)[0, 0, -1],
    }
    return Curves(
        title="Distances that an encoding tells apart",
        x="query position - key position, in tokens",
        y="number of the class",
        x_values=place(161)[:, 0],
        lines={name: row.flip(0) for name, row in seen.items()},
    )


def draw_biases() -> Panel:
    dims = zoo.Dims(64, 8)
    kerple = make("kerple", dims)
    kerple.log_scale.zero_()
    kerple.log_rate.zero_()
    zeros = torch.zeros(1, 8, 129, 8).double()
    lines = {}
    for label, encoding, head in (
        ("alibi, slope 1/16", make("alibi", dims), 3),
        ("alibi, slope 1/64", make("alibi", dims), 5),
        ("kerple, r = a = 1", kerple, 0),
        ("sandwich, head 4", make("sandwich", dims), 3),
    ):
        lines[label] = scores(encoding, zeros, zeros, place(129), causal=True)[0, head, -1].flip(0)
    return Curves(
        title="Biases",
        x="query position - key position, in tokens",
        y="added to the score",
        x_values=place(129)[:, 0],
        lines=lines,
    )


def draw_rope() -> Panel:
    lines = {}
    for channels in (8, 64):
        heads = torch.ones(1, 1, 701, channels).double() * channels**-0.25
        seen = scores(make("rope", zoo.Dims(channels, 1)), heads[:, :, :1], heads, place(701, -700))
        lines[f"{channels // 2} pairs of channels"] = seen[0, 0, 0].flip(0)
    return Curves(
        title="Scores of equal tokens under rope",
        x="distance, in tokens",
        y="score / score at distance 0",
        x_values=place(701)[:, 0],
        lines=lines,
    )


def draw_axes() -> Panel:
    dims = zoo.Dims(32, 1, axes=2, length=(15, 15))
    heads = torch.ones(1, 1, 225, 32).double() * 32**-0.25
    maps = [
        scores(make(name, dims), heads, heads, place_grid(15))[0, 0, 112].view(15, 15)
        for name in ("rope_axial", "rope_mixed")
    ]
    return HeatmapGrid(
        title="Scores of the centre with all, equal patches",
        x="column",
        y="row",
        values=torch.stack(maps),
        labels=("rope_axial", "rope_mixed"),
        unit="score",
        mark=(7, 7),
    )


def draw_shift() -> Panel:
    dims = zoo.Dims(64, 4, axes=2, length=(14, 14))
    q, k = torch.randn(2, 1, 4, 196, 16, generator=torch.Generator().manual_seed(0)).double()
    shifts = torch.linspace(0, 1, 21, dtype=torch.float64)
    grid = place_grid(14) / 14  # fractions of the image
    lines = {}
    for name in ("liere", "comrope_ld", "rope_mixed"):
        encoding = make(name, dims, **({} if name == "rope_mixed" else {"block": 8}))
        before = scores(encoding, q, k, grid)
        moved = [(scores(encoding, q, k, grid + by) - before).abs().mean() for by in shifts]
        lines[name] = torch.stack(moved)
    return Curves(
        title="Scores when all patches move along the diagonal",
        x="shift, as a fraction of the image",
        y="mean absolute change of a score",
        x_values=shifts,
        lines=lines,
    )


def draw_wave_vectors() -> Panel:
    dims = zoo.Dims(64, 1, axes=2, length=(14, 14))
    axial, mixed = make("rope_axial", dims), make("rope_mixed", dims)
    ap, ld = make("comrope_ap", dims), make("comrope_ld", dims)
    magnitudes = axial.base ** (-4 * torch.arange(16).double() / 64)
    zeros = torch.zeros(16).double()
    groups = {"rope_axial": (torch.cat([zeros, magnitudes]), torch.cat([magnitudes, zeros]))}
    groups["rope_mixed"] = (mixed.frequencies[0, 0], mixed.frequencies[1, 0])
    for name, encoding in (("comrope_ap", ap), ("comrope_ld", ld)):
        # radians per image, here per patch
        own = spectrum(encoding.generators - encoding.generators.mT)[0][0] / 14
        blocks = torch.arange(len(own))
        if encoding is ap:
            axes = torch.stack([blocks % 2 == 0, blocks % 2 == 1]).double()
        else:
            axes = ld.scales[:, 0]
        groups[name] = ((axes[0, :, None] * own).flatten(), (axes[1, :, None] * own).flatten())
    return Points(
        title="Wave vectors of a head, initial values",
        x="radians per row",
        y="radians per column",
        groups=groups,
        square=True,
    )


SENTENCES = (5, 12, 15, 22, 30)
"""Places of the full stops in a text of 32 tokens."""


def draw_context() -> Panel:
    stops = torch.zeros(32, dtype=torch.float64)
    stops[list(SENTENCES)] = 1.0
    # a gate is open at a full stop and closed elsewhere
    cope = make("cope", zoo.Dims(1, 1), max_positions=32)
    cope.table.copy_(torch.arange(32.0)[:, None])
    q, k = torch.ones(1, 1, 32, 1).double(), (40 * stops - 20)[None, None, :, None]
    fox = make("fox", zoo.Dims(2, 1))
    fox.gate.bias.fill_(20.0)
    at_stop = torch.tensor(math.exp(-1)).double().logit()
    fox.gate.weight.copy_(torch.stack([at_stop - 20.0, 0 * at_stop])[None])
    x = torch.stack([stops, 0 * stops], dim=1)[None]
    zeros = torch.zeros(1, 1, 32, 2).double()
    counted = scores(cope, q, k, place(32), causal=True)[0, 0, -1] - k[0, 0, :, 0]
    forgotten = -scores(fox, zeros, zeros, place(32), x=x, causal=True)[0, 0, -1]
    return Curves(
        title="How far back a key is, from token 31",
        x="position of the key; full stops at " + ", ".join(map(str, SENTENCES)),
        y="distance / 8, or number of full stops",
        x_values=place(32)[:, 0],
        lines={
            "tokens / 8": (31 - place(32)[:, 0]) / 8,
            "cope": counted,
            "fox, f = 1/e at a full stop": forgotten,
        },
    )


def draw_stretch() -> Panel:
    recorded = json.loads(RECORD.read_text())
    found = recorded["studies"]["lm_rope"]
    rules = {"none": "no rule", "ntk": "ntk", "yarn": "yarn", "truncate": "truncate"}
    lines = {
        label: torch.tensor(found[f"before {rule} 8"]["positions"]).double()
        for rule, label in rules.items()
    }
    count = len(lines["no rule"])
    return Curves(
        title="lm_rope, trained at 128 tokens, reads 1,024",
        x="position, in tokens",
        y="loss",
        x_values=(place(count)[:, 0] + 0.5) * 8 * found["length"] / count,
        lines=lines,
    )


class CountingCache(zoo.KeyValueCache):
    """A cache that counts the numbers that a layer keeps per token."""

    count = 0.0

    def extend(self, layer, k, v, tokens, *options, **more):
        kept = [k, v, *tokens.per_token.values()]
        self.count = sum(one.numel() for one in kept) / k.shape[2]
        return super().extend(layer, k, v, tokens, *options, **more)


def draw_cache() -> Panel:
    names = ("rope", "alibi", "t5", "shaw", "cope", "stickbreaking", "fox", "path", "pope")
    values = {}
    for name in names:
        cache = CountingCache()
        layer = zoo.Attention(zoo.Dims(64, 4, length=8), name, causal=True)
        layer(torch.randn(1, 8, 64), context=cache)
        values[name] = cache.count
    return Bars(
        title="Numbers that a layer keeps per token",
        x="encoding",
        y="numbers per token; 4 heads of 16 channels",
        values=values,
    )


PICTURES = {
    name.removeprefix("draw_"): found
    for name, found in dict(globals()).items()
    if name.startswith("draw_")
}


def draw(name: str) -> charts.Chart:
    """Return the chart of a step."""
    panel = PICTURES[name]()
    if isinstance(panel, Curves):
        lines = {label: line.double().round(decimals=4) for label, line in panel.lines.items()}
        panel = replace(panel, lines=lines)
    height = 300 if isinstance(panel, Points) else 220
    return charts.draw_panel(panel, Style(width=420, height=height))


def show(name: str) -> Any:
    """Return the picture of a step for a notebook."""
    from IPython.display import Image

    return Image(charts.to_png(charts.to_svg(draw(name)), scale=1.3))


def main(names: list[str], folder: Path = FOLDER) -> None:
    """Write the pictures of the named steps, or of all."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or PICTURES:
        charts.save_figure(draw(name), folder / f"{name}.svg")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("steps", nargs="*", metavar="step", help=", ".join(PICTURES))
    known = parser.parse_args()
    if unknown := set(known.steps) - set(PICTURES):
        parser.error(f"{unknown.pop()}: none of {', '.join(PICTURES)}")
    main(known.steps)
