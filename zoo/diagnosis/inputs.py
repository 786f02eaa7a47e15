"""The inputs of a diagnosis: captured attention of test samples, and the files of the run."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from zoo.config import Recipe
from zoo.data.base import DataModule
from zoo.data.patch_rows import find_covered
from zoo.data.spec import IGNORE_INDEX, PADDING, DataSpec, PointBatch, TextBatch, format_numbers
from zoo.diagnosis import training_curves
from zoo.diagnosis.report import Sample, SegmentedImage
from zoo.diagnostics import metrics
from zoo.diagnostics.capture import LayerAttention, capture_layers, capture_model, evaluation_mode
from zoo.diagnostics.position_ablation import CHANGES, Change, change_positions
from zoo.diagnostics.token_layout import Layout, decode_pieces, to_pictures
from zoo.errors import DataError, OptionError
from zoo.evaluation.evaluate import RESULT, adapt_data
from zoo.evaluation.results import Evaluation
from zoo.models.vit import ViT
from zoo.reporting.numbers import format_number, name_metric
from zoo.reporting.panel import Curves
from zoo.run import loggers
from zoo.run.callbacks.manifest import END
from zoo.run.checkpoint import find_run_dir
from zoo.tasks.base import Task
from zoo.tasks.segmentation import Segmentation
from zoo.utils import read_object, read_text

log = logging.getLogger("zoo")

MAX_ROLLOUT_WEIGHTS = 2**27  # attention weights of one layer
SHAPED_BATCHES = 8  # batches of images of several shapes, from which some of one shape are taken

Inputs = tuple[Tensor | None, ...]


class CapturedAttention(NamedTuple):
    """The attention of some layers, from the queries that the layout names.

    Attributes:
        layout: Tokens of the samples, and the queries.
        layers: The attention of each layer, of all keys.
        zeroed: The same with all tokens at one position; None if the model refuses that.
        shifted: The same with all positions shifted equally.
        rollout: Attention rollout over all layers [S, Q, M]; None where it is too large.
    """

    layout: Layout
    layers: list[LayerAttention]
    zeroed: list[LayerAttention] | None
    shifted: list[LayerAttention] | None
    rollout: Tensor | None

    @property
    def weights(self) -> Tensor:
        """Attention weights [S, L, H, Q, M], without keys that are padding in all samples."""
        columns = list(self.layout.columns)
        return torch.stack(
            [layer.weights[..., columns].float().cpu() for layer in self.layers], dim=1
        )

    @property
    def is_real(self) -> Tensor:
        """Which tokens of the grid are no padding, bool [S, tokens]."""
        first = self.layers[0]
        _, keys = first.is_real
        columns = list(self.layout.columns[len(self.layout.extra) :])
        return keys.expand(len(first.weights), -1)[:, columns].cpu()


def capture_attention(
    model: nn.Module, inputs: Inputs, layout: Layout, layers: Sequence[int] | None
) -> CapturedAttention:
    """Capture the attention of layers (None: all), also with changed positions."""
    attentions = capture_model(model, inputs, layout.query_index, layers)
    zeroed = _capture_changed(model, inputs, layout, layers, CHANGES["zeroed"])
    shifted = _capture_changed(model, inputs, layout, layers, CHANGES["shifted"])
    rollout = _compute_rollout(model, inputs, layout, attentions[0])
    return CapturedAttention(layout, attentions, zeroed, shifted, rollout)


def _capture_changed(
    model: nn.Module, inputs: Inputs, layout: Layout, layers: Sequence[int] | None, change: Change
) -> list[LayerAttention] | None:
    try:
        with change_positions(model, change):
            return capture_model(model, inputs, layout.query_index, layers)
    except OptionError:
        return None


def _compute_rollout(
    model: nn.Module, inputs: Inputs, layout: Layout, first: LayerAttention
) -> Tensor | None:
    """Compute the rollout, holding the weights of one layer at a time; None if too many."""
    batch, heads, _, tokens = first.weights.shape
    if batch * heads * tokens**2 > MAX_ROLLOUT_WEIGHTS:
        log.info("No attention rollout: %d tokens have too many pairs", tokens)
        return None
    # the rollout needs the mean over heads only: one matrix per layer instead of one per head
    means: list[Tensor] = []
    capture_layers(
        model, inputs, lambda seen: means.append(seen.weights.float().abs().mean(1, keepdim=True))
    )
    return metrics.rollout(means)[:, list(layout.query_index)][..., list(layout.columns)].cpu()


def load_samples(task: Task, data: DataModule, count: int, has_shapes: bool) -> Any:
    """Load the first test samples as one batch on the model's device.

    Args:
        task: The task.
        data: Its data.
        count: Number of samples at most.
        has_shapes: Whether images keep their shapes; then some of the commonest shape are loaded.

    Raises:
        DataError: There is none.
        OptionError: The data is not what the model was trained on.
    """
    adapt_data(task, data)
    # after adopting the spec: set-up encodes the text
    data.setup("test")
    loader, model = data.build_loader("test"), task.model
    if has_shapes:
        assert isinstance(model, ViT)
        batch: Any = _take_one_shape(loader, model, count)
    else:
        batch = _take_first(loader, count)
    if batch is None:
        raise DataError(f"{data.title}: the test part has no sample")
    return data.on_after_batch_transfer(move_data_to_device(batch, task.device), 0)


def _take_one_shape(
    batches: Iterable[Sequence[Tensor]], model: ViT, count: int
) -> tuple[Tensor, Tensor] | None:
    """Return images of the shape that most of the first ones have, without padding; None if none.

    Masks have the shape of their images; labels have none.
    """
    by_shape: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}
    for images, places, *_, targets in islice(batches, SHAPED_BATCHES):
        covered = find_covered(places, len(images), model.grid_size(*images.shape[2:]))
        # an image is the upper left rectangle of its part of the batch
        sizes = torch.stack([covered.any(2).sum(1), covered.any(1).sum(1)], dim=1)
        sides = sizes * sizes.new_tensor(model.patch_shape)  # [B, 2], in pixels
        for image, target, (height, width) in zip(images, targets, sides.tolist(), strict=True):
            shown_target = target[..., :height, :width] if target.dim() else target
            by_shape.setdefault((height, width), []).append(
                (image[..., :height, :width], shown_target)
            )
    if not by_shape:
        return None
    shown = max(by_shape.values(), key=len)[:count]
    shown_images, shown_targets = zip(*shown, strict=True)
    return torch.stack(shown_images), torch.stack(shown_targets)


def _take_first(batches: Iterable[Any], count: int) -> Any:
    """Return the first samples of batches as one batch of the same type, None if there is none."""
    taken: list[Any] = []
    for batch in batches:
        taken.append(batch)
        if sum(len(batch[0]) for batch in taken) >= count:
            break
    if not taken or not len(taken[0][0]):
        return None
    if isinstance(taken[0], PointBatch):
        return _join_points(taken, count)
    columns = zip(*taken, strict=True)
    whole: list[Any] = [
        None if column[0] is None else _concatenate(column)[:count] for column in columns
    ]
    return TextBatch(*whole) if isinstance(taken[0], TextBatch) else tuple(whole)


def _join_points(batches: Sequence[PointBatch], count: int) -> PointBatch:
    """Join batches of sets of points, each set in the order of its first coordinate.

    A set has no order, and neighbours are easier to see next to each other.
    """
    sets = [sample for batch in batches for sample in zip(*batch, strict=True)][:count]
    x, pos, targets = [], [], []
    for features, coordinates, mask, target in sets:
        order = coordinates[mask][:, 0].argsort(stable=True)
        x.append(features[mask][order])
        pos.append(coordinates[mask][order])
        targets.append(target)
    lengths = torch.tensor([len(sample) for sample in x])
    return PointBatch(
        pad_sequence(x, batch_first=True),
        pad_sequence(pos, batch_first=True),
        torch.arange(int(lengths.max())) < lengths[:, None],
        torch.stack(targets),
    )


def take_rows(batch: Any, count: int) -> Any:
    """Return the first samples of a batch."""
    parts: list[Any] = [None if part is None else part[:count] for part in batch]
    return type(batch)(*parts) if isinstance(batch, TextBatch | PointBatch) else tuple(parts)


def _concatenate(column: Sequence[Tensor]) -> Tensor:
    """Concatenate batches; texts of unequal lengths are padded."""
    if column[0].dim() == 2:
        longest = max(part.shape[1] for part in column)
        column = [F.pad(part, (0, longest - part.shape[1]), value=PADDING) for part in column]
    return torch.cat([*column])


def describe_samples(
    task: Task, data: DataModule, batch: Any, inputs: Inputs, seen: CapturedAttention
) -> tuple[Sample, ...]:
    """Return the samples of a batch with titles, as pictures, text or points."""
    titles, shown, layout = _make_titles(task, batch, inputs), inputs[0], seen.layout
    assert shown is not None
    if task.spec.is_image:
        images = data.denormalize(shown.float())
        return tuple(
            Sample(title=title, pictures=to_pictures(image, layout.grid[0]))
            for title, image in zip(titles, images, strict=True)
        )
    columns = list(layout.grid_columns)
    vocabulary = task.spec.token_vocabulary
    if vocabulary is None:
        parts = (part[:, columns] for part in inputs if part is not None)
        samples = zip(titles, *parts, strict=True)
        return tuple(_describe_tokens(task.spec, *sample) for sample in samples)
    # Whatever stands in padding is no text.
    rows = shown[:, columns].cpu().where(seen.is_real, PADDING)
    return tuple(
        Sample(title=title, tokens=decode_pieces(vocabulary, row))
        for title, row in zip(titles, rows, strict=True)
    )


def _describe_tokens(spec: DataSpec, title: str, *tokens: Tensor) -> Sample:
    places, axes = spec.place_tokens(*tokens)
    return Sample(title=title, tokens=spec.name_tokens(*tokens), places=places, axes=axes)


def _make_titles(task: Task, batch: Any, inputs: Inputs) -> list[str]:
    """Return the number of each sample and, if it has a class, the class and the prediction."""
    spec = task.spec
    if spec.target_unit == "token":
        return [f"test window {number + 1}" for number in range(len(batch[0]))]
    if spec.class_count is None:
        with evaluation_mode(task):
            numbers = task(*inputs)
        pairs = zip(batch[-1].tolist(), numbers.tolist(), strict=True)
        return [
            f"test sample {number + 1}: {format_numbers(right)}, predicted {format_numbers(guess)}"
            for number, (right, guess) in enumerate(pairs)
        ]
    names = [*spec.class_names] or [f"class {number}" for number in range(spec.class_count)]
    with evaluation_mode(task.model):
        outputs: Tensor = task.model(*inputs)
    if isinstance(task, Segmentation):
        right = outputs.argmax(1) == task.targets(batch)
        has_class = (task.targets(batch) != IGNORE_INDEX).sum((1, 2))
        shares = (right.sum((1, 2)) / has_class.clamp(min=1)).tolist()
        return [
            f"test sample {number + 1}: {share:.1%} of pixels correct"
            for number, share in enumerate(shares)
        ]
    predicted: list[int] = outputs.argmax(-1).tolist()
    titles = []
    for number, (label, guess) in enumerate(zip(batch[-1].tolist(), predicted, strict=True)):
        outcome = "correct" if label == guess else f"predicted {names[guess]}"
        titles.append(f"test sample {number + 1}: {names[label]}, {outcome}")
    return titles


def describe_masks(
    task: Task, data: DataModule, batch: Any, inputs: Inputs
) -> tuple[SegmentedImage, ...]:
    """Return the images of a batch with masks and predictions; none for other tasks."""
    if not isinstance(task, Segmentation):
        return ()
    (images,) = inputs
    assert images is not None
    with evaluation_mode(task.model):
        predicted = task.model(images).argmax(1).cpu()
    titles, masks = _make_titles(task, batch, inputs), task.targets(batch).cpu()
    shown = data.denormalize(images.float())
    return tuple(
        SegmentedImage(title=title, picture=to_pictures(image, 1)[0], mask=mask, predicted=guess)
        for title, image, mask, guess in zip(titles, shown, masks, predicted, strict=True)
    )


class Saved(NamedTuple):
    """The recipe as YAML, curves, and the end of training; empty what the run directory lacks."""

    recipe: str
    training: tuple[Curves, ...]
    extrapolation: tuple[Curves, ...]
    end: Mapping[str, Any] = MappingProxyType({})

    def find_baselines(self, title: str, count: int) -> str:
        """Return what models must beat on these samples; empty where it is not known.

        Args:
            title: The title of the test data; baselines of other data are left out.
            count: The number of its samples.
        """
        if (self.end.get("data"), self.end.get("count")) != (title, count):
            return ""
        baselines: Mapping[str, Mapping[str, float]] = self.end["baselines"]
        return "; ".join(
            f"{name_metric(metric)}: "
            + ", ".join(f"{name} {format_number(value)}" for name, value in values.items())
            for metric, values in baselines.items()
        )


def read_saved(checkpoint: Path, stored: Recipe, spec: DataSpec) -> Saved:
    """Read the recipe and the curves of a checkpoint's run.

    The recipe is that of the run directory, else the one stored in the checkpoint, which has
    another trainer. Raises DataError where a file cannot be read.
    """
    run = find_run_dir(checkpoint)
    return Saved(
        recipe=_read_recipe(run / "recipe.yaml", checkpoint, stored),
        training=_read_training(run / "metrics.csv", spec.token_noun),
        extrapolation=_read_extrapolation(run / RESULT, checkpoint),
        end=_read_end(run / END),
    )


def _read_end(file: Path) -> Mapping[str, Any]:
    if not os.path.lexists(file):
        return {}
    with _explain_errors(file):
        end = read_object(file, "not as zoo writes it")
        # read now, so that a damaged file fails before long work
        end["baselines"] = {
            metric: {name: float(value) for name, value in values.items()}
            for metric, values in (end.get("baselines") or {}).items()
        }
        return end


def _read_recipe(file: Path, checkpoint: Path, stored: Recipe) -> str:
    is_of_run = checkpoint.resolve().parent.name == "checkpoints"
    with _explain_errors(file):
        return read_text(file) if is_of_run and os.path.lexists(file) else stored.yaml()


def _read_training(file: Path, unit: str) -> tuple[Curves, ...]:
    if not os.path.lexists(file):
        return ()
    with _explain_errors(file):
        return _log_if_empty(
            file, training_curves.draw_training_curves(loggers.read(file)[1], unit)
        )


def _read_extrapolation(file: Path, checkpoint: Path) -> tuple[Curves, ...]:
    """Read the evaluation of this very checkpoint."""
    if not os.path.lexists(file):
        return ()
    with _explain_errors(file):
        result = Evaluation.from_dict(read_object(file, "not as zoo writes it"))
        # evaluation.json is of the latest evaluation, maybe of `last` where this is `best`
        if result.checkpoint.name != checkpoint.name:
            log.info("%s is of %s, so it is left out", file, result.checkpoint)
            return ()
        return _log_if_empty(file, training_curves.draw_extrapolation(result))


def _log_if_empty(file: Path, curves: tuple[Curves, ...]) -> tuple[Curves, ...]:
    if not curves:
        log.info("%s: nothing in it can be drawn, so it is left out", file)
    return curves


@contextmanager
def _explain_errors(file: Path) -> Iterator[None]:
    """Raise DataError where a file cannot be read, or is not as zoo writes it."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{file}: cannot be read, {error.strerror or error}") from None
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        problem = str(error)[:80]
        if isinstance(error, KeyError):
            problem = f"it has no key {error.args[0]}"
        remedy = "remove it, or have it written anew"
        raise DataError(f"{file}: not as zoo writes it, {problem}; {remedy}") from None
