"""One checkpoint, as a report shows it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from zoo.attention.layer import SelfAttention
from zoo.build import build_data
from zoo.diagnostics import measures
from zoo.diagnostics.looking import Look, look
from zoo.diagnostics.places import CHANGES, Change, changed
from zoo.diagnostics.report.contents import Attended, Control, Run
from zoo.diagnostics.report.found import findings
from zoo.diagnostics.report.measured import measured
from zoo.diagnostics.report.profiles import profiles
from zoo.diagnostics.report.shown import Layout, layout
from zoo.diagnostics.report.trends import extrapolation, training
from zoo.diagnostics.report.verdict import verdict
from zoo.errors import DataError, Invalid, RecipeError
from zoo.panels import Curves
from zoo.recipe import Recipe
from zoo.run import folder, metrics
from zoo.samples import Images
from zoo.tasks.task import Task
from zoo.verbs.controls import controls
from zoo.verbs.device import device
from zoo.verbs.evaluate import KEPT
from zoo.verbs.probed import probed, samples

log = logging.getLogger("zoo")

WHOLE = 2**27  # weights of one layer at most, of which a rollout is made
Inputs = tuple[Tensor | None, ...]


class Subject(NamedTuple):
    """A checkpoint that was loaded; `name` tells it apart."""

    name: str
    path: Path
    recipe: Recipe
    task: Task


class Wanted(NamedTuple):
    """How much of it is looked at."""

    samples: int
    queries: int
    layers: Sequence[int] | None
    controls: bool
    limit: int | None


def diagnosed(subject: Subject, wanted: Wanted) -> Run:
    """Look at a checkpoint, and test it. Raises RecipeError where it cannot follow its data."""
    recipe, task, model = subject.recipe, subject.task.to(device(subject.recipe)), subject.task.model
    data = build_data(recipe)
    with _blamed(recipe, "data"):
        batch = probed(task, data, wanted.samples)
    with _blamed(recipe, "task"):
        inputs = task.inputs(batch)
    with _blamed(recipe, "model"):
        plan = layout(model, inputs, wanted.queries)
        log.info("%s: looking at %d samples from %d tokens", subject.name, len(batch[0]), len(plan.slots))
        looks = look(model, inputs, plan.slots, wanted.layers)
    unit: Literal["tokens", "patches"] = "patches" if isinstance(task.samples, Images) else "tokens"
    content, shifted = (_moved(model, inputs, plan, wanted, CHANGES[name]) for name in ("zeroed", "shifted"))
    attended = Attended(
        samples=samples(task, data, batch, inputs, plan.grid), grid=plan.grid, extra=plan.extra, queries=plan.slots,
        layers=tuple(one.layer for one in looks), weights=_stacked(looks), rollout=_rollout(model, inputs, plan),
    )  # fmt: skip
    with _blamed(recipe, "data"):
        tests = [*controls(recipe, task, data, wanted.limit, CHANGES if wanted.controls else {})]
    return Run(
        name=subject.name, checkpoint=str(subject.path), recipe=recipe.yaml(), unit=unit,
        encoding=tuple(choice.name for choice in recipe.model.options.get("encoding", ())),
        facts=_facts(subject, plan, looks[0], unit, tests) | _tested(data.title, data.count("test"), wanted.limit),
        metrics=tests[0].metrics, training=_training(subject.path), measures=measured(looks, content, shifted), profiles=profiles(looks),
        attended=attended, encodings=findings(looks), controls=tuple(tests), extrapolation=_extrapolation(subject),
    )  # fmt: skip


@contextmanager
def _blamed(recipe: Recipe, section: str) -> Iterator[None]:
    try:
        yield
    except Invalid as error:
        raise RecipeError(recipe.fault(f"{section}.{error.key}" if error.key else section, str(error))) from None


def _moved(model: nn.Module, inputs: Inputs, plan: Layout, wanted: Wanted, change: Change) -> list[Look] | None:
    """The same look with tokens in other places, None where the model refuses them."""
    try:
        with changed(model, change):
            return look(model, inputs, plan.slots, wanted.layers)
    except Invalid:
        return None


def _stacked(looks: Sequence[Look]) -> Tensor:
    """Weights [S, L, H, Q, M]."""
    from torch import stack

    return stack([one.weights.float().cpu() for one in looks], dim=1)


def _rollout(model: nn.Module, inputs: Inputs, plan: Layout) -> Tensor | None:
    """[S, Q, M], layer by layer; None where there are too many tokens."""
    heads = max(module.dims.heads for module in model.modules() if isinstance(module, SelfAttention))
    assert inputs[0] is not None
    if len(inputs[0]) * heads * plan.tokens**2 > WHOLE:
        log.info("no rollout: the weights of all %d tokens are too many", plan.tokens)
        return None
    means = [look(model, inputs, None, [layer])[0].weights.float().abs().mean(1, keepdim=True) for layer in plan.layers]
    return measures.rollout(means)[:, list(plan.slots)].cpu()


def _facts(subject: Subject, plan: Layout, first: Look, unit: str, tests: Sequence[Control]) -> dict[str, str]:
    dims, model = first.attention.dims, subject.task.model
    grid = " x ".join(map(str, plan.grid))
    extra = f" after {', '.join(plan.extra)}" if plan.extra else ""
    metric = subject.task.monitor.replace("val/", "test/")
    heads = f"{dims.heads} heads" + (f" on {dims.groups} of keys" if dims.groups != dims.heads else "")
    return {
        "use of places": verdict(tests, metric, first.terms.causal),
        "model": f"{subject.recipe.model.name}: {len(plan.layers)} layers, {heads}, width {dims.dim}",
        "parameters": f"{sum(parameter.numel() for parameter in model.parameters()):,}",
        "a sample": f"{grid} {unit}{extra}" + (f", {prod(plan.grid)} in all" if len(plan.grid) > 1 else ""),
    }


def _tested(data: str, count: int, limit: int | None) -> dict[str, str]:
    told = f"{count:,} samples" if limit is None else f"the first {limit:,} batches of {count:,} samples"
    return {"data": data, "tested on": told}


def _training(path: Path) -> tuple[Curves, ...]:
    file = folder.holder(path) / "metrics.csv"
    with _readable(file):
        return training(metrics.read(file)[1]) if file.is_file() else ()


def _extrapolation(subject: Subject) -> tuple[Curves, ...]:
    """What `zoo eval` kept of this very checkpoint."""
    file = folder.holder(subject.path) / KEPT
    if not file.is_file():
        return ()
    facts = subject.task.samples
    with _readable(file):
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if Path(result["checkpoint"]).name != subject.path.name:
            log.info("%s is of %s, so it is left out", file, result["checkpoint"])
            return ()
        return extrapolation(result, facts.height if isinstance(facts, Images) else facts.length)


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{file}: not as zoo writes it ({str(error)[:80]}); remove it, or have it written anew"
        ) from None
