"""Measure the atlas of models: what heads, frequencies and layers do with positions."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated

from torch import Tensor, nn

from zoo.attention.layer import find_encoded
from zoo.config import Overrides
from zoo.data.base import Datasets
from zoo.diagnosis.atlas_report import LOSSES, AblatedHead, AtlasReport, AtlasRun, LayerMeans
from zoo.diagnosis.diagnose import Subject
from zoo.diagnosis.equipped_model import Batch, EquippedModel
from zoo.diagnosis.frequency_use import LayerFrequencies, measure_frequencies
from zoo.diagnosis.head_jobs import (
    JobMeasures,
    JobScores,
    choose_heads,
    list_copy_jobs,
    list_grid_jobs,
    list_text_jobs,
)
from zoo.diagnosis.intervals import estimate_mean
from zoo.diagnosis.position_probes import measure_probes
from zoo.diagnosis.position_use import SampleValues
from zoo.diagnosis.receptive_field import measure_fields
from zoo.diagnosis.report import LayerMeasures
from zoo.diagnosis.stimuli import (
    Stimulus,
    compare_readings,
    list_model_stimuli,
    list_run_stimuli,
    take_few,
)
from zoo.diagnosis.trained_run import TrainedRun, load_runs
from zoo.diagnostics.capture import LayerAttention, capture_layers, number_layers
from zoo.diagnostics.head_ablation import ablate_heads
from zoo.diagnostics.token_layout import find_layout
from zoo.errors import (
    ARGUMENT,
    ConfigIssue,
    DataError,
    NonFiniteError,
    OptionError,
    RecipeError,
    Stopped,
    ZooError,
)
from zoo.integrations.equip import observe_attention
from zoo.options import Between, Count
from zoo.packages import explain_imports, require_extra
from zoo.run.checkpoint import find_run_dir, is_read_only
from zoo.utils import check_writable, format_now, read_object, stop_on_signal
from zoo.version import __version__

log = logging.getLogger("zoo")

NUMBERS = "atlas.json"
SHOWN = ("distance", "near", "self", "first", "unplaced", "entropy", "position_r2")
"""The measures of a diagnosis that an atlas has by layer."""


@dataclass(frozen=True, kw_only=True)
class AtlasOptions:
    """The measurements of an atlas, and its output."""

    samples: Count = 8
    """How many of the first test samples to measure, and how many random texts."""

    queries: Count = 64
    """Query positions of each sample at most; class and register tokens come in addition."""

    length: Count | None = None
    """Tokens of the random text that is repeated; null: half the texts' length, 64 at most."""

    ablations: Annotated[int, Between(0)] = 32
    """Heads whose output is set to 0 at most, the best of each job first; 0: none."""

    to: str | None = None
    """The folder; null: the run directory, or the folder atlas for several runs."""


def map_runs(
    checkpoints: Sequence[str | Path],
    options: AtlasOptions,
    overrides: Overrides = (),
    datasets: Datasets | None = None,
) -> tuple[AtlasReport, Path]:
    """Write the atlas of one or several runs: a page, a table, and the numbers.

    A run whose numbers are in the folder already, of the same weights and options, is not measured
    again. After a signal, the finished runs are written.

    Args:
        checkpoints: Run directories or checkpoints.
        options: What is measured, and where the files are written.
        overrides: Changes of the stored recipes.
        datasets: The samples of a Python program, for data `torch_dataset`.

    Returns:
        The report, and the folder.

    Raises:
        ZooError: With the exit code of the failure, before long work begins where possible.
        Stopped: A signal came.
    """
    runs = load_runs(checkpoints, overrides, datasets, "map")
    folder = choose_folder(options.to, [run.path for run in runs])
    for run in runs:
        check_attention(run)
    require_extra("compare")
    # samples of a Python program have no digest
    known = {} if datasets is not None else read_finished(folder / NUMBERS)
    finished: list[AtlasRun] = []
    with stop_on_signal() as received:
        for run in runs:
            fingerprint = _digest(run, options)
            if (before := known.get(fingerprint)) is not None:
                log.info("%s: measured already, in %s", run.name, folder / NUMBERS)
                finished.append(before)
                continue
            with _locate_length():
                stimuli = list_run_stimuli(run, options.samples, options.length)
            finished.append(map_subject(run, stimuli, options, fingerprint))
            # after each, so that a crash at a later one loses nothing
            _write(_make_report(finished), folder)
    report = _make_report(finished)
    if finished:
        _write(report, folder)
    if received:
        count = f"{len(finished)} of {len(runs)} models are in {folder}" if finished else ""
        raise Stopped(received[0], count or "no model was finished")
    return report, folder


