"""Test and use trained models: `zoo.evaluate`, `predict`, `generate`, `diagnose`, `atlas`."""

from __future__ import annotations

import html
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.api.guard import guard, name_datasets, read_datasets
from zoo.api.training import Run
from zoo.config import Overrides, join_overrides
from zoo.config.arguments import validate_options
from zoo.errors import OptionError
from zoo.utils import escape_text

if TYPE_CHECKING:
    from torch import nn

    from zoo.data.base import Datasets
    from zoo.diagnosis.atlas_report import AtlasReport
    from zoo.diagnosis.report import Report
    from zoo.evaluation.extend_result import ExtendResult
    from zoo.evaluation.generate import Generation
    from zoo.evaluation.predict import Predictions
    from zoo.evaluation.results import Evaluation


class Diagnosis:
    """The page of `zoo diagnose`, and the report that it shows.

    Attributes:
        path: The page, one self-contained HTML file; the numbers are in the JSON file next to it.
        report: What was measured, run by run.
    """

    def __init__(self, path: Path, report: Report) -> None:
        self.path, self.report = path.resolve(), report

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the JSON file next to the page."""
        # not before: its module draws
        from zoo.diagnosis.page.viewer_data import to_dict

        return to_dict(self.report)

    def show(self) -> None:
        """Show the page: in a notebook below the cell, else in the browser."""
        if "ipykernel" in sys.modules:
            from IPython.display import display

            display(self)  # type: ignore[no-untyped-call]
            return
        import webbrowser

        webbrowser.open(self.path.as_uri())

    def __repr__(self) -> str:
        return f"Diagnosis({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """Return the page in a frame, for notebooks."""
        page = html.escape(self.path.read_text(encoding="utf-8"))
        style = "width: 100%; height: 720px; border: 1px solid #ccc"
        return f'<iframe srcdoc="{page}" style="{style}"></iframe>'


class Atlas:
    """The files of `zoo atlas`, and the report that they show.

    Attributes:
        path: The folder of atlas.html, atlas.md and atlas.json.
        report: What was measured, model by model.
    """

    def __init__(self, path: Path, report: AtlasReport) -> None:
        self.path, self.report = path.resolve(), report

    def table(self) -> str:
        """Return the table of all models, as `zoo atlas` prints it."""
        from zoo.diagnosis.page.atlas_page import format_table

        return f"{format_table(self.report)}\n\n{escape_text(str(self.path / 'atlas.html'))}"

    def to_dict(self) -> dict[str, Any]:
        """Return the content of atlas.json."""
        from zoo.diagnosis.page.atlas_page import to_dict

        return to_dict(self.report)

    def __repr__(self) -> str:
        return f"Atlas({str(self.path)!r})"

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
        return f"<pre>{html.escape(self.table())}</pre>"


@guard
def evaluate(
    run: str | Path | Run,
    overrides: Overrides = (),
    *,
    resolutions: Sequence[int | str] | None = None,
    lengths: Sequence[int | str] | None = None,
    stride: int | None = None,
    extrapolation: Sequence[str] | None = None,
    factors: Sequence[float] | None = None,
    data_variants: Mapping[str, Mapping[str, Any]] | None = None,
    to: str | Path | None = None,
    data: Any = None,
    verbose: bool | None = True,
) -> Evaluation:
    """Test a checkpoint, also beyond the training length or resolution, as `zoo eval` does.

    Args:
        run: A run, a run directory or a checkpoint.
        overrides: Changes of the stored recipe, as of `zoo.fit`.
        resolutions: Image sizes in pixels: 24, "16x32" for height and width, "2x" for twice the
            training size. None: those of the recipe, as with all arguments here.
        lengths: Lengths in tokens: 512, or "2x" for twice the training length.
        stride: Tokens from window to window at these lengths.
        extrapolation: Methods to try beyond the training size: those of the encoding, "drop",
            "truncate" for texts, "sliding_window" for images with masks, and "resize", which
            resizes images of any other size to the training size.
        factors: Factors to try of each method, in place of the one that a size requires.
        data_variants: {name: {option: value}}, named changes of the options of the data.
        to: The folder of evaluation.json, its figure and the confusion matrix; by default the run
            directory. It is needed for a run that may only be read.
        data: Datasets to test on, as of `zoo.fit`; only "test" is needed.
        verbose: Print progress to standard error. None leaves logging to the caller.

    Returns:
        The evaluation: `metrics` on the test data, and what was measured under each condition. Its
        `problem` says why a file could not be written, such as on a full disk.

    Raises:
        RecipeError: An argument is wrong, the data does not fit the model, or the results cannot be
            written; nothing was measured.
        DataError: Data is missing or unreadable.
        CheckpointError: The checkpoint is missing, corrupt, unsafe or of another version.
    """
    from zoo.evaluation.evaluate import evaluate as run_evaluation

    datasets = read_datasets(data)
    chosen = {
        "resolutions": resolutions,
        "lengths": lengths,
        "stride": stride,
        "extrapolation": extrapolation,
        "factors": factors,
        "data_variants": data_variants,
    }
    edits = join_overrides(name_datasets(datasets), overrides, _prefix("evaluate", chosen))
    return run_evaluation(os.fspath(run), edits, datasets, None if to is None else os.fspath(to))


def _prefix(section: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a section as overrides, without those that are None."""
    return {f"{section}.{key}": value for key, value in options.items() if value is not None}


