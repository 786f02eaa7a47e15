"""`zoo predict`: what a trained model predicts for files and folders."""

from __future__ import annotations

import logging
import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor

from zoo.config import Overrides, Recipe, join_overrides
from zoo.data.base import FileBatch
from zoo.data.finite import find_not_finite
from zoo.data.patch_rows import find_covered
from zoo.data.pictures import read_pixels
from zoo.data.spec import DataSpec
from zoo.errors import ARGUMENT, ConfigIssue, DataError, OptionError, RecipeError
from zoo.evaluation.evaluate import DEFAULT_OVERRIDES
from zoo.evaluation.generate import move_to_device
from zoo.packages import explain_imports
from zoo.run import checkpoint as checkpoints
from zoo.run.build import Experiment
from zoo.run.load import restore
from zoo.tasks.base import Task
from zoo.tasks.causal_lm import CausalLM
from zoo.tasks.classification import Classification
from zoo.tasks.regression import Regression
from zoo.tasks.segmentation import Segmentation
from zoo.utils import Ticker, describe_absence, escape_text, format_duration

log = logging.getLogger("zoo")


class SamplePredictor(ABC):
    """Predicts something of each sample of the files."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def predict(self, batches: Iterable[FileBatch]) -> Iterator[dict[str, Any]]:
        """Yield {path, ...} of each sample, with its row if a file has many."""
        for files in batches:
            inputs = files.batch if isinstance(files.batch, tuple) else (files.batch,)
            predictions = [*self.predict_batch(*inputs)]
            rows = [{"row": row} for row in files.rows] or [{}] * len(predictions)
            for path, row, prediction in zip(files.paths, rows, predictions, strict=True):
                yield {"path": str(path), **row, **prediction}

    @abstractmethod
    def predict_batch(self, *inputs: Tensor) -> Iterator[dict[str, Any]]:
        """Yield what is predicted of each of the model inputs [B, ...]."""

    def name_sample(self, prediction: Mapping[str, Any], width: int) -> str:
        """Return the path and, if a file has many samples, the row."""
        row = f"  {prediction['row']:>6}" if "row" in prediction else ""
        return prediction["path"].ljust(width) + row


class NumberPredictor(SamplePredictor):
    """Predicts the numbers of each sample, in the units of the data."""

    def predict_batch(self, *inputs: Tensor) -> Iterator[dict[str, Any]]:
        """Yield {numbers} of each of the model inputs [B, ...]."""
        for row in self.task(*(tensor.to(self.task.device) for tensor in inputs)):
            yield {"numbers": row.tolist()}

    def format_lines(self, prediction: dict[str, Any], width: int, first: bool) -> list[str]:
        """Return the path, then the numbers."""
        numbers = (f"{number:.6g}" for number in prediction["numbers"])
        return ["  ".join([self.name_sample(prediction, width), *numbers])]


class ClassPredictor(SamplePredictor):
    """Predicts the `top` likeliest classes of each file, by name where the data has names."""

    def __init__(self, task: Classification, top: int) -> None:
        super().__init__(task)
        spec = task.spec
        assert spec.class_count is not None
        self.top = min(top, spec.class_count)
        self.labels: Sequence[str | int] = spec.class_names or range(spec.class_count)

    def predict_batch(self, *inputs: Tensor) -> Iterator[dict[str, Any]]:
        """Yield {label, probability, top} of each of the model inputs [B, ...]."""
        logits = self.task(*(tensor.to(self.task.device) for tensor in inputs))
        # in half precision, probabilities of likely classes round to one another
        probabilities, classes = logits.float().softmax(-1).topk(self.top)
        for row, numbers in zip(probabilities, classes, strict=True):
            pairs = zip(numbers.tolist(), row.tolist(), strict=True)
            top = [{"label": self.labels[number], "probability": p} for number, p in pairs]
            yield {**top[0], "top": top}

    def format_lines(self, prediction: dict[str, Any], width: int, first: bool) -> list[str]:
        """Return the path, then its classes, the likeliest first."""
        classes = (f"{entry['label']} {entry['probability']:.4f}" for entry in prediction["top"])
        return ["  ".join([self.name_sample(prediction, width), *classes])]


class PixelPredictor:
    """Predicts which share of the pixels of each file the `top` most common classes have."""

    def __init__(self, task: Segmentation, top: int) -> None:
        spec = task.spec
        assert spec.class_count is not None
        self.task, self.top = task, min(top, spec.class_count)
        self.labels: Sequence[str | int] = spec.class_names or range(spec.class_count)

    def predict(self, batches: Iterable[FileBatch]) -> Iterator[dict[str, Any]]:
        """Yield {path, classes: [{label, share}, ...]} of each file after resizing."""
        for files in batches:
            inputs = files.batch if isinstance(files.batch, tuple) else (files.batch,)
            inputs = tuple(tensor.to(self.task.device) for tensor in inputs)
            masks = self.task(*inputs).argmax(1)
            pictures = zip(files.paths, masks, self._find_real(*inputs), strict=True)
            for path, mask, is_real in pictures:
                counts = torch.bincount(mask[is_real], minlength=len(self.labels))
                shares, numbers = (counts / is_real.sum()).topk(self.top)
                pairs = zip(numbers.tolist(), shares.tolist(), strict=True)
                entries = [
                    {"label": self.labels[number], "share": share} for number, share in pairs
                ]
                yield {"path": str(path), "classes": [entry for entry in entries if entry["share"]]}

    def _find_real(self, images: Tensor, *rows: Tensor) -> Tensor:
        """Return which pixels of images [B, C, H, W] are no padding, bool [B, H, W]."""
        if not rows:
            return images.new_ones(len(images), *images.shape[2:], dtype=torch.bool)
        model: Any = self.task.model
        # From patches to pixels.
        covered = find_covered(rows[0], len(images), model.grid_size(*images.shape[2:]))
        for axis, side in enumerate(model.patch_shape, start=1):
            covered = covered.repeat_interleave(side, dim=axis)
        return covered

    def format_lines(self, prediction: dict[str, Any], width: int, first: bool) -> list[str]:
        """Return the path, then its classes, the most common first."""
        classes = (f"{entry['label']} {entry['share']:.1%}" for entry in prediction["classes"])
        return ["  ".join([prediction["path"].ljust(width), *classes])]


class LossPredictor:
    """Measures each text: loss in nats per token, perplexity, bits per character or byte."""

    def __init__(self, task: CausalLM) -> None:
        self.task = task

    def predict(self, batches: Iterable[FileBatch]) -> Iterator[dict[str, Any]]:
        """Yield {path, tokens, loss, perplexity, accuracy, bits_per_...} of each text."""
        # windows of a file follow one another; a batch never holds two files
        for (path,), windows in groupby(batches, key=lambda files: files.paths):
            # each text is a test of its own
            self.task.on_test_epoch_start()
            for number, files in enumerate(windows):
                self.task.test_step(move_data_to_device(files.batch, self.task.device), number)
            counts = self.task.test_metrics.compute()
            measures = {**counts.measures(), **counts.bits(self.task.unit)}
            values = {name: float(value) for name, value in measures.items()}
            yield {"path": str(path), "tokens": int(counts.targets.sum()), **values}

    def format_lines(self, prediction: dict[str, Any], width: int, first: bool) -> list[str]:
        """Return the path, then its numbers; before the first one their names."""
        path, tokens, *measures = prediction.values()
        titles = [title.replace("_per_", "/") for title in prediction]
        row = [path.ljust(width), f"{tokens:>9}", *(f"{number:.4f}" for number in measures)]
        sizes = [max(width, 4), 9, *(max(len(title), 9) for title in titles[2:])]
        rows = [[titles[0].ljust(sizes[0]), *titles[1:]], row] if first else [row]
        return [
            "  ".join(cell.rjust(size) for cell, size in zip(cells, sizes, strict=True))
            for cells in rows
        ]


Predictor = ClassPredictor | NumberPredictor | PixelPredictor | LossPredictor


class Files(NamedTuple):
    """Files, each once, and the folders that could not be read, each with the problem."""

    paths: list[Path]
    problems: dict[Path, str]


def list_image_suffixes() -> frozenset[str]:
    """Return the suffixes of images that can be read."""
    with explain_imports():
        from PIL import Image

    Image.init()
    return frozenset(suffix for suffix, kind in Image.EXTENSION.items() if kind in Image.OPEN)


def find_files(named: Iterable[Path], suffixes: Iterable[str]) -> Files:
    """Find the named files, and those in named folders that have one of the suffixes.

    Names in folders that begin with a dot are left out. Raises DataError where there is none.
    """
    allowed, problems = frozenset(suffixes), dict[Path, str]()
    paths: dict[Path, None] = {}
    for path in named:
        paths |= dict.fromkeys(_list_files(path, allowed, problems))
    return Files([*paths], problems)


def _list_files(path: Path, suffixes: frozenset[str], problems: dict[Path, str]) -> list[Path]:
    if not path.exists():
        raise DataError(f"{path}: {describe_absence(path)}")
    if not path.is_dir():
        return [path]
    before = len(problems)
    files = [*_walk(path, suffixes, problems)]
    if not files and len(problems) == before:
        kinds = ", ".join(sorted(suffixes)) if len(suffixes) < 5 else "that of an image"
        raise DataError(f"{path}: there is no file to read in it; its name must end with {kinds}")
    return files


def _walk(folder: Path, suffixes: frozenset[str], problems: dict[Path, str]) -> Iterator[Path]:
    def note(error: OSError) -> None:
        problems[Path(error.filename)] = error.strerror or str(error)

    for place, folders, names in os.walk(folder, onerror=note):
        # changed in place, since os.walk continues with what is left in the list
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(place, name)
            if not name.startswith(".") and path.suffix.lower() in suffixes and path.is_file():
                yield path


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """The predictions of a model for files.

    Attributes:
        recipe: The name of the recipe.
        checkpoint: The checkpoint.
        predictions: For each file that could be read, or each row of it, its path with label,
            probability and the likeliest classes; or with the numbers of a regression; or of a
            language model with tokens, loss and perplexity.
        skipped: The files that could not be read, each with the problem.
    """

    recipe: str
    checkpoint: Path
    predictions: tuple[Mapping[str, Any], ...]
    skipped: Mapping[Path, str]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON, as `zoo predict --json` prints it."""
        return {
            "recipe": self.recipe,
            "checkpoint": str(self.checkpoint),
            "predictions": [dict(prediction) for prediction in self.predictions],
            "skipped": [{"path": str(path), "problem": why} for path, why in self.skipped.items()],
        }


