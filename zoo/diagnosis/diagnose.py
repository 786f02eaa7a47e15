"""`zoo diagnose`: a page about the attention of one or several trained models."""

from __future__ import annotations

import dataclasses
import json
import logging
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal, NamedTuple

from zoo.config import Recipe
from zoo.config.command_line import parse_options, parse_overrides, split_words
from zoo.data.base import Datasets
from zoo.data.spec import ImageSpec
from zoo.diagnosis.inputs import (
    CapturedAttention,
    Saved,
    capture_attention,
    describe_samples,
    load_samples,
    read_saved,
)
from zoo.diagnosis.report import (
    UNCHANGED,
    Attended,
    Control,
    DiagnosedRun,
    Report,
    Sample,
    compute_measures,
    describe_ablation,
    draw_profiles,
)
from zoo.diagnostics.capture import number_layers
from zoo.diagnostics.encoding_panels import draw_encodings
from zoo.diagnostics.position_ablation import CHANGES, Change, change_positions
from zoo.diagnostics.token_layout import find_layout
from zoo.errors import ARGUMENT, ConfigIssue, NonFiniteError, OptionError, RecipeError, ZooError
from zoo.evaluation.evaluate import DEFAULT_OVERRIDES, measure_metrics
from zoo.evaluation.generate import choose_device
from zoo.evaluation.predict import split_paths
from zoo.options import Count
from zoo.packages import explain_imports
from zoo.run import atomic_io, checkpoint, run_dir
from zoo.run.build import Experiment
from zoo.run.callbacks.guards import StopOnSignal
from zoo.run.callbacks.progress import EvaluationProgress
from zoo.run.load import restore
from zoo.run.processes import Processes
from zoo.tasks.base import Task
from zoo.utils import check_writable, format_now
from zoo.version import __version__

PAGE = "diagnosis.html"


def choose_page(to: str | None, checkpoints: Sequence[Path]) -> Path:
    """Return the page: `to`, else in the run directory of a single checkpoint, or here.

    Raises:
        RecipeError: It cannot be written, or the JSON beside it would replace another file.
    """
    default = Path(PAGE)
    if len(checkpoints) == 1:
        default = run_dir.find_run_dir(checkpoints[0]) / PAGE
    page = default if to is None else Path(to)
    if page.suffix.lower() not in (".html", ".htm"):
        raise _refuse(f"{page} is not the name of a page", "let it end with .html")
    if not page.parent.is_dir():
        raise _refuse(f"there is no folder {page.parent}", "name one that exists")
    numbers = page.with_suffix(".json")
    try:
        if page.is_dir():
            raise _refuse(f"{page} is a folder", "name a page")
        if numbers.exists() and not _is_diagnosis(numbers):
            problem = f"{numbers} exists and is no diagnosis; the numbers would replace it"
            raise _refuse(problem, "name another page, or remove it")
        check_writable(page.parent)
    except OSError as error:
        problem = f"{page} cannot be written, {error.strerror or error}"
        raise _refuse(problem, "name another page") from None
    return page


def _is_diagnosis(file: Path) -> bool:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, IsADirectoryError):
        return False
    keys = {field.name for field in dataclasses.fields(Report)}
    return isinstance(found, dict) and keys <= found.keys()


def _refuse(problem: str, remedy: str) -> RecipeError:
    return RecipeError(ConfigIssue(ARGUMENT, "to", problem, remedy))


log = logging.getLogger("zoo")


@dataclass(frozen=True, kw_only=True)
class DiagnoseOptions:
    """What `zoo diagnose` measures, and where it writes."""

    samples: Count = 4
    """How many of the first test samples to measure."""

    queries: Count = 64
    """Query positions at most; class and register tokens come in addition."""

    layers: tuple[int, ...] | int | None = None
    """Layers to show, from 0; null: all."""

    to: str | None = None
    """The page; null: diagnosis.html in the run directory, or here for several runs."""

    controls: bool = True
    """Test again with positions shuffled, shifted, zeroed and reversed."""

    limit: Count | None = None
    """Test batches at most; null: all."""

    @property
    def layer_list(self) -> tuple[int, ...] | None:
        """`layers` as a list."""
        return (self.layers,) if isinstance(self.layers, int) else self.layers


class Subject(NamedTuple):
    """A restored checkpoint, under a name that tells it apart."""

    name: str
    path: Path
    experiment: Experiment
    task: Task

    @property
    def recipe(self) -> Recipe:
        """The recipe of the checkpoint."""
        return self.experiment.recipe

    @property
    def unit(self) -> Literal["tokens", "patches"]:
        """What a position is of."""
        return "patches" if isinstance(self.task.spec, ImageSpec) else "tokens"