@guard
def predict(
    run: str | Path | Run,
    paths: str | Path | Sequence[str | Path],
    overrides: Overrides = (),
    *,
    top: int | None = None,
    verbose: bool | None = True,
) -> Predictions:
    """Classify files and folders with a trained model, as `zoo predict` does.

    `zoo.load(run).predict` takes tensors, pictures and texts too.

    Args:
        run: A run, a run directory or a checkpoint.
        paths: Files and folders, one or several.
        overrides: Changes of the stored recipe, as of `zoo.fit`.
        top: Classes to report at most. None: what the recipe says.
        verbose: Print messages, such as about files that are skipped, to standard error. None
            leaves logging to the caller.

    Returns:
        The predictions, and the files that could not be read.

    Raises:
        DataError: No file could be read.
        RecipeError: The task predicts nothing for a single file, or an argument is wrong.
        CheckpointError: As of `zoo.load`.
    """
    from zoo.evaluation.predict import predict as run_prediction

    locations = [paths] if isinstance(paths, str | Path) else [*paths]
    edits = join_overrides(overrides, _prefix("predict", {"top": top}))
    return run_prediction(os.fspath(run), [Path(location) for location in locations], edits)


@guard
def generate(
    run: str | Path | Run,
    prompt: str | None = None,
    overrides: Overrides = (),
    *,
    tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: str | None = None,
    samples: int | None = None,
    seed: int | None = None,
    cache: bool | None = None,
    verbose: bool | None = False,
) -> Generation:
    """Continue a prompt with a language model, as `zoo generate` does.

    Args:
        run: A run, a run directory or a checkpoint.
        prompt: Text to continue. None: what the recipe says, as with all arguments here.
        overrides: Changes of the stored recipe, as of `zoo.fit`.
        tokens: Tokens to generate at most.
        temperature: Divides the logits; 0 always takes the likeliest token.
        top_k: Sample from so many of the likeliest tokens.
        top_p: Sample from the likeliest tokens that together have this probability.
        stop: Text at which a continuation ends.
        samples: Continuations.
        seed: Seed of the first continuation; the others follow.
        cache: Keep keys and values of past tokens instead of computing them again.
        verbose: Print progress to standard error. None leaves logging to the caller.

    Returns:
        The prompt and its continuations, `samples`.

    Raises:
        RecipeError: The model writes no text, or an argument is wrong.
        CheckpointError: As of `zoo.load`.
    """
    from zoo.evaluation.generate import generate as run_generation

    chosen = {
        "prompt": prompt,
        "tokens": tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "stop": stop,
        "samples": samples,
        "seed": seed,
        "cache": cache,
    }
    edits = join_overrides(overrides, _prefix("generate", chosen))
    return run_generation(os.fspath(run), edits)


