"""The commands as Python functions: fit, evaluate, predict, generate and diagnose.

They do what the command line does, with the same numbers and errors.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo import config
from zoo.api.results import Diagnosis, Run
from zoo.config import Overrides, Recipe
from zoo.config.command_line import format_edits, format_flow, format_options, parse_overrides
from zoo.config.overrides import join_overrides, list_edits
from zoo.errors import ConfigIssue, OptionError, RecipeError, Stopped
from zoo.run.process_state import isolate_process

if TYPE_CHECKING:
    from torch import nn

    from zoo.data.base import Datasets
    from zoo.data.spec import DataSpec
    from zoo.evaluation.results import Evaluation

log = logging.getLogger("zoo")

DATASETS = "data.name=torch_dataset"


def fit(
    recipe: str | Path | Recipe,
    overrides: Overrides = (),
    *,
    data: Any = None,
    spec: DataSpec | None = None,
    run_dir: str | Path | None = None,
    resume: str | Path = "never",
    wait: bool = False,
    verbose: bool = True,
) -> Run:
    """Train a recipe, then test its best checkpoint, as `zoo fit` does.

    An interrupt (Ctrl+C, or the stop button of a notebook) saves the state after the current step
    and returns the run, whose `stopped` is then true. A second one stops at once.

    Args:
        recipe: A YAML file, the name of a registered recipe, or a recipe of `zoo.load_recipe`.
        overrides: Changes of the recipe: {key: value}, or a list of `zoo.config.Change` and
            `zoo.config.Removal`.
        data: Samples of your own instead of the recipe's: {"train": dataset, "val": ..., "test":
            ...}; a pair (train, val), of which val is the test too; or a Lightning data module. The
            recipe's data becomes `torch_dataset`, with its options `batch_size`, `workers`, `size`.
            The recipe alone cannot repeat this: `zoo.evaluate` and `zoo.diagnose` take `data` too.
        spec: The facts of the samples of `data`: `zoo.ImageSpec`, `zoo.VideoSpec`, `zoo.TextSpec`
            or `zoo.TextClassificationSpec`. By default the attribute `spec` of `data`.
        run_dir: The run directory; by default a new one, runs/RECIPE/TIME-HASH.
        resume: "never", "auto" for the latest run, or the run or checkpoint to resume from.
        wait: Wait while another process trains in the run directory, instead of raising.
        verbose: Print progress and results to standard error.

    Returns:
        The run.

    Raises:
        ZooError: Another process trains in the run directory; the message names it.
        RecipeError: The recipe, an override or an argument is wrong; nothing was started.
        DataError: Data is missing or unreadable.
        CheckpointError: The checkpoint to resume from is missing, corrupt or of another recipe.
        NonFiniteError: A loss, gradient or weight became non-finite.
    """
    with isolate_process(verbose):
        from zoo.run import fit as runner
        from zoo.run import run_dir as run_dirs

        datasets = _collect_datasets("zoo.fit", data, spec)
        words = [*_describe_data(datasets), *format_edits(list_edits(overrides))]
        resolved = _resolve(recipe, words)
        folder = Path(run_dir) if run_dir else None
        with _write_command(recipe, words, folder, str(resume), wait=wait) as command:
            training = runner.begin(resolved, folder, str(resume), command, datasets, wait=wait)
            if training is None:  # other processes have done all of it
                return Run(folder or run_dirs.find_latest(resolved))
        run = Run(training.start.run)
        try:
            training.run()
        except Stopped as stopped:
            log.info("%s", stopped)
        except (KeyboardInterrupt, SystemExit):  # Lightning exits at one that nobody handles
            log.info("interrupted at once; %s holds what was saved before", run.path)
        return run


def _resolve(recipe: str | Path | Recipe, words: Sequence[str]) -> Recipe:
    if isinstance(recipe, Recipe):
        origin = f"recipe {recipe.name}"
        edits = parse_overrides(words)
        return config.from_plain(recipe.plain(), edits, origin=origin, name=recipe.name)
    return config.load(recipe, parse_overrides(words))


@contextlib.contextmanager
def _write_command(
    recipe: str | Path | Recipe,
    words: Sequence[str],
    folder: Path | None,
    resume: str,
    *,
    wait: bool,
) -> Iterator[list[str]]:
    """Yield the words of `zoo` that train the same recipe in other processes."""
    chosen = [] if folder is None else ["--run-dir", str(folder)]
    rest = [*words, *chosen, "--resume", resume, *(["--wait"] if wait else [])]
    if not isinstance(recipe, Recipe):
        yield ["fit", str(recipe), *rest]
        return
    with tempfile.TemporaryDirectory(prefix="zoo-") as temporary:
        file = Path(temporary) / f"{recipe.name}.yaml"
        file.write_text(recipe.yaml(), encoding="utf-8")
        yield ["fit", str(file), *rest]


def _collect_datasets(caller: str, data: Any, spec: DataSpec | None) -> Datasets | None:
    """Return the datasets of an argument `data`. Raises RecipeError if it cannot be used."""
    from zoo.data.torch_dataset import collect_datasets

    if data is None and spec is None:
        return None
    try:
        if data is None:
            raise OptionError("spec", "describes samples that are passed as data; there are none")
        return collect_datasets(data, spec)
    except OptionError as error:
        raise RecipeError(ConfigIssue(caller, error.key, str(error))) from None


def _describe_data(datasets: Datasets | None) -> list[str]:
    """Return the overrides that name datasets in the recipe."""
    from zoo.data.torch_dataset import describe_datasets

    if datasets is None:
        return []
    description = format_flow(describe_datasets(datasets), "data.description")
    return [DATASETS, f"data.description={description}"]


def evaluate(
    run: str | Path | Run,
    overrides: Overrides = (),
    *,
    resolutions: Sequence[int | str] | None = None,
    lengths: Sequence[int | str] | None = None,
    stride: int | None = None,
    extrapolation: Sequence[str] | None = None,
    data_variants: Mapping[str, Mapping[str, Any]] | None = None,
    data: Any = None,
    verbose: bool = True,
) -> Evaluation:
    """Test a checkpoint, also past the length or resolution of training, as `zoo eval` does.

    Args:
        run: A run, a run directory or a checkpoint.
        overrides: Changes of the stored recipe, as of `zoo.fit`.
        resolutions: Image sizes in pixels: 24, "16x32" for height and width, "2x" for twice that of
            training. None: those of the recipe, as with all arguments here.
        lengths: Lengths in tokens: 512, or "2x" for twice that of training.
        stride: Tokens from window to window at these lengths.
        extrapolation: Methods of the encoding to try beyond the size of training.
        data_variants: {name: {option: value}}, named changes of the options of the data.
        data: Datasets to test on, as of `zoo.fit`; only "test" is needed.
        verbose: Print progress to standard error.

    Returns:
        The evaluation: `metrics` on the test data, and what was measured under each condition.

    Raises:
        RecipeError: An argument is wrong, or the data does not fit the model.
        DataError: Data is missing or unreadable.
        CheckpointError: The checkpoint is missing, corrupt, unsafe or of another version.
    """
    with isolate_process(verbose):
        from zoo.evaluation.evaluate import evaluate as run_evaluation

        datasets = _collect_datasets("zoo.evaluate", data, None)
        chosen = {
            "resolutions": resolutions,
            "lengths": lengths,
            "stride": stride,
            "extrapolation": extrapolation,
            "data_variants": data_variants,
        }
        given = {f"evaluate.{key}": value for key, value in chosen.items() if value is not None}
        words = [
            *_describe_data(datasets),
            *format_edits(list_edits(overrides)),
            *format_edits(list_edits(given)),
        ]
        result = run_evaluation(os.fspath(run), words, datasets=datasets)
        if result is None:
            problem = "an evaluation in several processes returns nothing to Python"
            remedy = "leave trainer.devices out, or run zoo eval"
            raise RecipeError(ConfigIssue("zoo.evaluate", "trainer.devices", problem, remedy))
        return result


def predict(
    run: str | Path | Run,
    paths: str | Path | Sequence[str | Path],
    overrides: Overrides = (),
    *,
    top: int | None = None,
) -> dict[str, Any]:
    """Classify files and folders with a trained model, as `zoo predict` does.

    `zoo.load(run).predict` takes tensors, pictures and texts too.

    Args:
        run: A run, a run directory or a checkpoint.
        paths: Files and folders, one or several.
        overrides: Changes of the stored recipe, as of `zoo.fit`.
        top: Classes to report at most. None: what the recipe says.

    Returns:
        What `zoo predict --json` prints: recipe, checkpoint, predictions and skipped files.

    Raises:
        DataError: No file could be read.
        RecipeError: The model predicts nothing of a file by itself, or an argument is wrong.
        CheckpointError: As of `zoo.load`.
    """
    with isolate_process(verbose=True):
        from zoo.evaluation.predict import predict as run_prediction

        given = [paths] if isinstance(paths, str | Path) else [*paths]
        options: dict[str, Any] = {} if top is None else {"predict.top": top}
        words = [*(os.fspath(one) for one in given), *format_edits(list_edits(options))]
        return run_prediction(
            os.fspath(run), [*words, *format_edits(list_edits(overrides))], quiet=True
        )


def generate(
    run: str | Path | Run, prompt: str, overrides: Overrides = (), **options: Any
) -> dict[str, Any]:
    """Continue a text with a language model, as `zoo generate` does.

    Args:
        run: A run, a run directory or a checkpoint.
        prompt: The text to continue.
        overrides: Changes of the stored recipe, as of `zoo.fit`.
        **options: Those of `zoo generate`: tokens, temperature, top_k, top_p, stop, samples, seed.

    Returns:
        What `zoo generate --json` prints: recipe, checkpoint, prompt, and `samples`, a list of
        {text, tokens, ended}.

    Raises:
        RecipeError: The model writes no text, or an argument is wrong.
        CheckpointError: As of `zoo.load`.
    """
    with isolate_process(verbose=False):
        from zoo.evaluation.generate import generate as run_generation

        given = {f"generate.{key}": value for key, value in {**options, "prompt": prompt}.items()}
        words = format_edits(join_overrides(overrides, given))
        return run_generation(os.fspath(run), words, quiet=True)


def diagnose(
    runs: str | Path | Run | nn.Module | Sequence[str | Path | Run],
    overrides: Any = (),
    *,
    data: Any = None,
    verbose: bool = True,
    **options: Any,
) -> Diagnosis:
    """Write a page about the attention of trained models, as `zoo diagnose` does.

    Args:
        runs: Runs, run directories or checkpoints, one or several; or a model that `zoo.equip`
            changed, alone or as a part of a larger one.
        overrides: Changes of the stored recipes, as of `zoo.fit`. For a model: the batch to run it
            on, as a mapping of its keyword arguments, a sequence of its arguments, or one tensor.
        data: Datasets to take samples from and to test on, as of `zoo.fit`; only "test" is needed.
            Not for a model.
        verbose: Print progress to standard error.
        **options: Those of `zoo diagnose`: samples, queries, layers, to, controls, limit. For a
            model: queries, layers, to, controls, and `decode`, which turns a list of token ids
            into text.

    Returns:
        The page and its report.

    Raises:
        RecipeError: An argument is wrong, or the model cannot follow its data.
        OptionError: A model has no encodings of zoo, or an option is wrong.
        DataError: Data is missing or unreadable.
        CheckpointError: As of `zoo.load`.
        NonFiniteError: Weights or attention are not finite.
    """
    with isolate_process(verbose):
        from torch import nn

        from zoo.diagnosis.page import diagnosis_page

        if isinstance(runs, nn.Module):
            from zoo.diagnosis.diagnose_model import diagnose_model

            if data is not None:
                raise OptionError("data", "a model runs on the batch alone; leave data out")
            report, path = diagnose_model(runs, overrides, **options)
        else:
            from zoo.diagnosis.diagnose import build_report

            datasets = _collect_datasets("zoo.diagnose", data, None)
            given = [runs] if isinstance(runs, str | Path | Run) else [*runs]
            changes = [*_describe_data(datasets), *format_edits(list_edits(overrides))]
            words = [*(os.fspath(one) for one in given), *format_options(options), *changes]
            report, path = build_report(words, datasets)
        diagnosis_page.write(report, path)
        return Diagnosis(path, report)