def diagnose(words: Sequence[str]) -> Path:
    """Write a page about one or several runs, and the same numbers as JSON beside it.

    Args:
        words: Run directories or checkpoints, options of DiagnoseOptions, overrides of recipes.

    Returns:
        The path of the page.

    Raises:
        ZooError: With the exit code of the failure, before long work begins where possible.
    """
    with explain_imports():
        from zoo.diagnosis.page import diagnosis_page

    report, path = build_report(words)
    try:
        diagnosis_page.write(report, path)
    except OSError as error:
        problem = f"{path} cannot be written, {error.strerror}"
        path = Path(tempfile.mkdtemp(prefix="zoo-")) / path.name
        diagnosis_page.write(report, path)
        raise ZooError(f"{problem}; the page is {path}") from None
    return path


def build_report(words: Sequence[str], datasets: Datasets | None = None) -> tuple[Report, Path]:
    """Return the report of the runs that `words` name, and the path of its page."""
    names, changes = split_paths(words)
    own, overrides = split_words(changes, [DiagnoseOptions])
    options = DiagnoseOptions(**parse_options(own, [DiagnoseOptions])[0])
    if not names or "" in words:
        problem = "an empty name" if names else "nothing to diagnose"
        remedy = "name a run directory or a checkpoint"
        raise RecipeError(ConfigIssue(ARGUMENT, "", problem, remedy))
    subjects = _load_subjects([checkpoint.locate(name) for name in names], overrides, datasets)
    path = choose_page(options.to, [subject.path for subject in subjects])
    _check_layers(options, subjects)
    saved = [read_saved(one.path, one.recipe, one.task.spec) for one in subjects]
    runs = [
        diagnose_run(subject, beside, options)
        for subject, beside in zip(subjects, saved, strict=True)
    ]
    return Report(version=__version__, made=format_now(), runs=tuple(runs)), path


def _load_subjects(
    paths: Sequence[Path], overrides: Sequence[str], datasets: Datasets | None
) -> list[Subject]:
    for path, count in Counter(path.resolve() for path in paths).items():
        if count > 1:
            issue = ConfigIssue(ARGUMENT, str(path), "named twice", "name each once")
            raise RecipeError(issue)
    edits = parse_overrides([*DEFAULT_OVERRIDES, *overrides])
    loaded = [(path, *restore(path, edits, datasets)) for path in paths]
    for path, experiment, task in loaded:
        _check_weights(path, task)
        if experiment.trainer.world_size > 1:
            problem, remedy = "a diagnosis runs in one process", "leave it at 1"
            issue = experiment.recipe.make_issue("trainer.devices", problem, remedy)
            raise RecipeError(issue)
    names = _choose_names([(experiment.recipe.name, path) for path, experiment, _ in loaded])
    return [Subject(name, *one) for name, one in zip(names, loaded, strict=True)]


def _check_weights(path: Path, task: Task) -> None:
    """Raise NonFiniteError where there is nothing to see but NaN."""
    for name, weight in task.named_parameters():
        if not weight.isfinite().all():
            others = atomic_io.describe_checkpoints(path.parent, path)
            problem = f"{name} has weights that are infinite or NaN"
            raise NonFiniteError(f"{path}: {problem}; {others}")


def _choose_names(known: Sequence[tuple[str, Path]]) -> list[str]:
    """Return the shortest kind of name that tells all apart.

    That is the recipe's name, with the run directory, with the checkpoint, or with a number.
    """
    kinds: list[Callable[[str, Path], str]] = [
        lambda recipe, path: recipe,
        lambda recipe, path: f"{recipe} {run_dir.find_run_dir(path).name}",
        lambda recipe, path: f"{recipe} {run_dir.find_run_dir(path).name} {path.stem}",
    ]
    for kind in kinds:
        names = [kind(*one) for one in known]
        if len(set(names)) == len(names):
            return names
    return [f"{recipe} {number + 1}" for number, (recipe, _) in enumerate(known)]


def _check_layers(options: DiagnoseOptions, subjects: Sequence[Subject]) -> None:
    """Raise RecipeError where a model lacks a chosen layer."""
    if options.layer_list == ():
        remedy = "name one at least, or leave it out for all"
        raise RecipeError(ConfigIssue(ARGUMENT, "layers", "the list is empty", remedy))
    for subject in subjects:
        try:
            number_layers(subject.task.model, options.layer_list)
        except OptionError as error:
            problem = f"{subject.name}: {error}"
            raise RecipeError(ConfigIssue(ARGUMENT, error.key, problem)) from None