def predict(
    checkpoint: str | Path,
    paths: Sequence[Path],
    overrides: Overrides = (),
    show: Callable[[str], None] | None = None,
) -> Predictions:
    """Predict for files with a trained model; the training data need not exist.

    Args:
        checkpoint: A run directory or a checkpoint.
        paths: Files and folders.
        overrides: Changes of the stored recipe.
        show: Called with the lines of each file once it is done.

    Raises:
        DataError: No file could be read.
        RecipeError: The task does not predict anything for a single file.
        CheckpointError: As `zoo.load` raises it.
    """
    if not paths:
        hint = "name a file or a folder after the run"
        raise RecipeError(ConfigIssue(ARGUMENT, "", "nothing to predict", hint))
    path = checkpoints.locate(checkpoint)
    experiment, task = restore(path, join_overrides(DEFAULT_OVERRIDES, overrides))
    predictor = _choose_predictor(experiment, task)
    files = find_files(paths, _list_suffixes(task.spec))
    for line in format_problems(files.problems):
        log.warning("Skipped %s", line)

    predictions = _predict_files(experiment, task, predictor, files, show)
    if not predictions:
        first_line, count = format_problems(files.problems)[0], len(files.problems)
        raise DataError(f"{first_line}; none of {count} could be read")
    return Predictions(
        recipe=experiment.recipe.name,
        checkpoint=path,
        predictions=tuple(predictions),
        skipped=files.problems,
    )


