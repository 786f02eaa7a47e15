"""`zoo diagnose`: a page about what the attention of trained models does, one of them or several side by side."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from math import prod
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor, nn
from torch.nn import functional as F

from zoo import __version__
from zoo.config import Recipe
from zoo.config.command_line import parse_options, split_words
from zoo.config.tree import COMMAND_LINE
from zoo.data.base import DataModule
from zoo.data.spec import ImageSpec, Samples, TextClassificationSpec, TextSpec, Windows
from zoo.diagnostics import metrics, training_curves
from zoo.diagnostics.capture import Look, check, look, resting, watch
from zoo.diagnostics.encoding_panels import encodings
from zoo.diagnostics.position_ablation import CHANGES, Change, changed
from zoo.diagnostics.report import (
    AS_THEY_ARE,
    Attended,
    Control,
    Report,
    Run,
    Sample,
    measured,
    profiles,
    verdict,
)
from zoo.diagnostics.token_layout import Layout, layout, pictures, pieces
from zoo.errors import ConfigIssue, DataError, NonFiniteError, OptionError, RecipeError
from zoo.evaluation.evaluate import KEPT, UNLESS_SAID, adopt, tested
from zoo.evaluation.generate import device
from zoo.evaluation.page_path import choose_page
from zoo.evaluation.predict import parted as parted_paths
from zoo.registry import Count
from zoo.reporting.panel import Curves
from zoo.run import atomic_io, checkpoint, loggers, run_dir
from zoo.run.build import build_data, build_trainer
from zoo.run.callbacks.progress import Tested
from zoo.run.load import restore
from zoo.tasks.base import Task

log = logging.getLogger("zoo")


def controls(
    recipe: Recipe, task: Task, data: DataModule, limit: int | None, changes: Mapping[str, Change]
) -> Iterator[Control]:
    """The metrics of `zoo eval`, of `limit` batches where there is one; first with places as they are, then changed.

    Raises OptionError where the data cannot be read as what the model was trained on.
    """
    limits: dict[str, Any] = {} if limit is None else {"limit_test_batches": limit}
    trainer = build_trainer(recipe, logger=False, callbacks=[Tested()], **limits)
    log.info("%s: testing with places %s", recipe.name, AS_THEY_ARE)
    yield Control(name=AS_THEY_ARE, metrics=tested(trainer, task, data)["metrics"])
    for name, change in changes.items():
        log.info("%s: testing with places %s", recipe.name, name)
        try:
            with changed(task.model, change):
                yield Control(name=name, metrics=tested(trainer, task, data)["metrics"])
        except OptionError as error:
            yield Control(name=name, metrics={}, refused=str(error))


class Kept(NamedTuple):
    """What lies beside a checkpoint."""

    recipe: str  # as YAML
    training: tuple[Curves, ...]
    extrapolation: tuple[Curves, ...]


def beside(checkpoint: Path, found: Recipe, samples: Samples) -> Kept:
    """None of the curves where nothing is kept. Raises DataError where it cannot be read.

    The recipe is that of the run directory, else the one found in the checkpoint, which has no trainer of training.
    """
    run = run_dir.holder(checkpoint)
    unit = "patches" if isinstance(samples, ImageSpec) else "tokens"
    trained = samples.height if isinstance(samples, ImageSpec) else samples.length
    return Kept(
        recipe=_recipe(run / "recipe.yaml", checkpoint, found),
        training=_training(run / "metrics.csv", unit),
        extrapolation=_extrapolation(run / KEPT, checkpoint, trained),
    )


def _recipe(file: Path, checkpoint: Path, found: Recipe) -> str:
    inside = checkpoint.resolve().parent.name == "checkpoints"
    with _readable(file):
        return file.read_text(encoding="utf-8") if inside and file.is_file() else found.yaml()


def _training(file: Path, unit: str) -> tuple[Curves, ...]:
    with _readable(file):
        curves = training_curves.training(loggers.read(file)[1], unit) if file.exists() else ()
        return _told(file, curves)


def _extrapolation(file: Path, checkpoint: Path, trained: int) -> tuple[Curves, ...]:
    """Of this very checkpoint."""
    with _readable(file):
        if not file.exists():
            return ()
        result: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if Path(result["checkpoint"]).name != checkpoint.name:
            log.info("%s is of %s, so it is left out", file, result["checkpoint"])
            return ()
        return _told(file, training_curves.extrapolation(result, trained))


def _told(file: Path, curves: tuple[Curves, ...]) -> tuple[Curves, ...]:
    if not curves and file.exists():
        log.info("%s: nothing in it can be drawn, so it is left out", file)
    return curves


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"{file}: cannot be read, {error.strerror or error}") from None
    except KeyError as error:
        raise _strange(file, f"it has no key {error.args[0]}") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise _strange(file, str(error)[:80]) from None


def _strange(file: Path, problem: str) -> DataError:
    return DataError(f"{file}: not as zoo writes it, {problem}; remove it, or have it written anew")


WHOLE = 2**27  # weights of one layer at most, of which a rollout is made
Inputs = tuple[Tensor | None, ...]
Chosen = Sequence[int] | None


class Looked(NamedTuple):
    """Layers that were looked at, from the queries that the layout names."""

    layout: Layout
    looks: list[Look]
    content: list[Look] | None  # with all tokens in one place; None where the model refuses that
    shifted: list[Look] | None  # with all tokens moved alike
    rollout: Tensor | None  # [S, Q, M] of all layers

    @property
    def weights(self) -> Tensor:
        """[S, L, H, Q, M]"""
        return torch.stack([one.weights.float().cpu() for one in self.looks], dim=1)


def looked(model: nn.Module, inputs: Inputs, plan: Layout, layers: Chosen) -> Looked:
    """Looks from the queries that the layout names."""
    looks = look(model, inputs, plan.slots, layers)
    content, shifted = (
        _moved(model, inputs, plan, layers, CHANGES[name]) for name in ("zeroed", "shifted")
    )
    return Looked(plan, looks, content, shifted, _rollout(model, inputs, plan, looks[0]))


def _moved(
    model: nn.Module, inputs: Inputs, plan: Layout, layers: Chosen, change: Change
) -> list[Look] | None:
    try:
        with changed(model, change):
            return look(model, inputs, plan.slots, layers)
    except OptionError:
        return None


def _rollout(model: nn.Module, inputs: Inputs, plan: Layout, first: Look) -> Tensor | None:
    """Layer by layer, so that the weights of one alone are held; None where these are too many."""
    batch, heads = first.weights.shape[:2]
    if batch * heads * plan.tokens**2 > WHOLE:
        log.info("no rollout: %d tokens have too many pairs", plan.tokens)
        return None
    means: list[Tensor] = []
    watch(
        model, inputs, lambda seen: means.append(seen.weights.float().abs().mean(1, keepdim=True))
    )
    return metrics.rollout(means)[:, list(plan.slots)].cpu()


PADDING = -1


def probed(task: Task, data: DataModule, count: int) -> Any:
    """A batch of so many samples, fewer if there are not more, as the model has it. Raises DataError where there is none."""
    adopt(task, data)
    data.setup("test")
    batch = _first(data.loader("test"), count)
    if batch is None:
        raise DataError(f"{data.title}: the test part has no sample to look at")
    return data.on_after_batch_transfer(move_data_to_device(batch, task.device), 0)


def _first(batches: Iterable[Any], count: int) -> Any:
    """The first samples of batches as one of the same kind, None where there is none."""
    found: list[Any] = []
    for batch in batches:
        found.append(batch)
        if sum(len(one[0]) for one in found) >= count:
            break
    if not found or not len(found[0][0]):
        return None
    joined: list[Any] = [
        None if column[0] is None else _joined(column)[:count]
        for column in zip(*found, strict=True)
    ]
    return Windows(*joined) if isinstance(found[0], Windows) else tuple(joined)


def _joined(column: tuple[Tensor, ...]) -> Tensor:
    """Tensors one after the other; texts of batches that are not equally long are padded."""
    if column[0].dim() == 2:
        longest = max(one.shape[1] for one in column)
        column = tuple(F.pad(one, (0, longest - one.shape[1]), value=PADDING) for one in column)
    return torch.cat(column)


def samples(
    task: Task,
    data: DataModule,
    batch: Any,
    inputs: tuple[Tensor | None, ...],
    grid: tuple[int, ...],
) -> tuple[Sample, ...]:
    """The samples of a batch for people; `grid` is that of their tokens."""
    titles = _titles(task, batch, inputs)
    shown = inputs[0]
    assert shown is not None
    if isinstance(task.samples, ImageSpec):
        images = data.pictured(shown.float())
        pairs = zip(titles, images, strict=True)
        return tuple(
            Sample(title=title, pictures=pictures(image, grid[0])) for title, image in pairs
        )
    words = task.samples.vocabulary
    return tuple(
        Sample(title=title, tokens=pieces(words, row))
        for title, row in zip(titles, shown, strict=True)
    )


def _titles(task: Task, batch: Any, inputs: tuple[Tensor | None, ...]) -> list[str]:
    """Numbers, and of what has a class, which it is and which the model takes it for."""
    if isinstance(task.samples, TextSpec):
        return [f"window {number + 1} of the test" for number in range(len(batch[0]))]
    names = _probed_names(task.samples)
    pairs = zip(batch[1].tolist(), _said(task.model, inputs), strict=True)
    return [
        f"test sample {number + 1}: {names[label]}, {'recognised' if label == said else f'taken for {names[said]}'}"
        for number, (label, said) in enumerate(pairs)
    ]


def _probed_names(facts: ImageSpec | TextClassificationSpec) -> list[str]:
    return [*facts.names] or [f"class {number}" for number in range(facts.classes)]


def _said(model: nn.Module, inputs: tuple[Tensor | None, ...]) -> list[int]:
    with resting(model):
        said: list[int] = model(*inputs).argmax(-1).tolist()
    return said


class Subject(NamedTuple):
    """A checkpoint that was loaded; `name` tells it apart."""

    name: str
    path: Path
    recipe: Recipe
    task: Task

    @property
    def unit(self) -> Literal["tokens", "patches"]:
        return "patches" if isinstance(self.task.samples, ImageSpec) else "tokens"


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
    told = _tested(
        data.title, data.count("test"), recipe.data.options.get("batch_size"), wanted.limit
    )
    found = [
        one
        for one in measured(seen.looks, seen.content, seen.shifted)
        if not one.values.isnan().all()
    ]
    return Run(
        name=subject.name,
        checkpoint=str(subject.path),
        recipe=beside.recipe,
        unit=subject.unit,
        encoding=tuple(choice.name for choice in recipe.model.options.get("encoding", ())),
        facts=_facts(subject, seen, tests) | told,
        metrics=tests[0].metrics,
        training=beside.training,
        measures=tuple(found),
        profiles=profiles(seen.looks),
        attended=attended,
        encodings=panels,
        controls=tuple(tests),
        extrapolation=beside.extrapolation,
    )


def _check(subject: Subject, seen: Looked) -> None:
    """Raises NonFiniteError where finite weights of a model are so large that there is no attention to measure."""
    broken = next((one.layer for one in seen.looks if not one.weights.isfinite().all()), None)
    if broken is not None:
        raise NonFiniteError(f"{subject.path}: attention in layer {broken} is infinite or NaN")


@contextmanager
def _blamed(recipe: Recipe, section: str) -> Iterator[None]:
    try:
        yield
    except OptionError as error:
        raise RecipeError(
            recipe.make_issue(f"{section}.{error.key}" if error.key else section, str(error))
        ) from None


def _attended(seen: Looked, shown: tuple[Sample, ...]) -> Attended:
    layout = seen.layout
    return Attended(
        samples=shown,
        grid=layout.grid,
        extra=layout.extra,
        layers=tuple(one.layer for one in seen.looks),
        queries=layout.slots,
        weights=seen.weights,
        rollout=seen.rollout,
    )


def _facts(subject: Subject, seen: Looked, tests: Sequence[Control]) -> dict[str, str]:
    layout, first = seen.layout, seen.looks[0]
    dims = first.attention.dims
    metric = subject.task.monitor.replace("val/", "test/")
    heads = f"{dims.heads} heads" + (
        f" on {dims.num_kv_heads} of keys" if dims.num_kv_heads != dims.heads else ""
    )
    grid = " x ".join(map(str, layout.grid)) + f" {subject.unit}"
    return {
        "use of places": verdict(tests, metric, first.call.causal),
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


@dataclass(frozen=True, kw_only=True)
class DiagnoseOptions:
    """What `zoo diagnose` looks at, and where it writes."""

    samples: Count = 4  # the first ones of the test part
    queries: Count = 64  # places to look from at most; class and register tokens come in addition
    layers: tuple[int, ...] | int | None = None  # which to show, from 0; None: all
    to: str | None = (
        None  # the page; None: diagnosis.html in the run directory, or here where there are several runs
    )
    controls: bool = True  # test again with places shuffled, shifted, zeroed and reversed
    limit: Count | None = None  # batches that are tested; None: all

    @property
    def chosen(self) -> tuple[int, ...] | None:
        """`layers` as a list."""
        return (self.layers,) if isinstance(self.layers, int) else self.layers


def diagnose(words: Sequence[str]) -> Path:
    """Write the page of one or several runs, and the same numbers as JSON beside it; returns the page's path."""
    from zoo.diagnostics.page import diagnosis_page

    report, path = reported(words)
    diagnosis_page.write(report, path)
    return path


