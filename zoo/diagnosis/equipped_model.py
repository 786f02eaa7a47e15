"""A model that `zoo.equip` changed as the subject of a diagnosis."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from zoo.attention.chain import list_links
from zoo.attention.layer import AttentionInput, find_encoded
from zoo.data.spec import IGNORE_INDEX
from zoo.diagnosis.inputs import CapturedAttention, Inputs, Saved
from zoo.diagnosis.position_use import UNCHANGED, SampleValues, compare_samples
from zoo.diagnosis.report import Control, Sample, SegmentedImage
from zoo.diagnostics.capture import evaluation_mode, hook_attention
from zoo.diagnostics.position_ablation import Change, change_positions
from zoo.diagnostics.token_layout import PADDING, to_pictures
from zoo.errors import OptionError
from zoo.integrations.equipment import Equipment

log = logging.getLogger("zoo")

LOSS, CHANGE = "loss", "change of the output"
Batch = Mapping[str, Any] | Sequence[Any] | Tensor


class BoundModel(nn.Module):
    """A model with the arguments of one call.

    Args:
        model: The model.
        batch: Its keyword arguments, its arguments, or the only one.
    """

    def __init__(self, model: nn.Module, batch: Batch) -> None:
        super().__init__()
        self.bound, self.batch = model, batch

    def forward(self) -> Any:
        """Call the model."""
        if isinstance(self.batch, Mapping):
            return self.bound(**self.batch)
        if isinstance(self.batch, Tensor):
            return self.bound(self.batch)
        return self.bound(*self.batch)


class EquippedModel:
    """An equipped model and the batch to run it on.

    A model that returns no loss is judged by the change of its output.

    Args:
        model: The model; it runs in evaluation mode and is left unchanged.
        batch: Its keyword arguments, its arguments, or the only one.
        decode: Turns token ids into text; None: ids are shown.
    """

    checkpoint = "a model in memory"
    saved = Saved(recipe="", training=(), extrapolation=())
    classes: tuple[str, ...] = ()
    class_ious: Mapping[str, float] = MappingProxyType({})

    def __init__(
        self, model: nn.Module, batch: Batch, decode: Callable[[list[int]], str] | None = None
    ) -> None:
        self.name = self.label = type(model).__name__
        self.model, self.bound = BoundModel(model, batch), model
        self.batch, self.decode = batch, decode
        encoded = find_encoded(model)[0]
        self.encodings = tuple(dict.fromkeys(one.name for one in list_links(encoded.chains)))
        if isinstance(encoded, Equipment) and encoded.keeps_positions:
            self.encodings = ("its own positions",)

    def load_inputs(self, shown: int, measured: int) -> tuple[Inputs, Inputs]:
        """Return no arguments: the bound model has its batch already, and all of it is measured."""
        return (), ()

    def describe_samples(self, seen: CapturedAttention) -> tuple[Sample, ...]:
        """Return the samples of the batch as pictures or tokens, or their positions as numbers."""
        count, layout = len(seen.weights), seen.layout
        titles = [f"sample {number + 1}" for number in range(count)]
        for values in list_tensors(self.batch):
            if len(layout.grid) > 1 and values.ndim == 4:
                # the normalization of the images is unknown here, so they are stretched to the
                # range shown
                low, high = values.amin(), values.amax()
                images = (values.float() - low) / (high - low).clamp(min=1e-12)
                return tuple(
                    Sample(title=title, pictures=to_pictures(image, layout.grid[0]))
                    for title, image in zip(titles, images, strict=True)
                )
            length = seen.layers[0].weights.shape[-1]
            is_text = not values.is_floating_point() and values.shape == (count, length)
            if is_text and len(layout.grid) == 1:
                rows = values[:, list(layout.grid_columns)].tolist()
                return tuple(
                    Sample(title=title, tokens=self._name_tokens(row, is_real))
                    for title, row, is_real in zip(titles, rows, seen.is_real, strict=True)
                )
        return tuple(
            Sample(title=title, tokens=_number_tokens(is_real))
            for title, is_real in zip(titles, seen.is_real, strict=True)
        )

    def _name_tokens(self, row: Sequence[int], is_real: Tensor) -> tuple[str, ...]:
        """Return the text of each token id, or the id; padding is empty."""
        return tuple(
            (self.decode([token]) if self.decode else str(token)) if real else PADDING
            for token, real in zip(row, is_real.tolist(), strict=True)
        )

    def describe_masks(self) -> tuple[SegmentedImage, ...]:
        """Return nothing: nobody said that its outputs are classes of pixels."""
        return ()

    def run_controls(self, changes: Mapping[str, Change], limit: int | None) -> Iterator[Control]:
        """Yield the loss and the change of the output, first with unchanged positions."""
        output, loss = self._compute_output()
        before = self._measure_samples(loss)
        yield Control(name=UNCHANGED, metrics=_list_metrics(loss, 0.0))
        for name, change in changes.items():
            log.info("running with positions %s", name)
            try:
                with change_positions(self.model, change):
                    other, loss = self._compute_output()
                    after = self._measure_samples(loss)
            except OptionError as error:
                yield Control(name=name, metrics={}, refused=str(error))
                continue
            # relative, since outputs of models have no common scale
            by = float((other - output).norm() / output.norm().clamp(min=1e-30))
            paired = compare_samples(before, after)
            if loss is None:
                paired = compare_samples(*compare_outputs(output, other))
            yield Control(name=name, metrics=_list_metrics(loss, by), change=paired)

    def _measure_samples(self, loss: float | None) -> SampleValues | None:
        """Return the loss of each sample of the batch by itself.

        Args:
            loss: The loss of the batch, which must be the mean of those of its samples; None
                if the model returns none.

        Returns:
            The losses; None if the model has no loss that is such a mean.
        """
        if loss is None:
            return None
        losses = []
        for sample in _split_batch(self.batch):
            with evaluation_mode(self.bound):
                losses.append(float(BoundModel(self.bound, sample)()["loss"]))
        values = torch.tensor(losses).double()
        # A loss is a mean over samples or over targets, which a causal model shifts by one.
        for weights in (torch.ones_like(values), *_count_labels(self.batch)):
            mean = (values.where(weights > 0, 0) * weights).sum() / weights.sum()
            if math.isclose(float(mean), loss, rel_tol=1e-4, abs_tol=1e-5):
                return SampleValues(LOSS, values, weights)
        return None

    def _compute_output(self) -> tuple[Tensor, float | None]:
        """Compute the first floating-point tensor of the output, and the loss if it has one."""
        with evaluation_mode(self.model):
            found = self.model()
        loss = found.get("loss") if isinstance(found, Mapping) else None
        # a scalar is the loss, not an output
        large = [value for value in list_tensors(found) if value.ndim]
        if not large:
            raise OptionError("model", f"{self.name} returned no tensor")
        output = large[0].float()
        if output.ndim == 3 and not _is_batch_first(self.model):
            output = output.transpose(0, 1)
        return self._clear_padding(output), None if loss is None else float(loss)

    def _clear_padding(self, output: Tensor) -> Tensor:
        """Set the rows of an output [B, N, D] that belong to padding to 0: nobody reads them."""
        valid = self._valid
        if valid is None or output.ndim != 3:
            return output
        pairs = zip(valid.shape, output.shape, strict=False)
        if any(size not in (1, full) for size, full in pairs):
            return output
        return output.masked_fill(~valid[..., None], 0)

    @cached_property
    def _valid(self) -> Tensor | None:
        """Which tokens of the batch are no padding, bool [B, N]; None: all."""
        seen: list[AttentionInput] = []
        with hook_attention(self.model, seen.append), evaluation_mode(self.model):
            self.model()
        return seen[0].tokens.valid

    def list_facts(self, seen: CapturedAttention, limit: int | None) -> dict[str, str]:
        """Return the number of samples in the batch."""
        return {"samples": f"{len(seen.weights):,}"}

    @contextlib.contextmanager
    def locate_errors(self, section: str) -> Iterator[None]:
        """Leave errors unchanged: there is no recipe to locate them in."""
        yield


def compare_outputs(output: Tensor, other: Tensor) -> tuple[SampleValues, SampleValues]:
    """Return the relative change of the output of each sample: 0 before, and the change after."""
    before, after = output.flatten(1), other.flatten(1)
    changes = (after - before).norm(dim=1) / before.norm(dim=1).clamp(min=1e-30)
    values = changes.double().cpu()
    zeros, weights = torch.zeros_like(values), torch.ones_like(values)
    return (
        SampleValues(CHANGE, zeros, weights, is_signed=False),
        SampleValues(CHANGE, values, weights, is_signed=False),
    )


def _split_batch(batch: Batch) -> Iterator[Batch]:
    """Yield a batch for each sample."""
    for row in range(count_samples(batch)):
        yield take_samples(batch, slice(row, row + 1))


def count_samples(batch: Batch) -> int:
    """Return the number of samples in a batch."""
    return next((len(part) for part in list_tensors(batch) if part.ndim > 1), 0)


def take_samples(batch: Batch, rows: slice) -> Batch:
    """Return some samples; tensors without a row for each sample are left whole."""
    count = count_samples(batch)

    def take(part: Any) -> Any:
        has_rows = isinstance(part, Tensor) and part.ndim and len(part) == count
        return part[rows] if has_rows else part

    if isinstance(batch, Mapping):
        return {name: take(part) for name, part in batch.items()}
    return take(batch) if isinstance(batch, Tensor) else [take(part) for part in batch]


def _count_labels(batch: Batch) -> Iterator[Tensor]:
    """Yield numbers of labels of each sample [B]: of all, and of those after the first one."""
    labels = batch.get("labels") if isinstance(batch, Mapping) else None
    if isinstance(labels, Tensor) and labels.ndim == 2 and not labels.is_floating_point():
        for counted in (labels, labels[:, 1:]):
            yield (counted != IGNORE_INDEX).sum(1).double().cpu()


def _is_batch_first(model: nn.Module) -> bool:
    """Return whether outputs are [B, N, D], and not [N, B, D] as modules of torch may return."""
    parts = (part for part in model.modules() if isinstance(part, nn.MultiheadAttention))
    return all(part.batch_first for part in parts)


def _number_tokens(is_real: Tensor) -> tuple[str, ...]:
    """Return the number of each token of a sample; padding is empty."""
    numbers = (is_real.long().cumsum(0) - 1).tolist()
    pairs = zip(numbers, is_real.tolist(), strict=True)
    return tuple(str(number) if real else PADDING for number, real in pairs)


def _list_metrics(loss: float | None, change: float) -> dict[str, float]:
    return {CHANGE: change} if loss is None else {LOSS: loss, CHANGE: change}


def list_tensors(values: Any) -> list[Tensor]:
    """Return the tensors of a batch or of an output."""
    if isinstance(values, Tensor):
        return [values]
    if not isinstance(values, Mapping | Sequence):
        return []
    entries = values.values() if isinstance(values, Mapping) else values
    return [value for value in entries if isinstance(value, Tensor)]