def _list_suffixes(spec: DataSpec) -> Iterable[str]:
    return list_image_suffixes() if spec.is_image else spec.suffixes


def predict_inputs(experiment: Experiment, task: Task, inputs: Any) -> list[dict[str, Any]]:
    """Predict for model inputs, files or pictures, in their order.

    Args:
        experiment: The experiment, whose recipe says how many classes to report.
        task: The restored task.
        inputs: Model inputs [B, ...] or one of them, a tuple of several for a model of points; or a
            path, a picture of Pillow or, for a model of texts, a string, or a list of these.

    Raises:
        RecipeError: The task predicts no classes.
        DataError: An input cannot be read.
    """
    predictor = _choose_predictor(experiment, task)
    if isinstance(predictor, SamplePredictor) and (tensors := _read_tensors(task.spec, inputs)):
        # a single input becomes a batch of one
        is_single = tensors[0].dim() == len(task.spec.shape)
        batch = [tensor[None] if is_single else tensor for tensor in tensors]
        _check_finite(*batch)
        with torch.inference_mode(), _explain_misfit(experiment.recipe):
            return [*predictor.predict_batch(*batch)]
    sources = [*inputs] if isinstance(inputs, list | tuple) else [inputs]
    with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
        paths = [
            _write_input(source, Path(folder) / str(number), task)
            for number, source in enumerate(sources)
        ]
        files = Files(paths, {})
        predictions = _predict_files(experiment, task, predictor, files)
    if files.problems:
        raise DataError("; ".join(format_problems(files.problems)))
    for prediction, source in zip(predictions, sources, strict=True):
        # the path of a temporary file tells nobody anything
        if not _is_path(source, task):
            del prediction["path"]
    return predictions


