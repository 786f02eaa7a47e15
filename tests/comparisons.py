"""Made-up comparisons for tests of what is written of them."""

from __future__ import annotations

import json
import random
import subprocess
from dataclasses import replace
from pathlib import Path

from zoo.comparison.plan import ComparisonPlan, list_changes
from zoo.comparison.record import CellRecord, Environment, hash_recipe
from zoo.comparison.record_file import CELLS_FILE, read_cells, write_cells
from zoo.comparison.results import Axis, CellMeasurement, Comparison, ComparisonCell, Flag, Variant
from zoo.run.conditions import TRAINED, Condition

IMAGE, TEXT = Condition(TRAINED, "trained", (16, 16)), Condition(TRAINED, "trained", (128,))


def read_lasting(folder):
    """Return results.json without time, memory and what names folder, machine or moment."""
    found = json.loads(Path(folder, "results.json").read_text())
    for key in ("created", "command", "machine", "equal_compute"):
        del found[key]
    for variant in found["variants"]:
        for cell in variant["cells"]:
            for key in ("minutes", "step_seconds", "peak_memory"):
                del cell[key]
    return found


def plant_cells(folder, levels, studies):
    """Write the tested cells of the first studies, as if they had been trained: {variant: accuracy}."""
    plan = ComparisonPlan.read(Path(folder))
    draw = random.Random(0)
    for cell in plan.cells:
        if cell.study >= studies:
            continue
        # the first trial of each study is the best one
        value = levels[cell.variant] + draw.gauss(0, 0.003) - 0.1 * cell.trial
        test = {"test/accuracy": value, "test/loss": 1 - value}
        record = CellRecord(
            name=cell.name,
            variant=cell.variant,
            seed=cell.seed,
            study=cell.study,
            trial=cell.trial,
            settings=list_changes(plan.base, cell.recipe),
            recipe=hash_recipe(plan, cell),
            start="0" * 64,
            environment=Environment(devices={"processor": "a processor"}),
            value=value,
            criterion="val/accuracy",
            mode="max",
            test={} if cell.trial else test,
        )
        write_cells(Path(folder), [record])


def plant_records(folder, minutes, steps):
    """Write all cells of a comparison, as if each had taken so many minutes and steps."""
    plan = ComparisonPlan.read(Path(folder))
    records = [
        CellRecord(
            name=cell.name,
            variant=cell.variant,
            seed=cell.seed,
            settings=list_changes(plan.base, cell.recipe),
            recipe=hash_recipe(plan, cell),
            start="0" * 64,
            minutes=minutes,
            planned_steps=steps,
        )
        for cell in plan.cells
    ]
    write_cells(Path(folder), records)


def read_cell(folder, name):
    """Return the record of a finished cell, and fail if it was changed."""
    cell = read_cells(Path(folder))[name]
    assert not cell.is_refused, cell.error
    return cell


def edit_cell(folder, name, **changes):
    """Change the line of a cell by hand, and leave its SHA-256."""
    path = Path(folder, CELLS_FILE)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert name in [line["name"] for line in lines]
    lines = [{**line, **changes} if line["name"] == name else line for line in lines]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def clone_committed(folder, target):
    """Commit a comparison, as its .gitignore has it, to a repository of its own, and clone that."""
    identity = ("-c", "user.name=someone", "-c", "user.email=someone@example.org")
    for words in (
        ("init", "--quiet", folder),
        ("-C", folder, "add", "."),
        (*identity, "-C", folder, "commit", "--quiet", "--no-gpg-sign", "--message", "Begin"),
        ("clone", "--quiet", folder, target),
    ):
        subprocess.run(("git", *words), check=True)


def make_sizes(*sides):
    """Conditions of square images with these sides."""
    return tuple(Condition(str(side), "size", (side, side)) for side in sides)


def make_lengths(*lengths):
    """Conditions of texts of these lengths."""
    return tuple(Condition(str(length), "size", (length,)) for length in lengths)


def measure(found, conditions, refused=(), position_losses=()):
    """Measurements of {condition: metrics}, by the names of conditions, refusals and losses too."""
    known = {one.name: one for one in conditions}
    refused, losses = dict(refused), dict(position_losses)
    return tuple(
        CellMeasurement(
            condition=known[name],
            metrics=found.get(name, {}),
            refused=refused.get(name, ""),
            position_losses=losses.get(name, ()),
        )
        for name in known
        if name in {*found, *refused, *losses}
    )


def replace_metrics(cell, found):
    """A cell with other metrics, {condition: metrics}, by the names of its conditions."""
    return replace(cell, measurements=measure(found, [one.condition for one in cell.measurements]))


def make_axis(key, title, values):
    """An axis whose values are their own labels."""
    return Axis(key=key, title=title, values=tuple(values), settings=tuple(values))


