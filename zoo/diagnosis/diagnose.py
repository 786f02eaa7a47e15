"""Diagnose the attention of models: one page about trained runs, or about an equipped model."""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Protocol

from torch import nn

from zoo.attention.layer import find_encoded
from zoo.config import Overrides
from zoo.data.base import Datasets
from zoo.diagnosis.equipped_model import CHANGE, Batch, EquippedModel
from zoo.diagnosis.inputs import CapturedAttention, Inputs, Saved, capture_attention
from zoo.diagnosis.position_use import judge_position_use
from zoo.diagnosis.report import (
    MEASURED,
    Attended,
    Control,
    DiagnosedRun,
    LayerMeasures,
    Measure,
    PositionUse,
    Report,
    Sample,
    SegmentedImage,
    compare_layers,
    draw_profiles,
)
from zoo.diagnosis.trained_run import load_runs
from zoo.diagnostics.capture import capture_layers, number_layers
from zoo.diagnostics.encoding_panels import draw_encodings
from zoo.diagnostics.layer_states import draw_states
from zoo.diagnostics.position_ablation import CHANGES, Change
from zoo.diagnostics.token_layout import find_layout
from zoo.errors import (
    ARGUMENT,
    ConfigIssue,
    DataError,
    NonFiniteError,
    OptionError,
    RecipeError,
    ZooError,
)
from zoo.integrations.equip import observe_attention
from zoo.models.transformer import Transformer
from zoo.options import Count
from zoo.packages import explain_imports, require_extra
from zoo.run.checkpoint import find_run_dir, is_read_only
from zoo.utils import check_writable, format_now, read_object
from zoo.version import __version__

log = logging.getLogger("zoo")

PAGE = "diagnosis.html"


@dataclass(frozen=True, kw_only=True)
class DiagnoseOptions:
    """The measurements of a diagnosis, and its output."""

    samples: Count = 4
    """How many of the first test samples to show. Measures are of 32 at least, or of all."""

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
        """The layers as a tuple; None: all."""
        return (self.layers,) if isinstance(self.layers, int) else self.layers


class Subject(Protocol):
    """A model that can be diagnosed, with samples to run it on and a way to test it."""

    name: str
    """A name that is unique on the page."""
    checkpoint: str
    """The location of its weights, as text."""
    saved: Saved
    """Its recipe, and curves that are already known."""

    @property
    def model(self) -> nn.Module:
        """The model, of which attention is captured."""

    @property
    def encodings(self) -> tuple[str, ...]:
        """The names of its encodings."""

    @property
    def label(self) -> str:
        """The kind of the model, in a word or two."""

    def load_inputs(self, shown: int, measured: int) -> tuple[Inputs, Inputs]:
        """Load the first samples, as arguments of the model.

        Args:
            shown: How many are shown.
            measured: How many are measured at least; fewer if there are no more.

        Returns:
            Those that are shown, and all that are measured; one object if both are the same.
        """

    def describe_samples(self, seen: CapturedAttention) -> tuple[Sample, ...]:
        """Return these samples with titles, as pictures or text."""

    def describe_masks(self) -> tuple[SegmentedImage, ...]:
        """Return these samples with masks and predictions; none if pixels have no class."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes of pixels; none for other tasks."""

    @property
    def class_ious(self) -> Mapping[str, float]:
        """Intersection over union of each class in the last test; none for other tasks."""

    def run_controls(self, changes: Mapping[str, Change], limit: int | None) -> Iterator[Control]:
        """Test the model, first with unchanged positions, then with each change."""

    def list_facts(self, seen: CapturedAttention, limit: int | None) -> dict[str, str]:
        """Return facts about its samples and its test, by their titles."""

    def locate_errors(self, section: str) -> AbstractContextManager[None]:
        """Raise errors within the block as issues of a section of the recipe, if it has one."""


def diagnose_runs(
    checkpoints: Sequence[str | Path],
    options: DiagnoseOptions,
    overrides: Overrides = (),
    datasets: Datasets | None = None,
) -> tuple[Report, Path]:
    """Write a page about one or several runs, and the same numbers as JSON next to it.

    Args:
        checkpoints: Run directories or checkpoints.
        options: What is measured, and where the page is written.
        overrides: Changes of the stored recipes.
        datasets: The samples of a Python program, for data `torch_dataset`.

    Returns:
        The report, and the path of the page.

    Raises:
        ZooError: With the exit code of the failure, before long work begins where possible.
    """
    subjects = load_runs(checkpoints, overrides, datasets)
    # a page that cannot be written is reported before anything is measured
    page = choose_page(options.to, [subject.path for subject in subjects])
    for subject in subjects:
        _check_layers(subject, options)
        # files of a run are read now, so that a damaged one fails before long work
        subject.read_saved()
    require_extra("compare")
    return _write([diagnose_subject(subject, options) for subject in subjects], page)