def map_model(model: nn.Module, batch: Batch, options: AtlasOptions) -> tuple[AtlasReport, Path]:
    """Write the atlas of a model, equipped or plain, which runs on one batch.

    Args:
        model: The model; it runs in evaluation mode and is left unchanged.
        batch: Its keyword arguments, its arguments, or the only one.
        options: What is measured, and where the files are written.

    Returns:
        The report, and the folder.

    Raises:
        OptionError: The model is neither equipped nor one that can be.
        RecipeError: The folder cannot be written.
        PackageError: A package is missing that draws the page.
        NonFiniteError: Attention is not finite.
    """
    folder = choose_folder(options.to, [])
    with nullcontext() if find_encoded(model) else observe_attention(model):
        subject = EquippedModel(model, batch)
        check_attention(subject)
        require_extra("compare")
        with _locate_length():
            stimuli = list_model_stimuli(subject, options.samples, options.length)
        found = map_subject(subject, stimuli, options, "")
    report = _make_report([found])
    _write(report, folder)
    return report, folder


def _make_report(runs: Sequence[AtlasRun]) -> AtlasReport:
    return AtlasReport(version=__version__, made=format_now(), runs=tuple(runs))


@contextmanager
def _locate_length() -> Iterator[None]:
    """Raise what is wrong with the length of the repeated text as an issue of the command."""
    try:
        yield
    except OptionError as error:
        if error.key != "length":
            raise
        raise RecipeError(ConfigIssue(ARGUMENT, "length", str(error))) from None


def map_subject(
    subject: Subject, stimuli: Sequence[Stimulus], options: AtlasOptions, fingerprint: str
) -> AtlasRun:
    """Measure the atlas of one model.

    Args:
        subject: The model.
        stimuli: The given samples and, where there is one, the repeated text.
        options: What is measured.
        fingerprint: The digest of its weights and options; empty if there is none.

    Raises:
        RecipeError: The model cannot follow its data.
        NonFiniteError: Its attention is not finite.
    """
    start = time.perf_counter()
    given, *repeated = stimuli
    absent: dict[str, str] = {}
    with subject.locate_errors("model"):
        layout = find_layout(given.model, given.inputs, options.queries)

        log.info("%s: measuring heads and frequencies", subject.name)
        layers: list[int] = []
        frequencies: list[LayerFrequencies] = []
        is_text = layout.unit == "tokens"
        jobs = JobMeasures((lambda _: list_text_jobs()) if is_text else list_grid_jobs)
        measures = LayerMeasures(SHOWN)
        causal: list[bool] = []

        def add(seen: LayerAttention) -> None:
            _check_finite(subject, seen)
            layers.append(seen.layer)
            causal.append(seen.call.causal)
            jobs.add(seen)
            measures.add(seen)
            if (used := measure_frequencies(seen)) is not None:
                frequencies.append(used)

        capture_layers(given.model, given.inputs, add, layout.query_index)
        scores = [*jobs.list_scores(), *_score_copies(repeated)]
        log.info("%s: measuring receptive fields and probes", subject.name)
        fields = measure_fields(*take_few(given, len(layout.columns)))
        probes = measure_probes(given.model, given.more or given.inputs)
        if not probes:
            absent["probes"] = "no probe of positions: too few samples have the same ones"
        if not fields:
            absent["fields"] = "no token is real in all samples, from which fields would reach"
        if not frequencies:
            absent["frequencies"] = "no pairs of channels turn by the position times a frequency"
        if not repeated:
            absent["repeated"] = "no random text is repeated: the model predicts no next token"

        # rows of scores are layers in the order of the pass
        chosen = choose_heads([one.values for one in scores], options.ablations)
        heads = [(layers[row], head) for row, head in chosen]
        ablated = tuple(_ablate(subject, stimuli, heads))
    if not ablated:
        absent["ablations"] = "no head was ablated"

    readings = {stimulus.name: stimulus.measure() for stimulus in stimuli}
    samples = f"{len(layout.query_index)} queries of {_count_samples(readings['given'])} samples"
    facts = {
        "model": f"{subject.label}, {len(layers)} layers",
        "encoding": ", ".join(subject.encodings) or "none",
        "measured on": samples,
        "ablated heads": f"{len(ablated)} of {sum(map(_count_heads, scores[:1]))}",
        "seconds": f"{time.perf_counter() - start:.1f}",
    }
    for name, reading in readings.items():
        if not isinstance(reading, Tensor):
            mean = estimate_mean(reading.values[:, None], reading.weights).mean
            facts[LOSSES[name]] = f"{float(mean):.4f}"
    if repeated and repeated[0].text is not None:
        facts["repeated text"] = f"{repeated[0].text.tokens.shape[1]} random tokens"
    means = [
        LayerMeans(
            name=one.name,
            title=one.title,
            unit=one.unit,
            values=one.values.double().nanmean(-1),
            even=one.even,
        )
        for one in measures.list_measures()
    ]
    return AtlasRun(
        name=subject.name,
        checkpoint=subject.checkpoint,
        fingerprint=fingerprint,
        unit=layout.unit,
        facts=facts,
        layers=tuple(layers),
        jobs=tuple(scores),
        ablated=ablated,
        measures=tuple(means),
        frequencies=tuple(frequencies),
        fields=fields,
        probes=probes,
        absent=absent,
    )


