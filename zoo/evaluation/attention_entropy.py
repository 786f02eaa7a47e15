"""The entropy of attention at each size of an evaluation: whether it spreads as texts grow."""

from __future__ import annotations

from statistics import fmean

import torch
from lightning.fabric.utilities import move_data_to_device

from zoo.attention.backends.reference import attention_mask
from zoo.data.base import DataModule
from zoo.diagnostics import metrics
from zoo.diagnostics.capture import LayerAttention, capture_layers
from zoo.errors import OptionError
from zoo.evaluation.results import ENTROPY, EVEN
from zoo.tasks.base import Task

SAMPLES, QUERIES = 4, 64
"""Test samples and queries, spread evenly, of which the entropy is a mean."""


@torch.no_grad()
def measure_entropies(task: Task, data: DataModule) -> tuple[dict[str, float], tuple[float, ...]]:
    """Measure the entropy of attention for the first test samples, after `setup`.

    Returns:
        {ENTROPY: mean over layers, EVEN: that of even attention}, and the mean of each layer.

    Raises:
        OptionError: No attention of the model can be seen.
    """
    batch = move_data_to_device(next(iter(data.build_loader("test"))), task.device)
    inputs = task.inputs(data.on_after_batch_transfer(batch, 0))
    # images of one size come alone; others have rows of patches, which samples may share
    if task.spec.is_image and len(inputs) > 1:
        message = "images that keep their shape have no common number of patches"
        raise OptionError("entropy", f"{message}; leave it out")
    by_layer: dict[int, list[float]] = {}
    even: list[float] = []

    def see(part: LayerAttention) -> None:
        entropies = metrics.entropy(part.weights)
        # padding sees no key
        visible = attention_mask(part.call).sum(-1).expand(entropies.shape)
        is_real = visible > 0
        by_layer.setdefault(part.layer, []).append(float(entropies[is_real].mean()))
        even.append(float(visible[is_real].double().log().mean()))

    few = tuple(part if part is None else part[:SAMPLES] for part in inputs)
    capture_layers(task.model, few, see, QUERIES)
    if not by_layer:
        raise OptionError("entropy", "no attention of the model can be seen; leave it out")
    # a model that reads tokens in parts is seen once for each part
    layers = tuple(fmean(by_layer[layer]) for layer in sorted(by_layer))
    return {ENTROPY: fmean(layers), EVEN: fmean(even)}, layers