def diagnose_model(
    model: nn.Module,
    batch: Batch,
    options: DiagnoseOptions,
    decode: Callable[[list[int]], str] | None = None,
) -> tuple[Report, Path]:
    """Write a page about a model, equipped or plain, which runs on one batch.

    Args:
        model: The model; it runs in evaluation mode and is left unchanged.
        batch: Its keyword arguments, its arguments, or the only one.
        options: What is measured, and where the page is written.
        decode: Turns token ids into text, such as a tokenizer's `decode`; else ids are shown.

    Returns:
        The report, and the path of the page.

    Raises:
        OptionError: The model is neither equipped nor one that can be.
        RecipeError: The page cannot be written, or the model lacks a layer.
        PackageError: A package is missing that draws the page.
        NonFiniteError: Attention is not finite.
    """
    page = choose_page(options.to, [])
    with nullcontext() if find_encoded(model) else observe_attention(model):
        subject = EquippedModel(model, batch, decode)
        _check_layers(subject, options)
        require_extra("compare")
        found = diagnose_subject(subject, options)
    return _write([found], page)


def diagnose_subject(subject: Subject, options: DiagnoseOptions) -> DiagnosedRun:
    """Measure the attention of a model, and test it.

    Raises:
        RecipeError: The model cannot follow its data.
        NonFiniteError: Its attention is not finite.
    """
    # attention first: it takes seconds, and fails before the tests, which may take minutes
    inputs, measured = subject.load_inputs(options.samples, MEASURED)
    with subject.locate_errors("model"):
        layout = find_layout(subject.model, inputs, options.queries)

    log.info("%s: capturing the attention", subject.name)
    seen = capture_attention(subject.model, inputs, layout, options.layer_list)
    _check_attention(subject, seen)
    measures = _measure_attention(subject, measured, seen, options)
    samples = subject.describe_samples(seen)
    panels = draw_encodings(subject.model, inputs, seen.layers, layout.grid)
    panels += draw_states(subject.model, inputs)
    with subject.locate_errors("data"):
        changes = CHANGES if options.controls else {}
        tests = tuple(subject.run_controls(changes, options.limit))

    use = judge_position_use(tests, seen.layers[0].call.causal)
    log.info("%s: use of positions: %s", subject.name, use.text)
    return DiagnosedRun(
        name=subject.name,
        checkpoint=subject.checkpoint,
        recipe=subject.saved.recipe,
        unit=seen.layout.unit,
        encoding=subject.encodings,
        facts=_list_facts(subject, seen, use) | subject.list_facts(seen, options.limit),
        # the first test has unchanged positions, whose output differs from itself by 0
        metrics={name: value for name, value in tests[0].metrics.items() if name != CHANGE},
        training=subject.saved.training,
        # a measure without a value in any head has nothing to show
        measures=tuple(one for one in measures if not one.values.isnan().all()),
        profiles=draw_profiles(seen.layers),
        attended=_build_attended(seen, samples),
        encodings=panels,
        controls=tests,
        position_use=use,
        extrapolation=subject.saved.extrapolation,
        layer_types=name_layer_types(subject.model),
        segmented=subject.describe_masks(),
        classes=subject.classes,
        class_ious=subject.class_ious,
    )


def _measure_attention(
    subject: Subject, inputs: Inputs, seen: CapturedAttention, options: DiagnoseOptions
) -> tuple[Measure, ...]:
    """Measure the attention of all samples, one layer after another.

    Args:
        subject: The model.
        inputs: The samples that are measured.
        seen: The attention of those that are shown, also with changed positions.
        options: What is measured.
    """
    measures = LayerMeasures()
    if inputs and inputs[0] is not None and len(inputs[0]) > len(seen.weights):
        layout = find_layout(subject.model, inputs, options.queries)
        queries, layers = layout.query_index, options.layer_list
        capture_layers(subject.model, inputs, measures.add, queries, layers)
    else:
        for attention in seen.layers:
            measures.add(attention)
    compared = compare_layers(seen.layers, seen.zeroed, seen.shifted)
    return *measures.list_measures(), *compared


