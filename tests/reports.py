"""Reports made up for tests of the page, with heads that look somewhere and with words that would break a careless page."""

import math
import pickle
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from zoo.diagnosis.report import (
    Attended,
    Control,
    DiagnosedRun,
    LayerMeasures,
    Measure,
    Report,
    Sample,
    SegmentedImage,
    compare_layers,
)
from zoo.reporting import render
from zoo.reporting.panel import Bars, Curves, Heatmap, HeatmapGrid, Points

HOSTILE = (
    "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> "
    "& \"quoted\" 'too' \u2028\u2029 \x00\ud800 ${x} $title"
)
SETTLED = "() => new Promise(done => setTimeout(() => requestAnimationFrame(done), 120))"  # small maps come a little later
TEXT = "def area(radius):\n    return 3.14 * radius ** 2\n\n\nprint(area(2.0), 'is <b>not</b> bold & so')\n\tand on it goes"


def looking(sides, extra, layers, heads, causal=False):
    """Weights [L, H, M, M] of heads that look at an offset, at an extra token, or all about."""
    places = (
        torch.cartesian_prod(*(torch.arange(side) for side in sides))
        .reshape(-1, len(sides))
        .double()
    )
    apart = places[None] - places[:, None]  # [M, M, P]
    keys = len(places) + extra
    scores = torch.zeros(layers, heads, keys, keys, dtype=torch.float64)
    for layer in range(layers):
        for head in range(heads):
            to = torch.tensor(
                [math.cos(head + axis) * (1 + layer) * 0.8 for axis in range(len(sides))]
            )
            scores[layer, head, extra:, extra:] = -(apart - to).square().sum(-1) / (
                1 + layer + head
            )
            scores[layer, head, :, :extra] = head - 2.0
    scores += 0.7 * torch.randn(scores.shape, generator=torch.Generator().manual_seed(0)).double()
    if causal:
        scores = scores.masked_fill(torch.ones(keys, keys).triu(1).bool(), -math.inf)
    return scores.softmax(-1).float()


def make_attended(sides, extra, samples, layers=3, heads=4, causal=False):
    weights = torch.stack([looking(sides, len(extra), layers, heads, causal)] * len(samples))
    keys = weights.shape[-1]
    rollout = weights.mean((1, 2))
    return Attended(
        samples=samples,
        grid=sides,
        extra=extra,
        layers=tuple(range(layers)),
        queries=tuple(range(keys)),
        weights=weights,
        rollout=rollout,
    )


def draw(height, width, turn=0.0):
    """A picture [height, width, 3] of a ring."""
    y, x = torch.meshgrid(
        torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij"
    )
    ring = (-((x - turn).square() + y.square() - 0.4).square() * 12).exp()
    return (torch.stack([ring, ring * 0.8, 0.3 + 0.5 * ring], -1) * 255).to(torch.uint8)


def training(shift=0.0, steps=700):
    step = torch.arange(1, steps + 1) * 5
    noise = torch.randn(steps, generator=torch.Generator().manual_seed(1)) * 0.08
    loss = 2.2 * (-step / 700).exp() + 0.25 + shift + noise * (-step / 2000).exp()
    epochs = step[49::50]
    accuracy = (0.97 - shift) * (1 - (-epochs / 500).exp())
    return (
        Curves(
            title="Loss",
            x="step",
            y="loss, nats",
            caption="Falls fast, then slowly.",
            x_values=step,
            lines={"train": loss},
        ),
        Curves(
            title="Accuracy",
            x="step",
            y="accuracy",
            caption="Rises.",
            x_values=epochs,
            lines={"val": accuracy},
        ),
    )


def measures(layers, heads, unit):
    rows, columns = torch.arange(layers)[:, None], torch.arange(heads)[None]
    entropy = 1.2 + 0.4 * rows + 0.2 * (columns * 7 % 5)
    holed = entropy.clone()
    holed[0, 0] = math.nan
    return (
        Measure(
            name="entropy",
            title="Entropy",
            unit="nats",
            caption="Low where a head looks at few.",
            values=entropy,
        ),
        Measure(
            name="distance",
            title="Mean distance",
            unit=unit,
            caption="Near heads are pale.",
            values=holed * 1.3,
        ),
        Measure(
            name="similarity",
            title="Likeness of heads",
            unit="cosine",
            caption="Blue heads differ from the others.",
            values=torch.sin(rows * 1.7 + columns.double()),
        ),
        Measure(
            name="first",
            title="Mass on the first token",
            unit="share",
            caption="",
            values=0.002 * rows * columns + 1e-5,
        ),
    )