@guard
def diagnose(
    runs: str | Path | Run | nn.Module | Sequence[str | Path | Run],
    overrides: Any = (),
    *,
    samples: int = 4,
    queries: int = 64,
    layers: int | Sequence[int] | None = None,
    to: str | Path | None = None,
    controls: bool = True,
    limit: int | None = None,
    decode: Callable[[list[int]], str] | None = None,
    data: Any = None,
    verbose: bool | None = True,
) -> Diagnosis:
    """Write a page about the attention of trained models, as `zoo diagnose` does.

    Args:
        runs: Runs, run directories or checkpoints, one or several; or a model that `zoo.equip`
            changed, or that contains such a model, or a plain one that could be equipped.
        overrides: Changes of the stored recipes, as of `zoo.fit`. For a model: the batch to run it
            on, as a mapping of its keyword arguments, a sequence of its arguments, or one tensor.
        samples: How many of the first test samples to show; measures are of 32 at least, or of all.
            A model runs on the whole batch.
        queries: Query positions at most; class and register tokens come in addition.
        layers: Layers to show, from 0. None: all.
        to: The page. None: diagnosis.html in the run directory, else in the current folder.
        controls: Test again with positions shuffled, shifted, zeroed and reversed.
        limit: Test batches at most. None: all. Not for a model.
        decode: Turns a list of token ids into text. Only for a model.
        data: Datasets to take samples from and to test on, as of `zoo.fit`; only "test" is needed.
            Not for a model.
        verbose: Print progress to standard error. None leaves logging to the caller.

    Returns:
        The page and its report.

    Raises:
        RecipeError: An argument is wrong, or the model cannot follow its data.
        OptionError: A model can have no encodings of zoo, or an argument does not apply to it.
        DataError: Data is missing or unreadable.
        CheckpointError: As of `zoo.load`.
        NonFiniteError: Weights or attention are not finite.
    """
    from torch import nn

    from zoo.diagnosis.diagnose import DiagnoseOptions, diagnose_model, diagnose_runs

    chosen = {
        "samples": samples,
        "queries": queries,
        "layers": layers,
        "to": to,
        "controls": controls,
        "limit": limit,
    }
    options = validate_options(DiagnoseOptions, chosen)
    if isinstance(runs, nn.Module):
        _refuse_for_model(data=data, limit=limit)
        report, path = diagnose_model(runs, overrides, options, decode)
    else:
        if decode is not None:
            message = "a run decodes tokens with its own vocabulary; leave decode out"
            raise OptionError("decode", message)
        names, edits, datasets = _read_runs(runs, overrides, data)
        report, path = diagnose_runs(names, options, edits, datasets)
    return Diagnosis(path, report)