def name_layer_types(model: nn.Module) -> tuple[str, ...]:
    """Return the type of each layer of a model; empty if all are alike.

    In an equipped model, the encodings of a layer and whether it has a window are its type.
    """
    parts = find_encoded(model)
    if len(parts) != 1:
        return ()
    encoded = parts[0]
    if isinstance(encoded, Transformer):
        return encoded.layer_types
    names = tuple(" + ".join(one.name for one in chain) or "none" for chain in encoded.chains)
    if windowed := getattr(encoded, "windowed", ()):
        kinds = ("windowed" if one else "full" for one in windowed)
        names = tuple(f"{name}, {kind}" for name, kind in zip(names, kinds, strict=True))
    return names if len({*names}) > 1 else ()


def _check_layers(subject: Subject, options: DiagnoseOptions) -> None:
    """Raise RecipeError where a model lacks a chosen layer."""
    if options.layer_list == ():
        remedy = "name one at least, or leave it out for all"
        raise RecipeError(ConfigIssue(ARGUMENT, "layers", "the list is empty", remedy))
    try:
        number_layers(subject.model, options.layer_list)
    except OptionError as error:
        problem = f"{subject.name}: {error}"
        raise RecipeError(ConfigIssue(ARGUMENT, error.key, problem)) from None


def _check_attention(subject: Subject, seen: CapturedAttention) -> None:
    """Raise NonFiniteError where weights are finite, but so large that attention is not."""
    for one in seen.layers:
        if not one.weights.isfinite().all():
            problem = f"attention in layer {one.layer} is infinite or NaN"
            raise NonFiniteError(f"{subject.checkpoint}: {problem}")


def _build_attended(seen: CapturedAttention, samples: tuple[Sample, ...]) -> Attended:
    """Return the part of a diagnosis that the attention viewer shows."""
    return Attended(
        samples=samples,
        grid=seen.layout.grid,
        extra=seen.layout.extra,
        layers=tuple(one.layer for one in seen.layers),
        queries=seen.layout.queries,
        weights=seen.weights,
        rollout=seen.rollout,
    )


def _list_facts(subject: Subject, seen: CapturedAttention, use: PositionUse) -> dict[str, str]:
    """Return facts about the model and its samples, by their titles."""
    layout, first = seen.layout, seen.layers[0]
    dims = first.chain.dims
    heads = f"{dims.heads} heads"
    if dims.num_kv_heads != dims.heads:
        heads += f", {dims.num_kv_heads} key-value heads"
    parameters = sum(parameter.numel() for parameter in subject.model.parameters())

    sample = " x ".join(map(str, layout.grid)) + f" {layout.unit}"
    if len(layout.grid) > 1:
        sample += f", {prod(layout.grid):,} in all"
    if layout.extra:
        sample += f"; before them {', '.join(layout.extra)}"
    return {
        "use of positions": use.text,
        "model": f"{subject.label}, layers: {len(layout.layers)}, {heads}, width {dims.dim}",
        "parameters": f"{parameters:,}",
        "a sample": sample,
    }


def choose_page(to: str | None, checkpoints: Sequence[Path]) -> Path:
    """Return the page: `to`, else in the run directory of a single checkpoint, or here.

    Nothing is written into a cache of the Hub, nor into zoo itself.

    Raises:
        RecipeError: It cannot be written, or its JSON would overwrite another file.
    """
    default = Path(PAGE)
    if len(checkpoints) == 1 and not is_read_only(checkpoints[0]):
        default = find_run_dir(checkpoints[0]) / PAGE
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
            problem = f"{numbers} exists and is no diagnosis; the numbers would overwrite it"
            raise _refuse(problem, "name another page, or remove it")
        check_writable(page.parent)
    except OSError as error:
        problem = f"{page} cannot be written, {error.strerror or error}"
        raise _refuse(problem, "name another page") from None
    return page


def _is_diagnosis(file: Path) -> bool:
    try:
        found = read_object(file, "no diagnosis")
    except DataError:
        return False
    keys = {field.name for field in dataclasses.fields(Report)}
    return keys <= found.keys()


def _refuse(problem: str, remedy: str) -> RecipeError:
    return RecipeError(ConfigIssue(ARGUMENT, "to", problem, remedy))


def _write(runs: Sequence[DiagnosedRun], path: Path) -> tuple[Report, Path]:
    """Write the page; to a temporary folder, and raise ZooError, if there is no space for it."""
    with explain_imports():
        from zoo.diagnosis.page import diagnosis_page

    report = Report(version=__version__, made=format_now(), runs=tuple(runs))
    try:
        diagnosis_page.write(report, path)
    except OSError as error:
        problem = f"{path} cannot be written, {error.strerror}"
        # minutes of measuring are not lost for a full disk
        path = Path(tempfile.mkdtemp(prefix="zoo-")) / path.name
        diagnosis_page.write(report, path)
        raise ZooError(f"{problem}; the page is {path}") from None
    return report, path