def encodings(heads=4):
    offsets = torch.arange(-31, 32)
    slopes = {f"head {head + 1}": -offsets.abs() * 2.0**-head / 8 for head in range(heads)}
    rows, columns = torch.meshgrid(torch.arange(-7.0, 8), torch.arange(-7.0, 8), indexing="ij")
    hills = torch.stack(
        [torch.cos(rows * (1 + head) / 3) * torch.cos(columns / 2) for head in range(heads)]
    )
    pairs = torch.arange(16) + 1
    angles = 100.0 ** -(pairs.double() / 16)
    table = torch.sin(torch.arange(64)[:, None] * torch.logspace(0, -2, 48)[None])
    labels = tuple(f"head {head + 1}" for head in range(heads))
    band = (-offsets.abs() * 0.14 - 0.4, -offsets.abs() * 0.11 + 0.3)
    gates = {label: 0.4 + 0.15 * number for number, label in enumerate(labels)}
    kept = hills[0].where(rows + columns > -12, math.nan)
    return (
        Curves(
            title="Bias on scores",
            x="offset, in tokens",
            y="added to the score",
            caption="Falls off.",
            x_values=offsets,
            lines=slopes,
            band=band,
        ),
        Points(
            title="Turn of each pair",
            x="pair, sorted",
            y="radians per token",
            caption="Slow pairs tell far from near.",
            steep=True,
            groups={"all heads": (pairs, angles)},
            note="2 of 16 pairs stay",
        ),
        Points(
            title="Wave vectors",
            x="radians per column",
            y="radians per row",
            caption="Off the axes.",
            square=True,
            groups={
                label: (angles * math.cos(n + 1), angles * math.sin(n + 1))
                for n, label in enumerate(labels)
            },
        ),
        Heatmap(
            title="Bias around a patch",
            x="columns away",
            y="rows away",
            caption="Bright rings.",
            values=kept,
            unit="added to the score",
            signed=True,
            mark=(0, 0),
            corner=(-7, -7),
        ),
        Heatmap(
            title="Table",
            x="channel",
            y="place",
            caption="",
            values=table,
            unit="value",
            signed=True,
        ),
        HeatmapGrid(
            title="Bias by head",
            x="columns away",
            y="rows away",
            caption="Each head its own.",
            values=hills,
            labels=labels,
            unit="added to the score",
            mark=(0, 0),
            corner=(-7, -7),
        ),
        Bars(
            title="Mean gate",
            x="head",
            y="share kept",
            caption="Open gates remember.",
            values={**gates, "nobody": math.nan},
        ),
    )


def profiles(layers, axes, unit):
    caption = "How much each head looks at what lies how far away."
    if axes == 1:
        offsets = torch.arange(0, 64)
        return tuple(
            Curves(
                title=f"layer {layer}",
                x=f"offset, in {unit}",
                y="mean weight",
                caption=caption,
                x_values=offsets,
                lines={
                    f"head {head + 1}": (-(offsets - 3 * head).square() / (8.0 + layer)).exp()
                    for head in range(4)
                },
            )
            for layer in range(layers)
        )
    rows, columns = torch.meshgrid(torch.arange(-7.0, 8), torch.arange(-7.0, 8), indexing="ij")
    hills = [
        torch.stack(
            [(-((rows - head) ** 2 + (columns + layer) ** 2) / 6).exp() for head in range(4)]
        )
        for layer in range(layers)
    ]
    return tuple(
        HeatmapGrid(
            title=f"layer {layer}",
            x="columns to the right",
            y="rows down",
            caption=caption,
            values=hill,
            unit="mean weight",
            labels=("head 1", "head 2", "head 3", "head 4"),
            corner=(-7, -7),
            mark=(0, 0),
        )
        for layer, hill in enumerate(hills)
    )


def controls(first, second):
    shares = {"unchanged": 1.0, "shuffled": 0.21, "shifted": 0.99, "zeroed": 0.15}
    measured = (
        Control(name=name, metrics={"test/accuracy": first * by, "test/loss": second / by})
        for name, by in shares.items()
    )
    return (
        *measured,
        Control(name="reversed", metrics={}, refused="places of a causal model ascend"),
    )


def compute_measures(attentions, content, shifted):
    """All measures of captured layers, those that compare layers with others among them."""
    measures = LayerMeasures()
    for attention in attentions:
        measures.add(attention)
    return (*measures.list_measures(), *compare_layers(attentions, content, shifted))