def diagnose_run(subject: Subject, saved: Saved, options: DiagnoseOptions) -> DiagnosedRun:
    """Measure the attention of a checkpoint, and test it.

    Raises:
        RecipeError: The model cannot follow its data.
        NonFiniteError: Its attention is not finite.
    """
    recipe, data = subject.recipe, subject.experiment.data
    task = subject.task.to(choose_device(recipe))
    with _locate_errors(recipe, "data"):
        batch = load_samples(task, data, options.samples)
    with _locate_errors(recipe, "task"):
        inputs = task.inputs(batch)
    with _locate_errors(recipe, "model"):
        plan = find_layout(task.model, inputs, options.queries)

    log.info("%s: capturing the attention of %d samples", subject.name, len(batch[0]))
    seen = capture_attention(task.model, inputs, plan, options.layer_list)
    _check_attention(subject, seen)
    described = describe_samples(task, data, batch, inputs, plan.grid)
    panels = draw_encodings(task.model, inputs, seen.layers, plan.grid)
    with _locate_errors(recipe, "data"):
        tests = [*run_controls(subject, CHANGES if options.controls else {}, options.limit)]

    measures = compute_measures(seen.layers, seen.zeroed, seen.shifted)
    return DiagnosedRun(
        name=subject.name,
        checkpoint=str(subject.path),
        recipe=saved.recipe,
        unit=subject.unit,
        encoding=tuple(choice.name for choice in recipe.model.options.get("encoding", ())),
        facts=_list_facts(subject, seen, tests, options.limit),
        metrics=tests[0].metrics,
        training=saved.training,
        measures=tuple(one for one in measures if not one.values.isnan().all()),
        profiles=draw_profiles(seen.layers),
        attended=build_attended(seen, described),
        encodings=panels,
        controls=tuple(tests),
        extrapolation=saved.extrapolation,
    )


@contextmanager
def _locate_errors(recipe: Recipe, section: str) -> Iterator[None]:
    """Raise an OptionError within the block as an issue of a section of the recipe."""
    try:
        yield
    except OptionError as error:
        key = f"{section}.{error.key}" if error.key else section
        raise RecipeError(recipe.make_issue(key, str(error))) from None


def _check_attention(subject: Subject, seen: CapturedAttention) -> None:
    """Raise NonFiniteError where weights are finite, but so large that attention is not."""
    for one in seen.layers:
        if not one.weights.isfinite().all():
            problem = f"attention in layer {one.layer} is infinite or NaN"
            raise NonFiniteError(f"{subject.path}: {problem}")


def run_controls(
    subject: Subject, changes: Mapping[str, Change], limit: int | None
) -> Iterator[Control]:
    """Yield the metrics of `zoo eval`, first with the positions as they are, then changed.

    Args:
        subject: The checkpoint to test.
        changes: Changes of positions, by name.
        limit: Test batches at most.
    """
    experiment, task = subject.experiment, subject.task
    trainer, data = experiment.trainer, experiment.data
    if limit is not None:
        trainer.limit_test_batches = limit
    with StopOnSignal(Processes()) as stop:
        trainer.callbacks += [EvaluationProgress(), stop]  # type: ignore[attr-defined]
        log.info("%s: testing with positions %s", subject.name, UNCHANGED)
        yield Control(name=UNCHANGED, metrics=measure_metrics(trainer, task, data))
        for name, change in changes.items():
            log.info("%s: testing with positions %s", subject.name, name)
            try:
                with change_positions(task.model, change):
                    yield Control(name=name, metrics=measure_metrics(trainer, task, data))
            except OptionError as error:
                yield Control(name=name, metrics={}, refused=str(error))


def build_attended(seen: CapturedAttention, samples: tuple[Sample, ...]) -> Attended:
    """Return the part of a diagnosis that the attention viewer shows."""
    return Attended(
        samples=samples,
        grid=seen.layout.grid,
        extra=seen.layout.extra,
        layers=tuple(one.layer for one in seen.layers),
        queries=seen.layout.query_index,
        weights=seen.weights,
        rollout=seen.rollout,
    )


def _list_facts(
    subject: Subject, seen: CapturedAttention, tests: Sequence[Control], limit: int | None
) -> dict[str, str]:
    """Return facts about model, samples and test, by their titles."""
    plan, first = seen.layout, seen.layers[0]
    dims = first.chain.dims
    metric = subject.task.monitor.replace("val/", "test/")
    heads = f"{dims.heads} heads"
    if dims.num_kv_heads != dims.heads:
        heads += f", {dims.num_kv_heads} key-value heads"
    model = f"{subject.recipe.model.name}, layers: {len(plan.layers)}, {heads}, width {dims.dim}"
    parameters = sum(parameter.numel() for parameter in subject.task.model.parameters())

    sample = " x ".join(map(str, plan.grid)) + f" {subject.unit}"
    if len(plan.grid) > 1:
        sample += f", {prod(plan.grid):,} in all"
    if plan.extra:
        sample += f"; before them {', '.join(plan.extra)}"
    return {
        "use of positions": describe_ablation(tests, metric, first.call.causal),
        "model": model,
        "parameters": f"{parameters:,}",
        "a sample": sample,
        "data": subject.experiment.data.title,
        "tested on": _describe_test(subject, limit),
    }


def _describe_test(subject: Subject, limit: int | None) -> str:
    count = subject.experiment.data.count_samples("test")
    batch_size = subject.recipe.data.options.get("batch_size")
    if limit is None or limit * (batch_size or 0) >= count:
        return f"{count:,} samples"
    batches = f"{limit:,} batch" if limit == 1 else f"{limit:,} batches"
    size = f" of {batch_size:,}" if batch_size else ""
    return f"{batches}{size}; the test part has {count:,}"
