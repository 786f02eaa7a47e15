"""One checkpoint, as a report shows it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Literal, NamedTuple

from zoo.build import build_data
from zoo.diagnostics.places import CHANGES
from zoo.diagnostics.report.contents import Attended, Control, Run, Sample
from zoo.diagnostics.report.found import encodings
from zoo.diagnostics.report.measured import measured
from zoo.diagnostics.report.profiles import profiles
from zoo.diagnostics.report.shown import layout
from zoo.diagnostics.report.verdict import verdict
from zoo.errors import Invalid, NonFiniteError, RecipeError
from zoo.recipe import Recipe
from zoo.samples import Images
from zoo.tasks.task import Task
from zoo.verbs.controls import controls
from zoo.verbs.device import device
from zoo.verbs.kept import Kept
from zoo.verbs.looked import Looked, looked
from zoo.verbs.probed import probed, samples

log = logging.getLogger("zoo")


class Subject(NamedTuple):
    """A checkpoint that was loaded; `name` tells it apart."""

    name: str
    path: Path
    recipe: Recipe
    task: Task

    @property
    def unit(self) -> Literal["tokens", "patches"]:
        return "patches" if isinstance(self.task.samples, Images) else "tokens"


class Wanted(NamedTuple):
    """How much of it is looked at."""

    samples: int
    queries: int
    layers: Sequence[int] | None
    controls: bool
    limit: int | None


def diagnosed(subject: Subject, beside: Kept, wanted: Wanted) -> Run:
    """Look at a checkpoint, and test it. Raises RecipeError where it cannot follow its data, and NonFiniteError."""
    recipe, task = subject.recipe, subject.task.to(device(subject.recipe))
    data = build_data(recipe)
    with _blamed(recipe, "data"):
        batch = probed(task, data, wanted.samples)
    with _blamed(recipe, "task"):
        inputs = task.inputs(batch)
    with _blamed(recipe, "model"):
        plan = layout(task.model, inputs, wanted.queries)
    log.info("%s: looking at %d samples", subject.name, len(batch[0]))
    seen = looked(task.model, inputs, plan, wanted.layers)
    _check(subject, seen)
    attended = _attended(seen, samples(task, data, batch, inputs, seen.layout.grid))
    panels = encodings(task.model, inputs, seen.looks, seen.layout.grid)
    with _blamed(recipe, "data"):
        tests = [*controls(recipe, task, data, wanted.limit, CHANGES if wanted.controls else {})]
    told = _tested(data.title, data.count("test"), recipe.data.options.get("batch_size"), wanted.limit)
    found = [one for one in measured(seen.looks, seen.content, seen.shifted) if not one.values.isnan().all()]
    return Run(
        name=subject.name, checkpoint=str(subject.path), recipe=beside.recipe, unit=subject.unit,
        encoding=tuple(choice.name for choice in recipe.model.options.get("encoding", ())),
        facts=_facts(subject, seen, tests) | told, metrics=tests[0].metrics, training=beside.training,
        measures=tuple(found), profiles=profiles(seen.looks), attended=attended,
        encodings=panels, controls=tuple(tests), extrapolation=beside.extrapolation,
    )  # fmt: skip


def _check(subject: Subject, seen: Looked) -> None:
    """Raises NonFiniteError where finite weights of a model are so large that there is no attention to measure."""
    broken = next((one.layer for one in seen.looks if not one.weights.isfinite().all()), None)
    if broken is not None:
        raise NonFiniteError(f"{subject.path}: attention in layer {broken} is infinite or NaN")


@contextmanager
def _blamed(recipe: Recipe, section: str) -> Iterator[None]:
    try:
        yield
    except Invalid as error:
        raise RecipeError(recipe.fault(f"{section}.{error.key}" if error.key else section, str(error))) from None


def _attended(seen: Looked, shown: tuple[Sample, ...]) -> Attended:
    layout = seen.layout
    return Attended(
        samples=shown, grid=layout.grid, extra=layout.extra, layers=tuple(one.layer for one in seen.looks),
        queries=layout.slots, weights=seen.weights, rollout=seen.rollout,
    )  # fmt: skip


def _facts(subject: Subject, seen: Looked, tests: Sequence[Control]) -> dict[str, str]:
    layout, first = seen.layout, seen.looks[0]
    dims = first.attention.dims
    metric = subject.task.monitor.replace("val/", "test/")
    heads = f"{dims.heads} heads" + (f" on {dims.groups} of keys" if dims.groups != dims.heads else "")
    grid = " x ".join(map(str, layout.grid)) + f" {subject.unit}"
    return {
        "use of places": verdict(tests, metric, first.terms.causal),
        "model": f"{subject.recipe.model.name}, layers: {len(layout.layers)}, {heads}, width {dims.dim}",
        "parameters": f"{sum(parameter.numel() for parameter in subject.task.model.parameters()):,}",
        "a sample": grid
        + (f", {prod(layout.grid):,} in all" if len(layout.grid) > 1 else "")
        + (f"; before them {', '.join(layout.extra)}" if layout.extra else ""),
    }


def _tested(data: str, count: int, size: int | None, limit: int | None) -> dict[str, str]:
    if limit is None or limit * (size or 0) >= count:
        return {"data": data, "tested on": f"{count:,} samples"}
    batches = f"{limit:,} batch{'' if limit == 1 else 'es'}" + (f" of {size:,}" if size else "")
    return {"data": data, "tested on": f"{batches}; the test part has {count:,}"}