def run(
    name, seen, unit, *, encoding=("rope_axial",), recipe="seed: 0\n", layers=3, heads=4, shift=0.0
):
    sizes = torch.tensor([8, 12, 16, 24, 32])
    return DiagnosedRun(
        name=name,
        checkpoint=f"runs/{name}/latest/checkpoints/best.ckpt",
        recipe=recipe,
        encoding=encoding,
        unit=unit,
        facts={
            "model": "vit, 1.2 M parameters",
            "data": "digits",
            "trained": "3500 steps, 20 epochs",
        },
        metrics={"test/accuracy": 0.97222 - shift, "test/loss": 0.1143 + shift},
        training=training(shift),
        measures=measures(layers, heads, unit),
        profiles=profiles(layers, len(seen.grid) if seen else 1, unit),
        attended=seen,
        encodings=encodings(),
        controls=controls(0.97222 - shift, 0.1143 + shift),
        extrapolation=(
            Curves(
                title="Accuracy by size",
                x=f"{unit} on a side",
                y="accuracy",
                caption="Falls beyond 8.",
                x_values=sizes,
                lines={"test": (0.97 - shift) * (-(sizes - 8) / 60).exp()},
            ),
        ),
    )


def report(*runs):
    return Report(version="0.4.0", made="2026-01-02 03:04 UTC", runs=runs)


def image_run(name="vit_rope", **options):
    samples = tuple(Sample(title=f"a ring, {n}", pictures=(draw(8, 8, n / 4),)) for n in range(3))
    found = run(name, make_attended((8, 8), ("class",), samples), "patches", **options)
    mask = torch.eye(8, dtype=torch.long) - 100 * torch.eye(8, dtype=torch.long).roll(1, 0)
    one = SegmentedImage(
        title=HOSTILE, picture=draw(8, 8, 0.5), mask=mask, predicted=torch.ones_like(mask)
    )
    ious = {"ground": 0.5, HOSTILE: 0.0}
    return replace(found, segmented=(one,), classes=("ground", HOSTILE), class_ious=ious)


def text_run(name="lm", **options):
    tokens = (*(TEXT * 2)[:126], "    ", HOSTILE)
    samples = (Sample(title="python", tokens=tokens), Sample(title=HOSTILE, tokens=tokens[::-1]))
    return run(name, make_attended((128,), (), samples, causal=True), "tokens", **options)


def make_long_sample(tokens=1200):
    """A long text from right to left, with letters that have no width."""
    words = (*"שלום", "\u0301", "\u200b", " ")
    sample = Sample(title="hello", tokens=(words * tokens)[:tokens])
    queries = (0, 1, 2, 3, *range(12, tokens, 12), tokens - 1)
    weights = torch.eye(tokens)[list(queries)][None, None, None]
    seen = Attended(
        samples=(sample,),
        grid=(tokens,),
        extra=(),
        layers=(0,),
        queries=queries,
        weights=weights,
        rollout=None,
    )
    return report(run("written", seen, "tokens", layers=1, heads=1))


def clip_run(name="clips"):
    sample = Sample(
        title="a moving ring", pictures=tuple(draw(24, 24, n / 6 - 0.3) for n in range(4))
    )
    return run(name, make_attended((4, 6, 6), ("class", "register"), (sample,)), "patches")


def hostile():
    """Every string of a report set to one that would break a page."""
    recipe = f"name: {HOSTILE}\n# </pre></details>\n"
    hostile_run = text_run(HOSTILE, encoding=(HOSTILE,), recipe=recipe)
    return report(hostile_run)


def every():
    """{name: report}"""
    recipes = [
        f"seed: 0\nmodel:\n  name: vit\n  encoding: {name}\n  dim: 64\n"
        for name in ("rope_axial", "learned")
    ]
    pair = (
        image_run("vit_rope", recipe=recipes[0]),
        image_run("vit_learned", recipe=recipes[1], encoding=("learned",), shift=0.04),
    )
    return {
        "image": report(image_run(recipe=recipes[0])),
        "text": report(text_run(encoding=("alibi", "dape"))),
        "clip": report(clip_run()),
        "pair": report(*pair),
        "hostile": hostile(),
    }


def large(layers=12, heads=12, side=14, samples=4):
    """12 layers of 12 heads that look at 196 patches and a class token, on photographs."""
    keys = side * side + 1
    weights = torch.rand(samples, layers, heads, keys, keys).softmax(-1)
    pictures = tuple(
        Sample(title=str(n), pictures=(draw(224, 224, n / 4),)) for n in range(samples)
    )
    seen = Attended(
        samples=pictures,
        grid=(side, side),
        extra=("class",),
        layers=tuple(range(layers)),
        queries=tuple(range(keys)),
        weights=weights,
        rollout=weights.mean((1, 2)),
    )
    return report(run("vit_base", seen, "patches", layers=layers, heads=heads))


@contextmanager
def draw_panels_once():
    """Draw equal panels once: pages of tests have most of theirs in common."""
    draw_panel, drawings = render.draw_for_page, {}

    def draw_once(panel):
        key = pickle.dumps(panel)
        if key not in drawings:
            drawings[key] = draw_panel(panel)
        return drawings[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(render, "draw_for_page", draw_once)
        yield