def _read_tensors(spec: DataSpec, inputs: Any) -> tuple[Tensor, ...]:
    """Return inputs that are the arguments of a model; none if they are files or pictures."""
    takes_several = len(spec.build_inputs()) > 1
    if takes_several and isinstance(inputs, tuple):
        return inputs if all(isinstance(value, Tensor) for value in inputs) else ()
    return (inputs,) if isinstance(inputs, Tensor) and not takes_several else ()


def _check_finite(*inputs: Tensor) -> None:
    """Raise DataError where a model input [B, ...] is not finite, outside padding of points."""
    mask = inputs[2] if len(inputs) > 2 else None
    for values in inputs:
        if mask is not None and values.is_floating_point():
            values = values.where(mask[..., None], 0)
        if wrong := find_not_finite(values, torch.float32):
            number, *index = wrong.index
            raise DataError(f"input {number}, at {index}: {wrong.problem}")


def _is_path(source: Any, task: Task) -> bool:
    is_text_model = task.spec.token_vocabulary is not None
    return isinstance(source, Path) or (isinstance(source, str) and not is_text_model)


def _write_input(source: Any, path: Path, task: Task) -> Path:
    """Write a picture or a string to a file that is read like all others; return its path."""
    if _is_path(source, task):
        return Path(source)
    if isinstance(source, str):
        path.write_text(source, encoding="utf-8")
        return path
    with explain_imports():
        from PIL import Image

    if not isinstance(source, Image.Image):
        raise DataError(f"{type(source).__name__} is no tensor, path, picture or text")
    try:
        # PNG, as a lossy format would change what the model sees
        read_pixels(source, "RGB").save(path, format="PNG")
    except (OSError, ValueError) as error:
        raise DataError(f"a picture cannot be read: {error}") from None
    return path


@contextmanager
def _explain_misfit(recipe: Recipe) -> Iterator[None]:
    """Raise RecipeError for a size or a length that the model cannot follow."""
    try:
        yield
    except OptionError as error:
        raise RecipeError(recipe.make_issue(f"model.{error.key}", str(error))) from None


def _choose_predictor(experiment: Experiment, task: Task) -> Predictor:
    recipe = experiment.recipe
    if isinstance(task, Classification):
        return ClassPredictor(task, recipe.predict.top)
    if isinstance(task, Regression):
        return NumberPredictor(task)
    if isinstance(task, Segmentation):
        return PixelPredictor(task, recipe.predict.top)
    if isinstance(task, CausalLM):
        return LossPredictor(task)
    message = f"{recipe.task.name} predicts nothing of a file by itself"
    hint = "evaluate it on a data set, or let a decoder generate"
    raise RecipeError(recipe.make_issue("task.name", message, hint))


def _predict_files(
    experiment: Experiment,
    task: Task,
    predictor: Predictor,
    files: Files,
    show: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Predict for each readable file, show it at once, and add the others to `files.problems`."""
    recipe = experiment.recipe
    try:
        batches = experiment.data.read_files(files.paths, task.spec)
    except OptionError as error:
        raise RecipeError(recipe.make_issue(f"data.{error.key}", str(error))) from None
    move_to_device(task, recipe)
    width = max((len(str(path)) for path in files.paths), default=0)
    predictions: list[dict[str, Any]] = []
    with _explain_misfit(recipe), torch.inference_mode():
        for prediction in predictor.predict(_skip_unreadable(batches, files)):
            if show is not None:
                for line in predictor.format_lines(prediction, width, first=not predictions):
                    show(line)
            predictions.append(prediction)
    return predictions


def _skip_unreadable(batches: Iterable[FileBatch], files: Files) -> Iterator[FileBatch]:
    """Yield what could be read; log what could not, and the progress now and then."""
    start, ticker = time.monotonic(), Ticker()
    seen: set[Path] = set()
    for batch in batches:
        # an unreadable file ends neither the others nor the command
        files.problems.update(batch.errors)
        for line in format_problems(batch.errors):
            log.warning("Skipped %s", line)
        if batch.paths:
            yield batch
        seen |= {*batch.paths, *batch.errors}
        if ticker.is_due():
            count = len(files.paths)
            left = (time.monotonic() - start) * (count / len(seen) - 1)
            log.info("%d of %d files, %s left", len(seen), count, format_duration(left))


def format_problems(problems: dict[Path, str]) -> list[str]:
    """Return a line for each file that could not be read, safe to print."""
    return [escape_text(f"{path}: {reason}") for path, reason in problems.items()]
