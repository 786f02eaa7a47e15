"""The functions fit, evaluate, predict, generate and diagnose of the package `zoo`.

They give the same numbers and errors as the commands of the command line.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo import config
from zoo.api.results import Diagnosis, Run
from zoo.config import Overrides, Recipe, join_overrides
from zoo.config.arguments import validate_options
from zoo.errors import ConfigIssue, OptionError, RecipeError, Stopped
from zoo.run.process_state import isolate_process

if TYPE_CHECKING:
    from torch import nn

    from zoo.data.base import Datasets
    from zoo.data.spec import DataSpec
    from zoo.evaluation.generate import Generation
    from zoo.evaluation.predict import Predictions
    from zoo.evaluation.results import Evaluation

log = logging.getLogger("zoo")


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
        overrides: Changes of the recipe: {key: value}, or a list of `Change` and `Removal` of
            `zoo.config`.
        data: Samples of your own instead of the recipe's: {"train": dataset, "val": ..., "test":
            ...}; a pair (train, val), of which val is the test too; or a Lightning data module. The
            recipe's data becomes `torch_dataset`, with its options `batch_size`, `workers`, `size`.
            Pass `data` again to repeat the run, and to `zoo.evaluate` and `zoo.diagnose`.
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
        from zoo.run.fit import fit as run_fit

        # arguments first: a wrong one is reported before the recipe is read
        datasets = _collect_datasets("zoo.fit", data, spec)
        edits = join_overrides(_name_datasets(datasets), overrides)
        if isinstance(recipe, Recipe):
            origin = f"recipe {recipe.name}"
            resolved = config.from_plain(recipe.plain(), edits, origin=origin, name=recipe.name)
        else:
            resolved = config.load(recipe, edits)
        paths: list[Path] = []
        try:
            result = run_fit(
                resolved,
                Path(run_dir) if run_dir else None,
                os.fspath(resume),
                datasets=datasets,
                wait=wait,
                started=paths.append,
            )
        except Stopped as stopped:
            # no run directory exists yet, so there is no run to return
            if not paths:
                raise
            log.info("%s", stopped)
        except (KeyboardInterrupt, SystemExit):  # Lightning exits at one that nobody handles
            if not paths:
                raise
            log.info("interrupted at once; %s holds what was saved before", paths[0])
        else:
            # the path of a run that other processes trained
            paths += [] if result is None else [result.run]
        return Run(paths[0])


def _collect_datasets(caller: str, data: Any, spec: DataSpec | None) -> Datasets | None:
    """Return the datasets of an argument `data`. Raises RecipeError if it cannot be used."""
    from zoo.data.torch_dataset import collect_datasets

    if data is None and spec is None:
        return None
    try:
        if data is None:
            raise OptionError("spec", "`spec` requires `data`")
        return collect_datasets(data, spec)
    except OptionError as error:
        raise RecipeError(ConfigIssue(caller, error.key, str(error))) from None


def _name_datasets(datasets: Datasets | None) -> Overrides:
    """Return the overrides that name datasets in the recipe."""
    from zoo.data.torch_dataset import describe_datasets

    if datasets is None:
        return {}
    return {"data.name": "torch_dataset", "data.description": describe_datasets(datasets)}


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
    """Test a checkpoint, also beyond the training length or resolution, as `zoo eval` does.

    Args:
        run: A run, a run directory or a checkpoint.
        overrides: Changes of the stored recipe, as of `zoo.fit`.
        resolutions: Image sizes in pixels: 24, "16x32" for height and width, "2x" for twice the
            training size. None: those of the recipe, as with all arguments here.
        lengths: Lengths in tokens: 512, or "2x" for twice the training length.
        stride: Tokens from window to window at these lengths.
        extrapolation: Methods of the encoding to try beyond the training size.
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
        edits = join_overrides(_name_datasets(datasets), overrides, _prefix("evaluate", chosen))
        result = run_evaluation(os.fspath(run), edits, datasets)
        if result is None:
            problem = "only the first of several processes returns the evaluation"
            raise RecipeError(ConfigIssue("zoo.evaluate", "trainer.devices", problem))
        return result