def reported(words: Sequence[str]) -> tuple[Report, Path]:
    """The report of the runs that `words` name, and where it goes. Whatever can be wrong is told before long work begins."""
    places, changes = parted_paths(words)
    told, overrides = split_words(changes, [DiagnoseOptions])
    options = DiagnoseOptions(**parse_options(told, [DiagnoseOptions])[0])
    if not places or "" in words:
        problem = "an empty name" if places else "nothing to diagnose"
        raise RecipeError(
            ConfigIssue(COMMAND_LINE, "", problem, "name a run directory or a checkpoint")
        )
    subjects = _subjects([checkpoint.locate(place) for place in places], overrides)
    path = choose_page(options.to, [one.path for one in subjects])
    _check_layers(options, subjects)
    lying = [beside(one.path, one.recipe, one.task.samples) for one in subjects]
    wanted = Wanted(
        options.samples, options.queries, options.chosen, options.controls, options.limit
    )
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    runs = tuple(diagnosed(one, found, wanted) for one, found in zip(subjects, lying, strict=True))
    return Report(version=__version__, made=made, runs=runs), path


def _subjects(paths: Sequence[Path], overrides: Sequence[str]) -> list[Subject]:
    for path, count in Counter(path.resolve() for path in paths).items():
        if count > 1:
            raise RecipeError(
                ConfigIssue(COMMAND_LINE, str(path), "named twice", "name each checkpoint once")
            )
    loaded = [(path, *restore(path, [*UNLESS_SAID, *overrides])) for path in paths]
    for path, recipe, task in loaded:
        _check_weights(path, task)
        if build_trainer(recipe, logger=False).world_size > 1:
            raise RecipeError(
                recipe.make_issue(
                    "trainer.devices", "a diagnosis works in one process", "start it in one"
                )
            )
    names = _names([(recipe.name, path) for path, recipe, _ in loaded])
    return [Subject(name, *one) for name, one in zip(names, loaded, strict=True)]