LEVELS = {
    "none": 0.93,
    "sinusoidal": 0.96,
    "rope_axial": 0.975,
    "rope_mixed": 0.985,
    "liere": 0.984,
    "comrope_ld": 0.99,
}
LIERE = (
    Flag("parameters", "512 more parameters than the others"),
    Flag("failed seeds", "seed 2 failed: exit code 3: the loss became nan at step 40"),
)


def images(seeds=(0, 1, 2), levels=LEVELS):
    """Six encodings on small images at 16, 24 and 32 pixels; one cell failed, one variant has more parameters."""
    draw = random.Random(0)
    conditions = (IMAGE, *make_sizes(24, 32))

    def format_measure(level, place):
        lost = {TRAINED: 0.0, "24": 0.1, "32": 0.2}[place]
        value = level - lost * (1.6 - level) + draw.gauss(0, 0.004)
        return {"test/accuracy": value, "test/loss": 1.2 - value, "test/top5": 1.0}

    def cell(name, level, seed):
        if (name, seed) == ("liere", 2):
            return ComparisonCell(
                seed=seed,
                run_dir=f"cells/{name}-{seed}",
                state="failed",
                error="exit code 3: the loss became nan at step 40",
            )
        found = {one.name: format_measure(level, one.name) for one in conditions}
        curve = tuple((step, 1.2 - level + 2 / (1 + step / 20)) for step in range(20, 401, 20))
        return ComparisonCell(
            seed=seed,
            run_dir=f"cells/{name}-{seed}",
            state="done",
            measurements=measure(found, conditions),
            curve=curve,
            parameters=678_010 + 512 * (name == "liere"),
            flops=21_874_560,
            backends=("sdpa",),
            steps=400,
            minutes=2.5,
            step_seconds=0.05,
            peak_memory=700 * 2**20,
        )

    variants = tuple(
        Variant(
            name=name,
            values={"model.encoding": name},
            cells=tuple(cell(name, level, seed) for seed in seeds),
            flags=LIERE if name == "liere" else (),
        )
        for name, level in levels.items()
    )
    return Comparison(
        zoo_version="0.1.0",
        created="2026-01-02 03:04 UTC",
        command="zoo compare vit_comrope 'encodings=[none,...]' seeds=3",
        recipe="vit_comrope",
        base={"seed": 0, "model": {"name": "vit", "dim": 96}},
        machine={"cores": 2, "torch": "2.13.0"},
        axes=(make_axis("model.encoding", "encoding", levels),),
        seeds=tuple(seeds),
        measure="test/accuracy",
        better="high",
        conditions=conditions,
        shared_weights=104,
        variants=variants,
    )


def texts(seeds=(0, 1, 2)):
    """Four encodings at 1x, 2x, 4x and 8x of 128 tokens; learned refuses longer ones, and one cell is not done yet."""
    draw = random.Random(1)
    conditions = (TEXT, *make_lengths(256, 512, 1024))
    rise = {"alibi": -0.01, "rope": 0.2, "sinusoidal": 0.3, "learned": 0.0}

    def cell(name, seed):
        if (name, seed) == ("sinusoidal", 2):
            return ComparisonCell(seed=seed, run_dir=f"cells/{name}-{seed}", state="waiting")
        longer = {"256": 1, "512": 2, "1024": 3} if name != "learned" else {}
        base = 1.3 + draw.gauss(0, 0.01)
        metrics = {
            place: {"test/loss": base + rise[name] * steps, "test/accuracy": 0.6}
            for place, steps in {TRAINED: 0, **longer}.items()
        }
        positions = (
            {
                "1024": tuple(
                    base + 1 / (1 + i) + max(0, rise[name]) * max(0, i - 128) / 300
                    for i in range(1024)
                )
            }
            if longer
            else {}
        )
        refused = (
            {} if longer else dict.fromkeys(("256", "512", "1024"), "the table has 128 places")
        )
        return ComparisonCell(
            seed=seed,
            run_dir=f"cells/{name}-{seed}",
            state="done",
            measurements=measure(metrics, conditions, refused, positions),
            parameters=830_000,
            curve=tuple((step, base + 3 / (1 + step / 50)) for step in range(50, 501, 50)),
            backends=("sdpa",),
            steps=500,
            minutes=3.0,
            step_seconds=0.3,
            peak_memory=900 * 2**20,
        )

    variants = tuple(
        Variant(
            name=name,
            values={"model.encoding": name},
            cells=tuple(cell(name, seed) for seed in seeds),
            flags=(),
        )
        for name in rise
    )
    return Comparison(
        zoo_version="0.1.0",
        created="2026-01-02 03:04 UTC",
        command="zoo compare lm_rope ...",
        recipe="lm_rope",
        base={"seed": 0},
        machine={"cores": 2},
        axes=(make_axis("model.encoding", "encoding", rise),),
        seeds=tuple(seeds),
        measure="test/loss",
        better="low",
        conditions=conditions,
        windows="windows side by side",
        variants=variants,
    )