@guard
def atlas(
    runs: str | Path | Run | nn.Module | Sequence[str | Path | Run],
    overrides: Any = (),
    *,
    samples: int = 8,
    queries: int = 64,
    length: int | None = None,
    ablations: int = 32,
    to: str | Path | None = None,
    data: Any = None,
    verbose: bool | None = True,
) -> Atlas:
    """Map what heads, frequencies and layers of models do with positions, as `zoo atlas` does.

    Args:
        runs: Runs, run directories or checkpoints, one or several; or a model that `zoo.equip`
            changed, or that contains such a model, or a plain one that could be equipped.
        overrides: Changes of the stored recipes, as of `zoo.fit`. For a model: the batch to run it
            on, as a mapping of its keyword arguments, a sequence of its arguments, or one tensor.
        samples: How many of the first test samples to measure, and how many random texts. A model
            runs on the whole batch.
        queries: Query positions of each sample at most; class and register tokens come in addition.
        length: Tokens of the random text that is repeated. None: half the length of the texts, 64
            at most.
        ablations: Heads whose output is set to 0 at most, the best of each job first; 0: none.
        to: The folder. None: the run directory, else `atlas` in the current folder.
        data: Datasets to take samples from, as of `zoo.fit`; only "test" is needed. Not for a
            model.
        verbose: Print progress to standard error. None leaves logging to the caller.

    Returns:
        The folder and the report.

    Raises:
        RecipeError: An argument is wrong, or the model cannot follow its data.
        OptionError: A model can have no encodings of zoo, or an argument does not apply to it.
        DataError: Data is missing or unreadable.
        CheckpointError: As of `zoo.load`.
        NonFiniteError: Weights or attention are not finite.
        Stopped: A signal came; the finished models are in the folder.
    """
    from torch import nn

    from zoo.diagnosis.atlas import AtlasOptions, map_model, map_runs

    chosen = {
        "samples": samples,
        "queries": queries,
        "length": length,
        "ablations": ablations,
        "to": to,
    }
    options = validate_options(AtlasOptions, chosen)
    if isinstance(runs, nn.Module):
        _refuse_for_model(data=data)
        report, folder = map_model(runs, overrides, options)
    else:
        names, edits, datasets = _read_runs(runs, overrides, data)
        report, folder = map_runs(names, options, edits, datasets)
    return Atlas(folder, report)


def _read_runs(
    runs: str | Path | Run | Sequence[str | Path | Run], overrides: Any, data: Any
) -> tuple[list[str], Overrides, Datasets | None]:
    """Return addresses of runs, changes of their recipes, and datasets to take samples from."""
    datasets = read_datasets(data)
    addresses = [runs] if isinstance(runs, str | Path | Run) else [*runs]
    edits = join_overrides(name_datasets(datasets), overrides)
    return [os.fspath(run) for run in addresses], edits, datasets


def _refuse_for_model(**arguments: Any) -> None:
    """Raise OptionError for an argument of runs that comes with a model."""
    for name, value in arguments.items():
        if value is not None:
            raise OptionError(name, f"a model runs only on its batch; leave {name} out")


@guard
def extend(
    run: str | Path | Run,
    overrides: Overrides = (),
    *,
    to: int | str = "2x",
    methods: Sequence[str] | None = None,
    steps: int = 100,
    lr: float | None = None,
    gate: Any = None,
    evaluator: str | Path | Run | None = None,
    folder: str | Path | None = None,
    verbose: bool | None = True,
) -> ExtendResult:
    """Test ways to a longer context side by side, from one trained model, as `zoo extend` does.

    Args:
        run: A run, a run directory or a checkpoint of a causal language model.
        overrides: Changes of the stored recipe, as of `zoo.fit`.
        to: Length to reach in tokens: 512, or "4x" for four times the trained length.
        methods: Methods to test, such as "none", "yarn", "yarn+train". None: all that fit.
        steps: Optimizer steps of each method that trains.
        lr: Learning rate of these steps. None: a third of that of the recipe.
        gate: {"short_loss": 0.01}: a method is stopped whose loss at the trained length rises by
            more than this share. None: 0.01.
        evaluator: A run whose model reads the new length and chooses the key tokens of LongPPL.
            None: no LongPPL.
        folder: Folder of the results. What is in it already from the same call is not measured
            again. None: a folder in the run directory.
        verbose: Print progress to standard error. None leaves logging to the caller.

    Returns:
        The losses of each method at both lengths, their costs, and which one to take.

    Raises:
        RecipeError: An argument is wrong, or the model cannot be extended; nothing was measured.
        CheckpointError: As of `zoo.load`.
    """
    from zoo.evaluation.extend import ExtendOptions
    from zoo.evaluation.extend import extend as run_extension

    chosen = {
        "to": to,
        "methods": methods,
        "steps": steps,
        "lr": lr,
        "gate": gate,
        "evaluator": None if evaluator is None else os.fspath(evaluator),
        "folder": folder,
    }
    options = {key: value for key, value in chosen.items() if key != "gate" or value is not None}
    return run_extension(os.fspath(run), overrides, validate_options(ExtendOptions, options))