def _check_weights(path: Path, task: Task) -> None:
    """Raises NonFiniteError where there is nothing to look at but NaN."""
    broken = next(
        (name for name, weight in task.named_parameters() if not weight.isfinite().all()), None
    )
    if broken is not None:
        good = atomic_io.kept(path.parent, path)
        raise NonFiniteError(f"{path}: {broken} has weights that are infinite or NaN; {good}")


def _names(known: Sequence[tuple[str, Path]]) -> list[str]:
    """The shortest kind of name that tells all apart: the recipe's, with the run directory, with the checkpoint, by number."""
    kinds: list[Callable[[str, Path], str]] = [
        lambda recipe, path: recipe,
        lambda recipe, path: f"{recipe} {run_dir.holder(path).name}",
        lambda recipe, path: f"{recipe} {run_dir.holder(path).name} {path.stem}",
    ]
    for kind in kinds:
        names = [kind(*one) for one in known]
        if len(set(names)) == len(names):
            return names
    return [f"{recipe} {number + 1}" for number, (recipe, _) in enumerate(known)]


def _check_layers(options: DiagnoseOptions, subjects: Sequence[Subject]) -> None:
    """Raises RecipeError where a model has no such layer."""
    if options.chosen == ():
        raise RecipeError(
            ConfigIssue(
                COMMAND_LINE,
                "layers",
                "a list of none",
                "name one at least, or leave it out for all",
            )
        )
    for subject in subjects:
        try:
            check(subject.task.model, options.chosen)
        except OptionError as error:
            raise RecipeError(
                ConfigIssue(COMMAND_LINE, error.key, f"{subject.name}: {error}")
            ) from None