def _prefix(section: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a section as overrides, without those that are None."""
    return {f"{section}.{key}": value for key, value in options.items() if value is not None}


def predict(
    run: str | Path | Run,
    paths: str | Path | Sequence[str | Path],
    overrides: Overrides = (),
    *,
    top: int | None = None,
) -> Predictions:
    """Classify files and folders with a trained model, as `zoo predict` does.

    `zoo.load(run).predict` takes tensors, pictures and texts too.

    Args:
        run: A run, a run directory or a checkpoint.
        paths: Files and folders, one or several.
        overrides: Changes of the stored recipe, as of `zoo.fit`.
        top: Classes to report at most. None: what the recipe says.

    Returns:
        The predictions, and the files that could not be read.

    Raises:
        DataError: No file could be read.
        RecipeError: The task predicts nothing for a single file, or an argument is wrong.
        CheckpointError: As of `zoo.load`.
    """
    with isolate_process(verbose=True):
        from zoo.evaluation.predict import predict as run_prediction

        given = [paths] if isinstance(paths, str | Path) else [*paths]
        edits = join_overrides(overrides, _prefix("predict", {"top": top}))
        return run_prediction(os.fspath(run), [Path(one) for one in given], edits)


def generate(
    run: str | Path | Run,
    prompt: str,
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
    **unknown: Any,
) -> Generation:
    """Continue a prompt with a language model, as `zoo generate` does.

    Args:
        run: A run, a run directory or a checkpoint.
        prompt: Text to continue.
        overrides: Changes of the stored recipe, as of `zoo.fit`.
        tokens: Tokens to generate at most. None: what the recipe says, as with all arguments here.
        temperature: Divides the logits; 0 always takes the likeliest token.
        top_k: Sample from so many of the likeliest tokens.
        top_p: Sample from the likeliest tokens that together have this probability.
        stop: Text at which a continuation ends.
        samples: Continuations.
        seed: Seed of the first continuation; the others follow.
        cache: Keep keys and values of past tokens instead of computing them again.
        **unknown: None; another name raises RecipeError, which suggests the nearest one.

    Returns:
        The prompt and its continuations, `samples`.

    Raises:
        RecipeError: The model writes no text, or an argument is wrong.
        CheckpointError: As of `zoo.load`.
    """
    with isolate_process(verbose=False):
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
        # the validator of recipes refuses unknown options
        edits = join_overrides(overrides, _prefix("generate", {**chosen, **unknown}))
        return run_generation(os.fspath(run), edits)


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
    verbose: bool = True,
    **unknown: Any,
) -> Diagnosis:
    """Write a page about the attention of trained models, as `zoo diagnose` does.

    Args:
        runs: Runs, run directories or checkpoints, one or several; or a model that `zoo.equip`
            changed, or that contains such a model.
        overrides: Changes of the stored recipes, as of `zoo.fit`. For a model: the batch to run it
            on, as a mapping of its keyword arguments, a sequence of its arguments, or one tensor.
        samples: How many of the first test samples to measure; a model runs on the whole batch.
        queries: Query positions at most; class and register tokens come in addition.
        layers: Layers to show, from 0. None: all.
        to: The page. None: diagnosis.html in the run directory, else in the current folder.
        controls: Test again with positions shuffled, shifted, zeroed and reversed.
        limit: Test batches at most. None: all. Not for a model.
        decode: Turns a list of token ids into text. Only for a model.
        data: Datasets to take samples from and to test on, as of `zoo.fit`; only "test" is needed.
            Not for a model.
        verbose: Print progress to standard error.
        **unknown: None; another name raises RecipeError, which suggests the nearest one.

    Returns:
        The page and its report.

    Raises:
        RecipeError: An argument is wrong, or the model cannot follow its data.
        OptionError: A model has no encodings of zoo, or an argument does not apply to it.
        DataError: Data is missing or unreadable.
        CheckpointError: As of `zoo.load`.
        NonFiniteError: Weights or attention are not finite.
    """
    with isolate_process(verbose):
        from torch import nn

        from zoo.diagnosis.diagnose import DiagnoseOptions, diagnose_model, diagnose_runs

        chosen = {
            "samples": samples,
            "queries": queries,
            "layers": layers,
            "to": to,
            "controls": controls,
            "limit": limit,
            **unknown,
        }
        options = validate_options(DiagnoseOptions, chosen)
        if isinstance(runs, nn.Module):
            for name, value in (("data", data), ("limit", limit)):
                if value is not None:
                    raise OptionError(name, f"a model runs only on its batch; leave {name} out")
            report, path = diagnose_model(runs, overrides, options, decode)
        else:
            if decode is not None:
                problem = "a run decodes tokens with its own vocabulary; leave decode out"
                raise OptionError("decode", problem)
            datasets = _collect_datasets("zoo.diagnose", data, None)
            given = [runs] if isinstance(runs, str | Path | Run) else [*runs]
            edits = join_overrides(_name_datasets(datasets), overrides)
            names = [os.fspath(one) for one in given]
            report, path = diagnose_runs(names, options, edits, datasets)
        return Diagnosis(path, report)