def _score_copies(repeated: Sequence[Stimulus]) -> list[JobScores]:
    """Return the scores of jobs that only repeated text shows."""
    if not repeated or repeated[0].text is None:
        return []
    (stimulus,), tokens = repeated, repeated[0].text.tokens
    jobs = JobMeasures(lambda _: list_copy_jobs(tokens))
    capture_layers(stimulus.model, stimulus.inputs, jobs.add)
    return [*jobs.list_scores()]


def _ablate(
    subject: Subject, stimuli: Sequence[Stimulus], heads: Sequence[tuple[int, int]]
) -> list[AblatedHead]:
    """Return the change of the loss of each stimulus for each head, by layer and head."""
    if not heads:
        return []
    log.info("%s: setting the outputs of %d heads to 0", subject.name, len(heads))
    # one head at a time, each compared with the whole model on the same samples
    before = {stimulus.name: stimulus.measure() for stimulus in stimuli}
    found = []
    for layer, head in sorted(heads):
        with ablate_heads(subject.model, {layer: [head]}):
            changes = {
                stimulus.name: compare_readings(before[stimulus.name], stimulus.measure())
                for stimulus in stimuli
            }
        found.append(
            AblatedHead(
                layer=layer, head=head, given=changes["given"], repeated=changes.get("repeated")
            )
        )
    return found


def _count_heads(scores: JobScores) -> int:
    return int((~scores.values.isnan()).sum())


def _count_samples(reading: SampleValues | Tensor) -> int:
    return len(reading) if isinstance(reading, Tensor) else len(reading.values)


def _check_finite(subject: Subject, seen: LayerAttention) -> None:
    """Raise NonFiniteError where weights are finite, but so large that attention is not."""
    if not seen.weights.isfinite().all():
        problem = f"attention in layer {seen.layer} is infinite or NaN"
        raise NonFiniteError(f"{subject.checkpoint}: {problem}")


def check_attention(subject: Subject) -> None:
    """Raise RecipeError for a model without attention of zoo."""
    try:
        number_layers(subject.model, None)
    except OptionError as error:
        raise RecipeError(ConfigIssue(ARGUMENT, "", f"{subject.name}: {error}")) from None


def _digest(run: TrainedRun, options: AtlasOptions) -> str:
    """Return a digest of everything that the numbers of a run depend on."""
    digest = hashlib.sha256(run.path.read_bytes())
    settings = {**asdict(options), "to": None, "version": __version__}
    digest.update(json.dumps(settings, sort_keys=True).encode())
    digest.update(run.recipe.yaml().encode())
    return digest.hexdigest()


def choose_folder(to: str | None, checkpoints: Sequence[Path]) -> Path:
    """Return the folder: `to`, else the run directory of a single checkpoint, or `atlas` here.

    Nothing is written into a cache of the Hub, nor into zoo itself.

    Raises:
        RecipeError: It cannot be written, or an atlas would overwrite another file.
    """
    folder = Path("atlas")
    if to is not None:
        folder = Path(to)
    elif len(checkpoints) == 1 and not is_read_only(checkpoints[0]):
        folder = find_run_dir(checkpoints[0])
    if folder.exists() and not folder.is_dir():
        raise _refuse(f"{folder} is a file", "name a folder")
    numbers = folder / NUMBERS
    if numbers.exists() and not _is_atlas(numbers):
        problem = f"{numbers} exists and is no atlas; the numbers would overwrite it"
        raise _refuse(problem, "name another folder, or remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_writable(folder)
    except OSError as error:
        problem = f"{folder} cannot be written, {error.strerror or error}"
        raise _refuse(problem, "name another folder") from None
    return folder


def _refuse(problem: str, remedy: str) -> RecipeError:
    return RecipeError(ConfigIssue(ARGUMENT, "to", problem, remedy))


def _is_atlas(file: Path) -> bool:
    try:
        found = read_object(file, "no atlas")
    except DataError:
        return False
    return {field.name for field in fields(AtlasReport)} <= found.keys()


def read_finished(file: Path) -> dict[str, AtlasRun]:
    """Read the runs of an earlier atlas by fingerprint; none of a file of another version."""
    if not file.exists():
        return {}
    try:
        stored = read_object(file, "no atlas")["runs"]
        runs = [AtlasRun.from_dict(one) for one in stored]
    except (DataError, KeyError, TypeError, ValueError, AttributeError):
        # it is measured again, and the file written anew
        return {}
    return {run.fingerprint: run for run in runs if run.fingerprint}


def _write(report: AtlasReport, folder: Path) -> None:
    """Write the files of an atlas.

    Raises:
        ZooError: There is no space for one.
    """
    with explain_imports():
        from zoo.diagnosis.page import atlas_page

    try:
        atlas_page.write(report, folder)
    except OSError as error:
        problem = f"{error.filename or folder} cannot be written, {error.strerror or error}"
        raise ZooError(problem) from None