HOSTILE = (
    '</script><script>alert(1)</script><img src=x onerror=alert(2)> & "q" \' \x00 \x01 ${x} $y_{2$'
)


def grid():
    """Three encodings at two depths; what is deeper is better, and alibi loses least at sizes beyond that of training."""
    base, levels, depths = images(), {"rope": 0.97, "alibi": 0.93, "none": 0.85}, (4, 8)

    def cell(one, level, lost, depth):
        metrics = {
            place.name: {"test/accuracy": level - lost * number + 0.004 * depth + 0.002 * one.seed}
            for number, place in enumerate(base.conditions)
        }
        return replace_metrics(one, metrics)

    variants = tuple(
        Variant(
            name=f"{name}, {depth}",
            values={"model.encoding": name, "model.depth": str(depth)},
            cells=tuple(
                cell(one, level, 0.05 if name == "alibi" else 0.1, depth)
                for one in base.variants[0].cells
            ),
        )
        for name, level in levels.items()
        for depth in depths
    )
    axes = (
        make_axis("model.encoding", "encoding", levels),
        make_axis("model.depth", "depth", map(str, depths)),
    )
    return replace(base, axes=axes, variants=variants)


def hostile():
    """Words that would break a careless page, names that are too long, and values that are no numbers."""
    base = images()
    first, second, third, *others = base.variants
    odd = [float("nan"), float("inf"), float("-inf")]
    cells = tuple(
        replace(
            one,
            measurements=measure(
                {place.name: {base.measure: number} for place in base.conditions}, base.conditions
            ),
            error=HOSTILE,
            run_dir=HOSTILE,
            curve=((20, number),),
            step_seconds=number,
        )
        for one, number in zip(third.cells, odd, strict=True)
    )
    variants = (
        replace(first, name=HOSTILE, flags=(Flag(HOSTILE, HOSTILE),)),
        replace(second, name="a_long_name_" * 12),
        replace(third, name="x" * 120, cells=cells),
        *others,
    )
    return replace(
        base,
        variants=variants,
        recipe=HOSTILE,
        command=HOSTILE,
        machine={HOSTILE: HOSTILE},
        base={"name": HOSTILE},
    )


def empty():
    """Nothing is done yet, or all has failed."""
    base = images()
    states = ("failed", "waiting", "running")
    variants = tuple(
        replace(
            one,
            flags=(),
            cells=tuple(
                ComparisonCell(seed=s, run_dir=f"cells/{s}", state=state)
                for s, state in enumerate(states)
            ),
        )
        for one in base.variants
    )
    return replace(base, variants=variants)


def alone():
    """The test data of the recipe only, whose size varies among variants."""
    base, condition = images(), Condition(TRAINED, "trained")
    variants = []
    for one in base.variants:
        cells = (replace(cell, measurements=cell.measurements[:1]) for cell in one.cells)
        variants.append(replace(one, cells=tuple(cells)))
    return replace(base, conditions=(condition,), variants=tuple(variants))


def lengths():
    """Seven places, more than stand side by side."""
    base = texts()
    more = {str(128 * 2**power): power for power in range(1, 7)}
    conditions = (TEXT, *make_lengths(*map(int, more)))

    def cell(one, rise):
        metrics = {
            place: {"test/loss": 1.3 + rise * power + 0.01 * one.seed}
            for place, power in {TRAINED: 0, **more}.items()
        }
        return replace(one, measurements=measure(metrics, conditions))

    variants = tuple(
        replace(one, cells=tuple(cell(each, 0.1 * number) for each in one.cells))
        for number, one in enumerate(base.variants)
    )
    return replace(base, conditions=conditions, variants=variants)


def plant_results(folder, levels, baseline=None):
    """Write all cells of a comparison with a test accuracy about a level: {variant: level}."""
    plan = ComparisonPlan.read(Path(folder))
    draw = random.Random(0)
    for cell in plan.cells:
        value = levels[cell.variant] + draw.gauss(0, 0.002)
        baselines = {} if baseline is None else {"test/accuracy": {"majority class": baseline}}
        record = CellRecord(
            name=cell.name,
            variant=cell.variant,
            seed=cell.seed,
            settings=list_changes(plan.base, cell.recipe),
            recipe=hash_recipe(plan, cell),
            start="0" * 64,
            environment=Environment(devices={"processor": "a processor"}),
            test={"test/accuracy": value, "test/loss": 1 - value},
            baselines=baselines,
        )
        write_cells(Path(folder), [record])
